import { watch } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { writeFile } from 'node:fs/promises';
import type { MonitoredSpec, ReplicaAddress, ReplicaEvent, ReplicaUsage } from '../driver';
import type { LogStore } from '../logs/log-store';
import { explainExit, networkHint, PORT_REFUSED } from './exit-text';
import { checkReplica, lastingFailure, type HealthFailure } from './health';
import { checkListeners, isolationHint, listenersOf, ownListeners } from './listeners';
import { descendantsOf, UsageMeter } from './processes';
import { isAlive, type ReplicaExit, type ReplicaFolder, type SupervisorState } from './replica-folder';
import { SpoolReader } from './spool-reader';
import { CONTAINER_PORT, type Level, PRODUCTION_PORT } from './replica-layout';

export interface ReplicaOptions {
  spec: MonitoredSpec;
  level: Level;
  folder: ReplicaFolder;
  address: ReplicaAddress;
  supervisor: SupervisorState;
  logs: LogStore;
  emit: (event: ReplicaEvent) => void;
  intervals?: Partial<Intervals>;
}

export interface Intervals {
  /** Between health checks while the replica starts: `fastMs` at first, then `slowMs`. */
  fastMs: number;
  slowMs: number;
  /** Between health checks of a ready replica. */
  liveMs: number;
  /** A replica without listeners is not reported as misplaced before this time. */
  graceMs: number;
  /** Between checks whether the supervisor is alive, in case no file event reports its end. */
  aliveMs: number;
}

const INTERVALS: Intervals = { fastMs: 200, slowMs: 1_000, liveMs: 5_000, graceMs: 10_000, aliveMs: 2_000 };
const FAST_FOR_MS = 10_000;
/** A ready replica becomes unready after this many failed health checks in a row. */
const MAX_FAILED_CHECKS = 3;
const MAX_LAST_LINES = 50;
/** Time for the supervisor to act, in addition to the grace period. */
const SUPERVISOR_MS = 10_000;
/** Grace period of a supervisor that received no other. */
const DEFAULT_GRACE_MS = 30_000;

/** Monitors a running replica, whichever process started it: copies its log, checks its health and reports its end. */
export class Replica {
  readonly #options: ReplicaOptions;
  readonly #intervals: Intervals;
  readonly #closing = new AbortController();
  readonly #reader: SpoolReader;
  readonly #meter = new UsageMeter();
  readonly #lastLines: string[] = [];
  readonly #watchers: { close(): void }[] = [];
  readonly #ended: Promise<void>;
  #end!: () => void;
  /** Resolves when the last log lines are stored. Meaningful once the replica has ended. */
  logWritten: Promise<void> = Promise.resolve();
  #isEnding = false;
  #isReady = false;
  #misplaced: string | undefined;
  #hasHinted = false;

  constructor(options: ReplicaOptions) {
    this.#options = options;
    this.#intervals = { ...INTERVALS, ...options.intervals };
    const { spec, folder, logs } = options;
    this.#ended = new Promise((resolve) => {
      this.#end = resolve;
    });
    this.#reader = new SpoolReader({
      folder: folder.spool,
      logs,
      logId: spec.logId,
      replicaId: spec.id,
      ordinal: spec.ordinal,
      onLine: ({ text }) => this.#remember(text),
    });
    this.#watch(folder.spool, () => this.#readLog());
    this.#watch(folder.path, (name) => {
      if (name === 'exit') void this.checkAlive();
    });
    const timer = setInterval(() => {
      this.#readLog();
      void this.checkAlive();
    }, this.#intervals.aliveMs);
    timer.unref();
    this.#watchers.push({ close: () => clearInterval(timer) });
    this.#readLog();
    void this.#pollHealth();
    // Deferred until the creator has registered this replica.
    setImmediate(() => void this.checkAlive());
  }

  get address(): ReplicaAddress {
    return this.#options.address;
  }

  get supervisor(): SupervisorState {
    return this.#options.supervisor;
  }

  get id(): string {
    return this.#options.spec.id;
  }

  get logId(): string {
    return this.#options.spec.logId;
  }

  usage(): ReplicaUsage {
    return this.#meter.measure(descendantsOf(this.#options.supervisor.pid));
  }

  /** Stops the replica. Resolves when it has ended. */
  async stop(graceMs: number): Promise<void> {
    const { folder, supervisor } = this.#options;
    // If the disk is full, the supervisor keeps its default grace period. Stopping a replica may free the disk.
    const graceOfSupervisorMs = await writeFile(folder.stopFile, String(Math.max(0, Math.round(graceMs)))).then(
      () => graceMs,
      () => Math.max(graceMs, DEFAULT_GRACE_MS),
    );
    this.#signal('SIGTERM');
    // A service that ends leaves the rest to the supervisor.
    if (this.#closing.signal.aborted) return;
    const timer = setTimeout(() => this.#signal('SIGKILL'), graceOfSupervisorMs + SUPERVISOR_MS);
    this.#watchers.push({ close: () => clearTimeout(timer) });
    void this.checkAlive();
    await this.#ended;
    clearTimeout(timer);
    if (isAlive(supervisor)) this.#signal('SIGKILL');
  }

  #signal(signal: NodeJS.Signals): void {
    const { supervisor } = this.#options;
    if (isAlive(supervisor)) process.kill(supervisor.pid, signal);
  }

  /** Checks whether the supervisor is alive, and reports the end of the replica when it is not. */
  async checkAlive(): Promise<void> {
    if (this.#isEnding || this.#closing.signal.aborted || isAlive(this.#options.supervisor)) return;
    this.#isEnding = true;
    try {
      await this.#reportEnd(await this.#options.folder.exit());
    } catch {
      // A file cannot be read or written now. The next check repeats the report.
      this.#isEnding = false;
    }
  }

  async #reportEnd(exit: ReplicaExit | undefined): Promise<void> {
    const { spec, level, logs, emit } = this.#options;
    await this.#reader.readUnlessDiskFull();
    // Closed meanwhile: a later service process reports the end.
    if (this.#closing.signal.aborted) return;
    const event = explainExit(spec.id, level, exit, this.#lastLines);
    await logs.note(spec.logId, spec.ordinal, event.message);
    const isPortRefused =
      level !== 'L2' &&
      spec.isProduction &&
      !this.#isReady &&
      event.exitCode !== 0 &&
      !event.wasStopped &&
      this.#lastLines.some((line) => PORT_REFUSED.test(line));
    if (isPortRefused)
      emit({
        type: 'misplaced',
        replicaId: spec.id,
        reason: 'port_80_not_bound',
        message: `The replica ended, and its log mentions an address that it may not listen on${isolationHint(level)}`,
      });
    this.#endWatch();
    this.logWritten = this.#reader.read().then(() => this.#reader.close());
    emit(event);
    this.#end();
  }

  /** Stops monitoring. The replica keeps running. */
  async close(): Promise<void> {
    this.#endWatch();
    await this.#reader.close();
  }

  #endWatch(): void {
    this.#closing.abort();
    for (const watcher of this.#watchers.splice(0)) watcher.close();
  }

  #watch(path: string, listener: (name: string | null) => void): void {
    try {
      const watcher = watch(path, { persistent: false }, (_event, name) => listener(name));
      watcher.on('error', () => watcher.close());
      this.#watchers.push(watcher);
    } catch {
      // The machine allows no more watches. The timer polls instead.
    }
  }

  #readLog(): void {
    void this.#reader.read().catch(() => {});
  }

  #remember(text: string): void {
    this.#lastLines.push(text);
    if (this.#lastLines.length > MAX_LAST_LINES) this.#lastLines.shift();
    const { spec, level, logs } = this.#options;
    const hint = this.#hasHinted ? undefined : networkHint(text, level);
    if (hint === undefined) return;
    this.#hasHinted = true;
    void logs.note(spec.logId, spec.ordinal, hint);
  }

  async #pollHealth(): Promise<void> {
    const { spec, address, emit } = this.#options;
    const { signal } = this.#closing;
    const startedMs = performance.now();
    let numFailures = 0;
    while (!signal.aborted) {
      const failure = await checkReplica(address, spec.healthPath, spec.secret, signal);
      if (signal.aborted) return;
      numFailures = failure === undefined ? 0 : numFailures + 1;
      if (failure === undefined && !this.#isReady) {
        this.#isReady = true;
        this.#misplaced = undefined;
        emit({ type: 'ready', replicaId: spec.id });
      } else if (failure !== undefined && this.#isReady && numFailures >= MAX_FAILED_CHECKS) {
        this.#isReady = false;
        emit({ type: 'unready', replicaId: spec.id, message: `The health check fails: ${failure.message}` });
      }
      const elapsedMs = performance.now() - startedMs;
      if (failure !== undefined && !this.#isReady && spec.isProduction)
        await this.#checkPlacement(failure, elapsedMs).catch(() => {});
      await sleep(this.#pollInterval(numFailures, elapsedMs), undefined, { signal, ref: false }).catch(() => {});
    }
  }

  #pollInterval(numFailures: number, elapsedMs: number): number {
    const { fastMs, slowMs, liveMs } = this.#intervals;
    if (this.#isReady && numFailures === 0) return liveMs;
    return elapsedMs < FAST_FOR_MS ? fastMs : slowMs;
  }

  async #checkPlacement(failure: HealthFailure, elapsedMs: number): Promise<void> {
    const { spec, level, address, supervisor, emit } = this.#options;
    const listeners =
      level === 'L2' ? await listenersOf(supervisor.childPid) : await ownListeners(descendantsOf(supervisor.pid));
    const { host, port } =
      address.type === 'unix'
        ? { host: '0.0.0.0', port: spec.isProduction ? PRODUCTION_PORT : CONTAINER_PORT }
        : address;
    const isEarly = elapsedMs < this.#intervals.graceMs;
    const misplaced = checkListeners(listeners, level, host, port);
    if (this.#closing.signal.aborted || (misplaced !== undefined && listeners.length === 0 && isEarly)) return;
    const verdict = misplaced ?? (isEarly ? undefined : lastingFailure(failure));
    if (verdict?.message === this.#misplaced) return;
    this.#misplaced = verdict?.message;
    emit(
      verdict === undefined
        ? { type: 'placed', replicaId: spec.id }
        : { type: 'misplaced', replicaId: spec.id, ...verdict },
    );
  }
}
