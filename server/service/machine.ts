import type { DriverCapacity, Isolation } from '../driver/driver';

/** What the driver found at the start, and what the service was started with: the rules of specs go by it. Plain values, which cross a thread. */
export interface Machine {
  driver: string;
  isolation: Isolation;
  capacity: DriverCapacity;
  /** Folders of data sources lie below one of these. */
  dataRoots: readonly string[];
  /** Whether administrators may run start scripts where nothing isolates them. */
  allowsUnisolated: boolean;
}

/** Of a store that runs nothing: for commands that need none. */
export const NO_MACHINE: Machine = {
  driver: 'none',
  isolation: { level: 'L0', reason: 'nothing runs here' },
  capacity: { cpuMillis: 0, memoryMb: 0, gpus: [] },
  dataRoots: [],
  allowsUnisolated: false,
};
