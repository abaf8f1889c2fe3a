import { counted } from 'capstan/internal';
import type { DriverCapacity } from '../driver/driver';
import type { ErrorReason } from '../deployments/version-state';
import type { Quotas } from '../accounts/quota-columns';
import type { ReplicaRecord, ReplicaResources } from './records';

export interface Shortage {
  reason: Extract<ErrorReason, 'insufficient_gpu' | 'insufficient_memory' | 'quota_exceeded'>;
  /** What is needed and what is available. */
  message: string;
}

export interface PoolUse {
  takenGpus: readonly string[];
  usedMemoryMb: number;
  quotas: Pick<Quotas, 'quota_gpu' | 'quota_cpu_millis' | 'quota_memory_mb'>;
  /** In use by the owner. */
  ownerGpus: number;
  ownerCpuMillis: number;
  ownerMemoryMb: number;
}

/** What one replica holds until it has exited. */
export type Held = Pick<ReplicaRecord, 'gpuUuids' | 'cpuMillis' | 'memoryMb'>;

/**
 * The free resources of the machine. A GPU belongs to one replica, memory is reserved per replica, CPU time is shared.
 * A quota limits all three for one owner.
 * NOTE: use a pool only inside the transaction that loaded it and saves the replicas.
 */
export class Pool {
  readonly #capacity: DriverCapacity;
  readonly #taken: Set<string>;
  readonly #quotas: PoolUse['quotas'];
  #usedMemoryMb: number;
  #ownerGpus: number;
  #ownerCpuMillis: number;
  #ownerMemoryMb: number;

  constructor(capacity: DriverCapacity, use: PoolUse) {
    this.#capacity = capacity;
    this.#taken = new Set(use.takenGpus);
    this.#quotas = use.quotas;
    this.#usedMemoryMb = use.usedMemoryMb;
    this.#ownerGpus = use.ownerGpus;
    this.#ownerCpuMillis = use.ownerCpuMillis;
    this.#ownerMemoryMb = use.ownerMemoryMb;
  }

  /** Returns what `count` replicas lack if `released` were freed first, or undefined if they fit. */
  shortage(
    { gpuCount, gpuType, cpuMillis, memoryMb }: ReplicaResources,
    count: number,
    released: readonly Held[] = [],
  ): Shortage | undefined {
    const releasedGpus = new Set(released.flatMap(({ gpuUuids }) => gpuUuids));
    const releasedMb = released.reduce((sum, held) => sum + held.memoryMb, 0);
    const releasedMillis = released.reduce((sum, held) => sum + held.cpuMillis, 0);
    const gpus = gpuCount * count;
    const free = this.#capacity.gpus.filter(
      ({ uuid, type }) => (!this.#taken.has(uuid) || releasedGpus.has(uuid)) && (gpuType === null || type === gpuType),
    ).length;
    if (gpus > free)
      return {
        reason: 'insufficient_gpu',
        message: `needs ${counted(gpus, 'free GPU')}${gpuType === null ? '' : ` of type ${gpuType}`}, ${free} available`,
      };
    const { quota_gpu: gpuQuota, quota_cpu_millis: cpuQuota, quota_memory_mb: memoryQuota } = this.#quotas;
    const overQuota =
      exceeds(gpuQuota, this.#ownerGpus - releasedGpus.size, gpus, (n) => counted(n, 'GPU')) ??
      exceeds(cpuQuota, this.#ownerCpuMillis - releasedMillis, cpuMillis * count, (n) =>
        counted(n / 1000, 'CPU core'),
      ) ??
      exceeds(memoryQuota, this.#ownerMemoryMb - releasedMb, memoryMb * count, (n) => `${n} MiB of memory`);
    if (overQuota !== undefined) return overQuota;
    const freeMb = this.#capacity.memoryMb - this.#usedMemoryMb + releasedMb;
    if (memoryMb * count > freeMb)
      return {
        reason: 'insufficient_memory',
        message: `needs ${memoryMb * count} MiB of memory, ${Math.max(0, freeMb)} MiB available`,
      };
    return undefined;
  }

  /** Reserves the resources of one replica and returns its GPUs. The replica must fit. */
  acquire({ gpuCount, gpuType, cpuMillis, memoryMb }: ReplicaResources): string[] {
    const uuids = this.#capacity.gpus
      .filter(({ uuid, type }) => !this.#taken.has(uuid) && (gpuType === null || type === gpuType))
      .slice(0, gpuCount)
      .map(({ uuid }) => uuid);
    for (const uuid of uuids) this.#taken.add(uuid);
    this.#usedMemoryMb += memoryMb;
    this.#ownerGpus += uuids.length;
    this.#ownerCpuMillis += cpuMillis;
    this.#ownerMemoryMb += memoryMb;
    return uuids;
  }

  release({ gpuUuids, cpuMillis, memoryMb }: Held): void {
    for (const uuid of gpuUuids) this.#taken.delete(uuid);
    this.#usedMemoryMb -= memoryMb;
    this.#ownerGpus -= gpuUuids.length;
    this.#ownerCpuMillis -= cpuMillis;
    this.#ownerMemoryMb -= memoryMb;
  }
}

function exceeds(
  quota: number | null,
  used: number,
  needed: number,
  unit: (count: number) => string,
): Shortage | undefined {
  if (quota === null || needed <= quota - used) return undefined;
  return {
    reason: 'quota_exceeded',
    message: `needs ${unit(needed)}, ${unit(Math.max(0, quota - used))} left of the owner's quota of ${unit(quota)}`,
  };
}
