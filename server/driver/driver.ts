/** Runs the replicas of versions and training containers. Knows no database, no keys, no HTTP interface. */
export interface Driver {
  readonly name: string;
  /** What was probed at start. */
  readonly isolation: Isolation;
  capacity(): Promise<DriverCapacity>;
  /**
   * Makes the replica run, or finds it running: safe to call again after a crash of this process. Resolves once its process exists; what becomes of it is told to {@link Driver.observe}.
   * @throws DriverError
   */
  ensure(spec: ReplicaSpec): Promise<DriverHandle>;
  /**
   * Finds a replica that an earlier process of the service started. One that ended while nobody looked is found as well, and told as exited at once; undefined when nothing is known of its end, as after
   * a restart of the machine.
   */
  adopt(reference: string, spec: ReplicaSpec): Promise<DriverHandle | undefined>;
  /** Tells every change of every replica from now on; returns what ends it. */
  observe(listener: (event: ReplicaEvent) => void): () => void;
  /** TERM to all its processes, KILL after `graceMs`; resolves when it is gone and told as exited. Safe to call again, also in more of a hurry. */
  stop(replicaId: string, graceMs: number): Promise<void>;
  /** CPU and memory right now; undefined where it is gone. */
  usage(replicaId: string): Promise<ReplicaUsage | undefined>;
  /** Stops looking; replicas run on, to be adopted. */
  detach(): Promise<void>;
}

/** How port 80 is had and what is kept apart, from the best: L2 namespaces, L1 an own loopback address, L0 a free port. */
export interface Isolation {
  readonly level: 'L2' | 'L1' | 'L0';
  /** For people: what this means, and why no better one could be had. */
  readonly reason: string;
}

export interface DriverCapacity {
  cpuMillis: number;
  memoryMb: number;
  gpus: { uuid: string; type: string; memoryMb: number }[];
}

export interface ReplicaSpec {
  /** `rep_…`; its folder and its logs go by it. */
  readonly id: string;
  /** Whose log it writes: a version or a container. */
  readonly logId: string;
  readonly ordinal: number;
  /** Null: `capstan serve` with {@link ReplicaSpec.runtimeArgs}. Else a shell script, run by /bin/sh in the home folder. */
  readonly startCommand: string | null;
  readonly runtimeArgs: readonly string[];
  /** A deployment serves on port 80 with PLATFORM_SERVING_PRODUCTION set, a training container on 8080 without. */
  readonly isProduction: boolean;
  readonly cpuMillis: number;
  readonly memoryMb: number;
  readonly gpuUuids: readonly string[];
  /** With secret values. Never logged. */
  readonly env: Readonly<Record<string, string>>;
  /** Folders of this machine, read-only at /platform/input/NAME. */
  readonly inputs: readonly { mount: string; path: string }[];
  /** Copied to the replica's own folder at each start (`copy`), or used as it is (`rw`: training containers); null: an empty one. */
  readonly home: { path: string; mode: 'copy' | 'rw' } | null;
  /** Asked for readiness: any 2xx. */
  readonly healthPath: string;
  /** What the built-in runtime demands of whoever calls it (`CAPSTAN_REPLICA_SECRET`). */
  readonly secret: string;
}

export interface DriverHandle {
  /** For {@link Driver.adopt} by a later process: process id, its start time and the boot id, or what the driver needs. */
  readonly reference: string;
  readonly address: ReplicaAddress;
}

/** Where requests go. */
export type ReplicaAddress =
  | { readonly type: 'tcp'; readonly host: string; readonly port: number }
  | { readonly type: 'unix'; readonly path: string };

export type ReplicaEvent =
  /** It answers its health path; told again after each time that it did not. */
  | { type: 'ready'; replicaId: string }
  /** It lives and does not answer any more; not said before it was ready. */
  | { type: 'unready'; replicaId: string; message: string }
  /** It listens where nobody asks, the two mistakes that the port rule invites, or has no health path. While it starts; it may still come right. */
  | ({ type: 'misplaced'; replicaId: string } & Misplaced)
  /** What was said by `misplaced` is no longer so: it listens where it should, and is not ready yet. */
  | { type: 'placed'; replicaId: string }
  /** Its whole log is there by then, unless the disk has no room for it. `cause`: where it is known, or its log speaks of it; `message` is for people, and says how sure that is. `wasStopped`: it was asked to. */
  | {
      type: 'exited';
      replicaId: string;
      exitCode: number | null;
      signal: string | null;
      cause?: ExitCause;
      message: string;
      wasStopped: boolean;
    };

export interface Misplaced {
  readonly reason: 'port_80_not_bound' | 'wrong_port' | 'bound_to_loopback' | 'health_check_failed';
  readonly message: string;
}

export type ExitCause = 'out_of_memory' | 'gpu_out_of_memory' | 'disk_full';

export interface ReplicaUsage {
  /** Of one core. */
  cpuPercent: number;
  memoryMb: number;
}

export class DriverError extends Error {
  override readonly name = 'DriverError';
  readonly reason: 'image_missing' | 'data_binding_missing' | 'not_isolated' | 'disk_full' | 'driver_lost';

  constructor(reason: DriverError['reason'], message: string) {
    super(message);
    this.reason = reason;
  }
}
