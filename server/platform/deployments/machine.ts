import type { DriverCapacity, Isolation } from '../driver/driver';

/** What the driver found at startup, and the service's options. Specs are checked against it. Structured-cloneable. */
export interface Machine {
  driver: string;
  isolation: Isolation;
  capacity: DriverCapacity;
  /** Data sources are folders below one of these. */
  dataRoots: readonly string[];
  /** Whether administrators may run start scripts without isolation. */
  allowsUnisolated: boolean;
}

/** For commands that open the store and run no replicas. */
export const NO_MACHINE: Machine = {
  driver: 'none',
  isolation: { level: 'L0', reason: 'nothing runs here' },
  capacity: { cpuMillis: 0, memoryMb: 0, gpus: [] },
  dataRoots: [],
  allowsUnisolated: false,
};
