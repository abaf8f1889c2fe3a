import { mkdir, readdir, readFile, realpath, rm, rmdir, stat, writeFile } from 'node:fs/promises';
import { availableParallelism, totalmem } from 'node:os';
import { join } from 'node:path';
import { closeAll, DISK_FULL } from 'capstan/internal';
import {
  type Driver,
  type DriverCapacity,
  DriverError,
  type DriverHandle,
  type Isolation,
  type MonitoredSpec,
  type ReplicaAddress,
  type ReplicaEvent,
  type ReplicaSpec,
  type ReplicaUsage,
} from '../driver';
import type { LogStore } from '../logs/log-store';
import { chooseAddress, socketFolder } from './address';
import { CacheFolders, hardLimit, locateFolder, ownerOf } from './cache-folders';
import { type CgroupFiles, type Cgroups, openCgroups } from './cgroups';
import { gpuDevices, type GpuFiles, type GpuProgram, listGpus } from './gpus';
import { checkBindings, linkInputs, prepareHome } from './home';
import { probeIsolation, isolatedInput } from './probe';
import { type Intervals, Replica } from './replica';
import { isAlive, isMissing, ReplicaFolder, type SupervisorState, toReference } from './replica-folder';
import { removeFolder } from './remove-folder';
import { findSandbox, launch, type SandboxInput } from './sandbox';
import { unlessAborted } from './unless-aborted';
import { UserIds } from './user-ids';
import {
  CONTAINER_PORT,
  INNER_HOST,
  commandOf,
  environmentOf,
  type Level,
  PRODUCTION_PORT,
  WORKSPACE_UID,
  layoutOf,
} from './replica-layout';

export interface ProcessDriverOptions {
  /** Hidden from replicas. Contains `replicas`, with a folder for each. */
  dataDir: string;
  logs: LogStore;
  /** Use this level instead of the best available one. */
  level?: Level;
  /** Further files and folders to hide from replicas. */
  hiddenPaths?: readonly string[];
  /** What one replica may add to its home. */
  replicaDiskBytes?: number;
  intervals?: Partial<Intervals & { retentionMs: number }>;
  /** Replaces the machine's control groups in tests. */
  cgroupFiles?: CgroupFiles;
  /** Replaces the machine's GPU files in tests. */
  gpuFiles?: GpuFiles;
  /** Replaces nvidia-smi in tests. */
  gpuProgram?: GpuProgram;
}

/** Longest socket name: an id and `.sock`. */
const LONGEST_SOCKET_NAME = 40;
/** The largest share of a replica's memory that its files in memory may take: half of it. */
const SCRATCH_SHARE = 0.5;
/** Folders of ended replicas are removed after this time. The controller has read what it needs by then. */
const RETENTION_MS = 3_600_000;

export const LIMITED = 'Memory and CPU time are limited by control groups.';
export const WATCHED =
  'Memory is monitored and CPU time is shared, because the service cannot create control groups here.';

/** Runs replicas as processes of this machine. Each has a supervisor process that outlives the service. */
export class ProcessDriver implements Driver {
  readonly name = 'process';
  readonly isolation: Isolation;
  readonly #options: ProcessDriverOptions;
  readonly #sandbox: string;
  readonly #root: string;
  readonly #sockets: string;
  readonly #hiddenPaths: readonly string[];
  readonly #cgroups: Cgroups | undefined;
  readonly #replicas = new Map<string, Replica>();
  /** Replicas that have ended, but whose last log lines do not fit on the disk yet. */
  readonly #lingering = new Set<Replica>();
  /** Starts in progress, so that concurrent calls start a replica once. */
  readonly #starting = new Map<string, Promise<DriverHandle>>();
  readonly #userIds = new UserIds();
  readonly #cacheFolders = new CacheFolders();
  /** The shared folders of running replicas, by replica. */
  readonly #caches = new Map<string, string>();
  readonly #listeners = new Set<(event: ReplicaEvent) => void>();
  readonly #retentionMs: number;
  readonly #sweeping: NodeJS.Timeout;
  #gpus: DriverCapacity['gpus'] | undefined;

  /** Throws Error if this machine cannot run replicas, or not at the requested level. */
  static async open(options: ProcessDriverOptions): Promise<ProcessDriver> {
    const sandbox = findSandbox();
    if (process.platform !== 'linux') throw new Error(`deployments require Linux, got ${process.platform}`);
    if (sandbox === undefined)
      throw new Error(
        'the helper program capstan_sandbox is missing: run "npm run build:addon" (requires python3, make and g++)',
      );
    await mkdir(join(options.dataDir, 'replicas'), { recursive: true, mode: 0o700 });
    const dataDir = await realpath(options.dataDir);
    const root = join(dataDir, 'replicas');
    const sockets = socketFolder(dataDir, LONGEST_SOCKET_NAME);
    await mkdir(sockets, { recursive: true, mode: 0o700 });
    if ((await stat(sockets)).uid !== process.geteuid!()) throw new Error(`${sockets} belongs to another user`);
    const hiddenPaths = [dataDir, ...(options.hiddenPaths ?? [])];
    const isolation = await probeIsolation({
      sandbox,
      replicas: root,
      sockets,
      hiddenPaths,
      ...(options.level === undefined ? {} : { level: options.level }),
    });
    const driver = new ProcessDriver({ ...options, dataDir }, { sandbox, root, sockets, hiddenPaths, isolation });
    await driver.#holdUserIds();
    return driver;
  }

  /** Finds the user ids of running replicas, also of those that are not adopted yet. */
  async #holdUserIds(): Promise<void> {
    for (const name of await this.list()) {
      const note = await readNote(new ReplicaFolder(this.#root, name)).catch(() => undefined);
      if (note?.uid !== undefined) this.#userIds.hold(name, note.uid, note.cache);
    }
  }

  private constructor(
    options: ProcessDriverOptions,
    {
      sandbox,
      root,
      sockets,
      hiddenPaths,
      isolation,
    }: { sandbox: string; root: string; sockets: string; hiddenPaths: readonly string[]; isolation: Isolation },
  ) {
    this.#options = options;
    this.#sandbox = sandbox;
    this.#root = root;
    this.#sockets = sockets;
    this.#hiddenPaths = hiddenPaths;
    this.#cgroups = openCgroups(options.cgroupFiles);
    this.isolation = { ...isolation, reason: `${isolation.reason} ${this.#cgroups === undefined ? WATCHED : LIMITED}` };
    this.#retentionMs = options.intervals?.retentionMs ?? RETENTION_MS;
    this.#sweeping = setInterval(() => void this.#sweep().catch(() => {}), this.#retentionMs);
    this.#sweeping.unref();
  }

  async capacity(): Promise<DriverCapacity> {
    let gpuProblem: string | undefined;
    this.#gpus ??= await listGpus(this.#options.gpuProgram).catch((error: Error) => {
      gpuProblem = error.message;
      return undefined;
    });
    const constrained = process.constrainedMemory();
    const total = constrained !== undefined && constrained > 0 ? Math.min(constrained, totalmem()) : totalmem();
    return {
      cpuMillis: availableParallelism() * 1_000,
      memoryMb: Math.floor(total / 2 ** 20),
      gpus: this.#gpus ?? [],
      ...(gpuProblem === undefined ? {} : { gpuProblem }),
    };
  }

  ensure(spec: ReplicaSpec, signal: AbortSignal = new AbortController().signal): Promise<DriverHandle> {
    const running = this.#replicas.get(spec.id);
    if (running !== undefined) return Promise.resolve(handleOf(running));
    const starting =
      this.#starting.get(spec.id) ??
      this.#ensure(spec, signal)
        .catch(rethrowDiskFull)
        .finally(() => this.#starting.delete(spec.id));
    this.#starting.set(spec.id, starting);
    return starting;
  }

  async #ensure(spec: ReplicaSpec, signal: AbortSignal): Promise<DriverHandle> {
    const folder = new ReplicaFolder(this.#root, spec.id);
    const supervisor = await folder.supervisor();
    const found =
      supervisor !== undefined && isAlive(supervisor) ? await this.#adopt(spec, folder, supervisor) : undefined;
    if (found !== undefined) return found;
    return this.#start(spec, folder, signal).catch((error: unknown) => {
      this.#userIds.release(spec.id);
      throw error;
    });
  }

  async adopt(_reference: string, spec: MonitoredSpec): Promise<DriverHandle | undefined> {
    const known = this.#replicas.get(spec.id);
    if (known !== undefined) return handleOf(known);
    const folder = new ReplicaFolder(this.#root, spec.id);
    // NOTE: the folder decides, not the reference: the service may have died before it saved the reference.
    const supervisor = await folder.supervisor();
    if (supervisor === undefined || (!isAlive(supervisor) && (await folder.exit()) === undefined)) return undefined;
    return this.#adopt(spec, folder, supervisor);
  }

  async #adopt(
    spec: MonitoredSpec,
    folder: ReplicaFolder,
    supervisor: SupervisorState,
  ): Promise<DriverHandle | undefined> {
    const note = await readNote(folder);
    return note === undefined ? undefined : handleOf(this.#monitor(spec, folder, supervisor, note));
  }

  async #start(spec: ReplicaSpec, folder: ReplicaFolder, signal: AbortSignal): Promise<DriverHandle> {
    // A folder on a file system that hangs does not delay the end of the start.
    const { home, note } = await unlessAborted(signal, this.#prepare(spec, folder));
    await this.#launch(spec, folder, home, note, signal);
    const supervisor = await folder.supervisor();
    if (supervisor === undefined) throw new DriverError('driver_lost', 'The supervisor did not report its state');
    return handleOf(this.#monitor(spec, folder, supervisor, note));
  }

  /** All training containers have one user, so that the owner of a workspace is known before it is used. */
  async #userOf({ id, home }: ReplicaSpec, cache: string | undefined): Promise<number> {
    if (home?.mode === 'rw') return WORKSPACE_UID;
    return cache === undefined ? this.#userIds.take(id) : this.#userIds.take(id, cache, await ownerOf(cache));
  }

  /** Does a step for the shared folder of a replica. Returns undefined if it has none, or one that cannot be used. */
  async #tryCache(
    { cache, logId, ordinal }: ReplicaSpec,
    step: (folder: string) => Promise<string>,
  ): Promise<string | undefined> {
    if (cache === null) return undefined;
    try {
      return await step(cache.folder);
    } catch (error) {
      const { message } = error as Error;
      await this.#options.logs.note(logId, ordinal, `The prefix cache is not kept on the disk: ${message}`);
      return undefined;
    }
  }

  /** Checks and prepares the files of a start. Starts nothing. */
  async #prepare(spec: ReplicaSpec, folder: ReplicaFolder): Promise<{ home: string; note: Note }> {
    const { level } = this.isolation;
    const located = await this.#tryCache(spec, locateFolder);
    const owner = level === 'L2' && process.geteuid!() === 0 ? await this.#userOf(spec, located) : undefined;
    await checkBindings(spec, level, owner !== undefined);
    await mkdir(join(folder.path, 'root'), { recursive: true, mode: 0o700 });
    await mkdir(folder.spool, { recursive: true, mode: 0o700 });
    const home = await prepareHome(spec, folder, owner).catch(async (error: unknown) => {
      // An incomplete copy only wastes disk space.
      await removeFolder(folder.home).catch(() => {});
      throw error;
    });
    if (level !== 'L2') await linkInputs(spec, folder);
    const cache =
      located && (await this.#tryCache(spec, () => this.#cacheFolders.prepare(located, owner ?? process.geteuid!())));
    const address = await chooseAddress(level, spec, this.#sockets);
    const { logId, ordinal, isProduction, healthPath } = spec;
    const note: Note = { level, address, spec: { logId, ordinal, isProduction, healthPath }, uid: owner, cache };
    await writeFile(folder.noteFile, JSON.stringify(note), { mode: 0o600 });
    return { home, note };
  }

  async #launch(
    spec: ReplicaSpec,
    folder: ReplicaFolder,
    home: string,
    { address, uid, cache }: Note,
    signal: AbortSignal,
  ): Promise<void> {
    const layout = layoutOf(this.isolation.level, folder, spec, address, cache);
    const problems: string[] = [];
    const cgroups = this.#cgroups?.create(groupOf(spec.id), spec, (problem) => problems.push(problem)) ?? [];
    for (const problem of problems) await this.#options.logs.note(spec.logId, spec.ordinal, problem);
    if (cache !== undefined) await this.#limitCache(cache, spec);
    const common: SandboxInput = {
      arg: commandOf(spec, layout),
      env: environmentOf(spec, layout),
      cwd: layout.home,
      cgroup: cgroups,
      memory_bytes: cgroups.length === 0 ? spec.memoryMb * 2 ** 20 : 0,
      home,
      disk_bytes: this.#options.replicaDiskBytes,
      cache,
      cache_bytes: spec.cache === null ? undefined : hardLimit(spec.cache),
      scratch_bytes: Math.ceil(spec.memoryMb * 2 ** 20 * SCRATCH_SHARE),
    };
    const input =
      address.type === 'unix'
        ? isolatedInput(folder, this.#hiddenPaths, {
            ...common,
            ...(uid === undefined ? {} : { uid, gid: uid }),
            socket: address.path,
            input: spec.inputs.map(({ mount, path }) => `${mount}=${path}`),
            device: gpuDevices(spec.gpuUuids, this.#options.gpuFiles),
            // A training container may listen on loopback. A deployment must be reachable.
            inner_host: spec.isProduction ? INNER_HOST : '127.0.0.1',
            inner_port: spec.isProduction ? PRODUCTION_PORT : CONTAINER_PORT,
          })
        : { dir: folder.path, ...common };
    const onEnd = (): void => void this.#replicas.get(spec.id)?.checkAlive();
    await launch(this.#sandbox, input, onEnd, signal).catch((error: Error) => {
      throw new DriverError(launchFailure(error.message), `The replica did not start: ${error.message}`);
    });
  }

  /** Gives the replicas that share a folder with a new one the limit of the new one. */
  async #limitCache(folder: string, spec: ReplicaSpec): Promise<void> {
    if (spec.cache === null) return;
    const limit = String(hardLimit(spec.cache));
    const others = [...this.#caches].filter(([, other]) => other === folder);
    // On a full disk the others keep their limit.
    for (const [replicaId] of others)
      await writeFile(new ReplicaFolder(this.#root, replicaId).cacheLimitFile, limit, { mode: 0o600 }).catch(() => {});
  }

  #monitor(
    spec: MonitoredSpec,
    folder: ReplicaFolder,
    supervisor: SupervisorState,
    { level, address, uid, cache }: Note,
  ): Replica {
    if (uid !== undefined) this.#userIds.hold(spec.id, uid, cache);
    if (cache !== undefined) this.#caches.set(spec.id, cache);
    const { logs, intervals = {} } = this.#options;
    const replica = new Replica({
      spec,
      level,
      folder,
      address,
      supervisor,
      logs,
      intervals,
      emit: (event) => this.#emit(event),
    });
    this.#replicas.set(spec.id, replica);
    return replica;
  }

  async list(): Promise<string[]> {
    const names = (await readdir(this.#root)).filter((name) => name.startsWith('rep_'));
    const supervisors = await Promise.all(names.map((name) => new ReplicaFolder(this.#root, name).supervisor()));
    return names.filter((_name, i) => supervisors[i] !== undefined && isAlive(supervisors[i]));
  }

  observe(listener: (event: ReplicaEvent) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  #emit(event: ReplicaEvent): void {
    const ended = event.type === 'exited' ? this.#replicas.get(event.replicaId) : undefined;
    if (ended !== undefined) {
      this.#replicas.delete(event.replicaId);
      this.#userIds.release(event.replicaId);
      this.#lingering.add(ended);
      void ended.logWritten.then(() => this.#lingering.delete(ended));
      // The disk is needed now, not when the folder expires.
      if ('cause' in event && event.cause === 'disk_quota_exceeded') this.#freeDisk(event.replicaId);
      this.#caches.delete(event.replicaId);
    }
    for (const listener of this.#listeners) listener(event);
  }

  #freeDisk(replicaId: string): void {
    const folder = new ReplicaFolder(this.#root, replicaId);
    void removeFolder(folder.home).catch(() => {});
    const cache = this.#caches.get(replicaId);
    if (cache === undefined) return;
    void folder
      .exit()
      .then((exit) => (exit?.disk === 'cache' ? removeFolder(cache) : undefined))
      .catch(() => {});
  }

  async stop(replicaId: string, graceMs: number): Promise<void> {
    await this.#starting.get(replicaId)?.catch(() => {});
    await (this.#replicas.get(replicaId) ?? (await this.#find(replicaId)))?.stop(graceMs);
  }

  /**
   * Finds a replica of an earlier process that was not adopted. Its folder has enough to stop it and to keep its last
   * log lines.
   */
  async #find(replicaId: string): Promise<Replica | undefined> {
    const folder = new ReplicaFolder(this.#root, replicaId);
    const [supervisor, note] = [await folder.supervisor(), await readNote(folder)];
    if (supervisor === undefined || note === undefined || !isAlive(supervisor)) return undefined;
    return (
      this.#replicas.get(replicaId) ??
      this.#monitor({ id: replicaId, secret: '', ...note.spec }, folder, supervisor, note)
    );
  }

  usage(replicaId: string): Promise<ReplicaUsage | undefined> {
    return Promise.resolve(this.#replicas.get(replicaId)?.usage());
  }

  async detach(): Promise<void> {
    clearInterval(this.#sweeping);
    this.#listeners.clear();
    await Promise.all([...this.#starting.values()].map((starting) => starting.catch(() => {})));
    const replicas = [...this.#replicas.values(), ...this.#lingering];
    await closeAll([
      // Fails while replicas still have sockets in it.
      () => rmdir(this.#sockets).catch(() => {}),
      () => this.#sweep().catch(() => {}),
      ...replicas.map((replica) => () => replica.close()),
    ]);
    this.#replicas.clear();
  }

  /** Removes what ended replicas left: control groups and sockets of killed supervisors, and later their folders. */
  async #sweep(): Promise<void> {
    const lingering = new Set([...this.#lingering].map(({ id }) => id));
    for (const name of await readdir(this.#root)) {
      if (this.#replicas.has(name) || this.#starting.has(name) || lingering.has(name)) continue;
      await this.#remove(name).catch(() => {});
    }
  }

  async #remove(name: string): Promise<void> {
    const folder = new ReplicaFolder(this.#root, name);
    const supervisor = await folder.supervisor();
    if (supervisor !== undefined && isAlive(supervisor)) return;
    const hasProcesses = this.#cgroups?.remove(groupOf(name)) === false;
    await rm(join(this.#sockets, `${name}.sock`), { force: true });
    const { mtimeMs } = await stat(folder.exitFile).catch(() => stat(folder.path));
    if (hasProcesses || mtimeMs > Date.now() - this.#retentionMs) return;
    this.#userIds.release(name);
    await removeFolder(folder.path);
  }
}

function groupOf(replicaId: string): string {
  return `capstan_${replicaId}`;
}

function launchFailure(message: string): DriverError['reason'] {
  if (/^exec .*No such file/.test(message)) return 'image_missing';
  if (message.startsWith('home: ')) return 'data_binding_missing';
  return DISK_FULL.test(message) ? 'disk_full' : 'driver_lost';
}
/** Facts about a replica for a later service process. Stored in its folder. Contains no secrets. */
interface Note {
  level: Level;
  address: ReplicaAddress;
  spec: Pick<ReplicaSpec, 'logId' | 'ordinal' | 'isProduction' | 'healthPath'>;
  /** The user of its processes, if the service runs as root. */
  uid?: number | undefined;
  /** The folder that it shares with other replicas. */
  cache?: string | undefined;
}

/** Returns undefined if the file is missing or incomplete, as on a full disk. The replica was not started then. */
async function readNote(folder: ReplicaFolder): Promise<Note | undefined> {
  try {
    return JSON.parse(await readFile(folder.noteFile, 'utf8')) as Note;
  } catch (error) {
    if (isMissing(error) || error instanceof SyntaxError) return undefined;
    throw error;
  }
}

function handleOf({ address, supervisor }: Replica): DriverHandle {
  return { reference: toReference(supervisor), address };
}

/** Rethrows an error of a full disk as DriverError `disk_full`. */
function rethrowDiskFull(error: Error): never {
  if (error instanceof DriverError || !DISK_FULL.test(error.message)) throw error;
  throw new DriverError(
    'disk_full',
    `The replica did not start because the disk of the data directory is full: ${error.message}`,
  );
}
