import { counted } from 'capstan/internal';
import type { DriverCapacity } from '../driver/driver';
import type { ErrorReason } from '../deployments/version-state';
import type { ReplicaResources } from './records';

export interface Shortage {
  reason: Extract<ErrorReason, 'insufficient_gpu' | 'insufficient_memory' | 'quota_exceeded'>;
  /** What is needed and what is available. */
  message: string;
}

export interface PoolUse {
  takenGpus: readonly string[];
  usedMemoryMb: number;
  /** The owner's quota. Null means unlimited. */
  gpuQuota: number | null;
  ownerGpus: number;
}

/**
 * The free resources of the machine. A GPU belongs to one replica, memory is reserved per replica, CPU time is shared.
 * NOTE: use a pool only inside the transaction that loaded it and saves the replicas.
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

  /** Returns what `count` replicas lack if `released` were freed first, or undefined if they fit. */
  shortage(
    { gpuCount, gpuType, memoryMb }: ReplicaResources,
    count: number,
    released: readonly { gpuUuids: readonly string[]; memoryMb: number }[] = [],
  ): Shortage | undefined {
    const releasedGpus = new Set(released.flatMap(({ gpuUuids }) => gpuUuids));
    const gpus = gpuCount * count;
    const free = this.#capacity.gpus.filter(
      ({ uuid, type }) => (!this.#taken.has(uuid) || releasedGpus.has(uuid)) && (gpuType === null || type === gpuType),
    ).length;
    if (gpus > free)
      return {
        reason: 'insufficient_gpu',
        message: `needs ${counted(gpus, 'free GPU')}${gpuType === null ? '' : ` of type ${gpuType}`}, ${free} available`,
      };
    const quotaLeft = this.#gpuQuota === null ? Infinity : this.#gpuQuota - this.#ownerGpus + releasedGpus.size;
    if (gpus > quotaLeft)
      return {
        reason: 'quota_exceeded',
        message: `needs ${counted(gpus, 'GPU')}, ${Math.max(0, quotaLeft)} left of the owner's quota of ${this.#gpuQuota}`,
      };
    const memory = memoryMb * count;
    const freeMb =
      this.#capacity.memoryMb - this.#usedMemoryMb + released.reduce((sum, replica) => sum + replica.memoryMb, 0);
    if (memory > freeMb)
      return {
        reason: 'insufficient_memory',
        message: `needs ${memory} MB of memory, ${Math.max(0, freeMb)} MB available`,
      };
    return undefined;
  }

  /** Reserves the resources of one replica and returns its GPUs. The replica must fit. */
  acquire({ gpuCount, gpuType, memoryMb }: ReplicaResources): string[] {
    const uuids = this.#capacity.gpus
      .filter(({ uuid, type }) => !this.#taken.has(uuid) && (gpuType === null || type === gpuType))
      .slice(0, gpuCount)
      .map(({ uuid }) => uuid);
    for (const uuid of uuids) this.#taken.add(uuid);
    this.#usedMemoryMb += memoryMb;
    this.#ownerGpus += uuids.length;
    return uuids;
  }

  release({ gpuUuids, memoryMb }: { gpuUuids: readonly string[]; memoryMb: number }): void {
    for (const uuid of gpuUuids) this.#taken.delete(uuid);
    this.#usedMemoryMb -= memoryMb;
    this.#ownerGpus -= gpuUuids.length;
  }
}
