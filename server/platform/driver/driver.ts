/** Runs the replicas of versions and training containers. Has no access to the database, keys or the HTTP API. */
export interface Driver {
  readonly name: string;
  /** Determined by a probe at start. */
  readonly isolation: Isolation;
  capacity(): Promise<DriverCapacity>;
  /**
   * Starts the replica, or finds it running. Safe to repeat after a crash of this process. Resolves once the replica's
   * process exists; later changes are reported to {@link Driver.observe}. Throws DriverError. When the signal aborts,
   * it rejects soon, and from then on no process of the replica starts.
   */
  ensure(spec: ReplicaSpec, signal?: AbortSignal): Promise<DriverHandle>;
  /**
   * Finds a replica that an earlier service process started. If it has ended meanwhile, it is returned and its exit is
   * reported. Returns undefined when nothing is known of its end, as after a reboot. Rejects when it cannot find out.
   */
  adopt(reference: string, spec: MonitoredSpec): Promise<DriverHandle | undefined>;
  /** Returns the ids of all replicas that run on this machine, whichever service process started them. */
  list(): Promise<string[]>;
  /** Reports each change of each replica from now on. Returns a function that removes the listener. */
  observe(listener: (event: ReplicaEvent) => void): () => void;
  /**
   * Sends TERM to all its processes, and KILL after `graceMs`. Resolves after its exit is reported. May be repeated
   * with
   * a shorter `graceMs`.
   */
  stop(replicaId: string, graceMs: number): Promise<void>;
  /** Returns the current CPU and memory usage, or undefined when the replica has ended. */
  usage(replicaId: string): Promise<ReplicaUsage | undefined>;
  /** Stops monitoring. Replicas keep running and can be adopted later. */
  detach(): Promise<void>;
}

/**
 * How a replica gets port 80, and what separates replicas. Best first: L2 namespaces, L1 a separate loopback address,
 * L0 a free port.
 */
export interface Isolation {
  readonly level: 'L2' | 'L1' | 'L0';
  /** For users: what this level means, and why a better one is not available. */
  readonly reason: string;
}

export interface DriverCapacity {
  cpuMillis: number;
  memoryMb: number;
  gpus: { uuid: string; type: string; memoryMb: number }[];
  /** Why the GPUs cannot be listed now, although there may be some. A later call may find them. */
  gpuProblem?: string;
}

export interface ReplicaSpec {
  /** `rep_…`. Names its folder. */
  readonly id: string;
  /** Id of the version or container whose log the replica writes to. */
  readonly logId: string;
  readonly ordinal: number;
  /**
   * null: `capstan serve` with {@link ReplicaSpec.runtimeArgs}. Otherwise a shell script that /bin/sh runs in the home
   * folder.
   */
  readonly startCommand: string | null;
  readonly runtimeArgs: readonly string[];
  /**
   * A deployment serves on port 80 with PLATFORM_SERVING_PRODUCTION set. A training container serves on 8080 without
   * it.
   */
  readonly isProduction: boolean;
  readonly cpuMillis: number;
  readonly memoryMb: number;
  readonly gpuUuids: readonly string[];
  /** Includes secret values. Never logged. */
  readonly env: Readonly<Record<string, string>>;
  /** Folders of this machine, mounted read-only at /platform/input/NAME. */
  readonly inputs: readonly { mount: string; path: string }[];
  /**
   * `copy`: copied at each start. `rw`: used in place (training containers), with its owner and permissions. null: an
   * empty folder.
   */
  readonly home: { path: string; mode: 'copy' | 'rw' } | null;
  /**
   * A folder that outlives the replica, writable at /platform/cache: the built-in runtime keeps its prefix cache there.
   * Replicas with the same folder share it. Created if missing. If it cannot be used, the replica starts without it.
   * `maxMb` is the limit that this replica keeps, and `sharedMb` the largest one of the replicas that use the folder,
   * or have just used it.
   */
  readonly cache: { folder: string; maxMb: number; sharedMb: number; maxReplicas: number } | null;
  /** Path of the readiness check. Any 2xx means ready. */
  readonly healthPath: string;
  /** The built-in runtime requires this secret from its callers (`CAPSTAN_REPLICA_SECRET`). */
  readonly secret: string;
}

/** What monitoring a running replica needs. */
export type MonitoredSpec = Pick<ReplicaSpec, 'id' | 'logId' | 'ordinal' | 'isProduction' | 'healthPath' | 'secret'>;

export interface DriverHandle {
  /** For {@link Driver.adopt} by a later process: for example the process id, its start time and the boot id. */
  readonly reference: string;
  readonly address: ReplicaAddress;
}

/** Where the gateway sends requests. */
export type ReplicaAddress =
  | { readonly type: 'tcp'; readonly host: string; readonly port: number }
  | { readonly type: 'unix'; readonly path: string };

export type ReplicaEvent =
  /** The health check passes. Reported again after each recovery. */
  | { type: 'ready'; replicaId: string }
  /** The replica runs but no longer passes its health check. Reported only after `ready`. */
  | { type: 'unready'; replicaId: string; message: string }
  /**
   * The replica listens at an unreachable address or port, or its health path fails. Reported while it starts; it may
   * recover.
   */
  | ({ type: 'misplaced'; replicaId: string } & Misplaced)
  /** The problem of `misplaced` is resolved: the replica listens where it should, but is not ready yet. */
  | { type: 'placed'; replicaId: string }
  /**
   * The replica has ended. Its log is complete, unless the disk is full. `cause`: when known, or suggested by its log.
   * `message`: for users; states how certain the cause is. `wasStopped`: it ended on request. `refusedFlag`: it refused
   * a flag, so it would end in the same way again.
   */
  | {
      type: 'exited';
      replicaId: string;
      exitCode: number | null;
      signal: string | null;
      cause?: ExitCause;
      message: string;
      wasStopped: boolean;
      refusedFlag?: true;
    };

export interface Misplaced {
  readonly reason: 'port_80_not_bound' | 'wrong_port' | 'bound_to_loopback' | 'health_check_failed';
  readonly message: string;
}

export type ExitCause = 'out_of_memory' | 'gpu_out_of_memory' | 'disk_full' | 'disk_quota_exceeded';

export interface ReplicaUsage {
  /** Percent of one core. */
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
