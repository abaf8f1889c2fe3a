import type { DriverCapacity } from '../driver/driver';
import type { ErrorReason } from './version-state';
import type { Needs } from './work';

export interface Shortage {
  reason: Extract<ErrorReason, 'insufficient_gpu' | 'insufficient_memory' | 'quota_exceeded'>;
  /** What is wanted, and what there is. */
  message: string;
}

export interface PoolUse {
  takenGpus: readonly string[];
  usedMemoryMb: number;
  /** Of the owner: null is no bound. */
  gpuQuota: number | null;
  ownerGpus: number;
}

/**
 * What the machine has left. A GPU belongs to one replica; memory is set aside for each; processor time is shared. Only ever used inside the transaction that read it and writes what was taken.
 */
export class Pool {
  readonly #capacity: DriverCapacity;
  readonly #taken: Set<string>;
  readonly #gpuQuota: number | null;
  #usedMemoryMb: number;
  #ownerGpus: number;

  constructor(capacity: DriverCapacity, { takenGpus, usedMemoryMb, gpuQuota, ownerGpus }: PoolUse) {
    this.#capacity = capacity;
    this.#taken = new Set(takenGpus);
    this.#usedMemoryMb = usedMemoryMb;
    this.#gpuQuota = gpuQuota;
    this.#ownerGpus = ownerGpus;
  }

  /** Why so many replicas do not fit now, were `returned` given back first; undefined when they do. */
  shortage(
    { gpuCount, gpuType, memoryMb }: Needs,
    count: number,
    returned: readonly { gpuUuids: readonly string[]; memoryMb: number }[] = [],
  ): Shortage | undefined {
    const back = new Set(returned.flatMap(({ gpuUuids }) => gpuUuids));
    const gpus = gpuCount * count;
    const free = this.#capacity.gpus.filter(
      ({ uuid, type }) => (!this.#taken.has(uuid) || back.has(uuid)) && (gpuType === null || type === gpuType),
    ).length;
    if (gpus > free)
      return {
        reason: 'insufficient_gpu',
        message: `needs ${gpus} free GPU${gpus === 1 ? '' : 's'}${gpuType === null ? '' : ` of type ${gpuType}`}; there ${free === 1 ? 'is' : 'are'} ${free}`,
      };
    const quotaLeft = this.#gpuQuota === null ? Infinity : this.#gpuQuota - this.#ownerGpus + back.size;
    if (gpus > quotaLeft)
      return {
        reason: 'quota_exceeded',
        message: `needs ${gpus} GPU${gpus === 1 ? '' : 's'}; the owner's quota of ${this.#gpuQuota} leaves ${Math.max(0, quotaLeft)}`,
      };
    const memory = memoryMb * count;
    const freeMb =
      this.#capacity.memoryMb - this.#usedMemoryMb + returned.reduce((sum, replica) => sum + replica.memoryMb, 0);
    if (memory > freeMb)
      return {
        reason: 'insufficient_memory',
        message: `needs ${memory} MB of memory; ${Math.max(0, freeMb)} MB are not set aside for others`,
      };
    return undefined;
  }

  /** For one replica that fits: its GPUs. */
  take({ gpuCount, gpuType, memoryMb }: Needs): string[] {
    const uuids = this.#capacity.gpus
      .filter(({ uuid, type }) => !this.#taken.has(uuid) && (gpuType === null || type === gpuType))
      .slice(0, gpuCount)
      .map(({ uuid }) => uuid);
    for (const uuid of uuids) this.#taken.add(uuid);
    this.#usedMemoryMb += memoryMb;
    this.#ownerGpus += uuids.length;
    return uuids;
  }

  give({ gpuUuids, memoryMb }: { gpuUuids: readonly string[]; memoryMb: number }): void {
    for (const uuid of gpuUuids) this.#taken.delete(uuid);
    this.#usedMemoryMb -= memoryMb;
    this.#ownerGpus -= gpuUuids.length;
  }
}
