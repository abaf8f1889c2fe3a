/** Memory and descriptors of one process of the service. */
import type { ServiceProcess } from './service-process';

interface Sample {
  pid: number;
  minute: number;
  residentMib: number;
  numDescriptors: number;
}

export interface Growth {
  minutes: number;
  residentMib: number;
  residentGrowthMib: number;
  descriptors: number;
  descriptorGrowth: number;
}

/** The start of a process is left out, because its memory still grows to its usual size. */
const WARM_UP_SHARE = 0.3;
/** A shorter life says nothing. */
const MIN_MINUTES = 5;
export const MAX_GROWTH_MIB = 30;
export const MAX_DESCRIPTOR_GROWTH = 8;

export class MemorySamples {
  readonly #samples: Sample[] = [];
  readonly #startMs = performance.now();

  take(service: ServiceProcess): void {
    try {
      this.#samples.push({
        pid: service.pid!,
        minute: (performance.now() - this.#startMs) / 60_000,
        residentMib: service.residentMib(),
        numDescriptors: service.numDescriptors(),
      });
    } catch {
      // The process has ended.
    }
  }

  /** Compares both halves of the last process's life. Undefined if it was too short. */
  growth(): Growth | undefined {
    const { pid } = this.#samples.at(-1)!;
    const life = this.#samples.filter((sample) => sample.pid === pid);
    const minutes = life.at(-1)!.minute - life[0].minute;
    if (minutes < MIN_MINUTES) return undefined;
    const steady = life.slice(Math.floor(life.length * WARM_UP_SHARE));
    const half = Math.floor(steady.length / 2);
    const mean = (samples: readonly Sample[], read: (sample: Sample) => number): number =>
      samples.reduce((sum, sample) => sum + read(sample), 0) / samples.length;
    const compare = (read: (sample: Sample) => number): [value: number, growth: number] => {
      const last = mean(steady.slice(half), read);
      return [last, last - mean(steady.slice(0, half), read)];
    };
    const [residentMib, residentGrowthMib] = compare((sample) => sample.residentMib);
    const [descriptors, descriptorGrowth] = compare((sample) => sample.numDescriptors);
    return { minutes, residentMib, residentGrowthMib, descriptors, descriptorGrowth };
  }
}
