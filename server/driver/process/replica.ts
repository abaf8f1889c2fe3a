import { watch } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { writeFile } from 'node:fs/promises';
import type { ReplicaAddress, ReplicaEvent, ReplicaSpec, ReplicaUsage } from '../driver';
import type { LogStore } from '../logs/log-store';
import { explainExit, networkHint, PORT_REFUSED } from './exit-text';
import { checkReplica, judgeAnswer, type Trouble } from './health';
import { judge, listenersOf, ownListeners, why } from './listeners';
import { descendantsOf, UsageMeter } from './processes';
import { isAlive, type ReplicaFolder, type SupervisorState } from './replica-folder';
import { SpoolReader } from './spool-reader';
import { CONTAINER_PORT, type Level, PRODUCTION_PORT } from './world';

/** What is needed of a replica that runs. */
export type LookedAfter = Pick<ReplicaSpec, 'id' | 'logId' | 'ordinal' | 'isProduction' | 'healthPath' | 'secret'>;

export interface ReplicaOptions {
  spec: LookedAfter;
  level: Level;
  folder: ReplicaFolder;
  address: ReplicaAddress;
  supervisor: SupervisorState;
  logs: LogStore;
  emit: (event: ReplicaEvent) => void;
  intervals?: Partial<Intervals>;
}

export interface Intervals {
  /** Between questions while it starts, and after a while of that. */
  fastMs: number;
  slowMs: number;
  /** Once it answers. */
  liveMs: number;
  /** Until nothing that listens is worth a word. */
  graceMs: number;
}

const INTERVALS: Intervals = { fastMs: 200, slowMs: 1_000, liveMs: 5_000, graceMs: 10_000 };
const FAST_FOR_MS = 10_000;
/** One that was ready has failed when it did not answer so many times in a row. */
const MAX_MISSES = 3;
const CHECK_ALIVE_MS = 2_000;
const MAX_LAST_LINES = 50;
/** For a supervisor to do what it was told, beyond the grace. */
const SUPERVISOR_MS = 10_000;
/** Of a supervisor that is told no other. */
const DEFAULT_GRACE_MS = 30_000;

/** One replica as this process looks after it, whoever started it: takes up its log, asks for its health, hears of its end. */
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
  /** Once it has ended: when the last of its log is there. */
  isWritten: Promise<void> = Promise.resolve();
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
    }, CHECK_ALIVE_MS);
    timer.unref();
    this.#watchers.push({ close: () => clearInterval(timer) });
    this.#readLog();
    void this.#askHealth();
    // Not before whoever asked for it knows of it.
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

  /** Resolves when it has ended. */
  async stop(graceMs: number): Promise<void> {
    const { folder, supervisor } = this.#options;
    // On a full disk the supervisor keeps to its own patience: what stops may be what makes room.
    const patienceMs = await writeFile(folder.stopFile, String(Math.max(0, Math.round(graceMs)))).then(
      () => graceMs,
      () => Math.max(graceMs, DEFAULT_GRACE_MS),
    );
    this.#signal('SIGTERM');
    const timer = setTimeout(() => this.#signal('SIGKILL'), patienceMs + SUPERVISOR_MS);
    void this.checkAlive();
    await this.#ended;
    clearTimeout(timer);
    if (isAlive(supervisor)) this.#signal('SIGKILL');
  }

  #signal(signal: NodeJS.Signals): void {
    const { supervisor } = this.#options;
    if (isAlive(supervisor)) process.kill(supervisor.pid, signal);
  }

  /** Looks whether it still is there, and tells its end when it is not. */
  async checkAlive(): Promise<void> {
    if (this.#isEnding || this.#closing.signal.aborted || isAlive(this.#options.supervisor)) return;
    this.#isEnding = true;
    const { spec, level, folder, logs, emit } = this.#options;
    const exit = await folder.exit();
    await this.#reader.readIfRoom();
    // A later process of the service tells it.
    if (this.#closing.signal.aborted) return;
    const event = explainExit(spec.id, level, exit, this.#lastLines);
    await logs.note(spec.logId, spec.ordinal, event.message);
    const isRefused =
      level !== 'L2' &&
      spec.isProduction &&
      !this.#isReady &&
      event.exitCode !== 0 &&
      !event.wasStopped &&
      this.#lastLines.some((line) => PORT_REFUSED.test(line));
    if (isRefused)
      emit({
        type: 'misplaced',
        replicaId: spec.id,
        reason: 'port_80_not_bound',
        message: `It ended, and its log speaks of an address that it may not listen on${why(level)}`,
      });
    this.#endWatch();
    this.isWritten = this.#reader.read().then(() => this.#reader.close());
    emit(event);
    this.#end();
  }

  /** Looks after it no more; it runs on. */
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
      // The machine allows no more watches: the clock does it.
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

  async #askHealth(): Promise<void> {
    const { spec, address, emit } = this.#options;
    const { signal } = this.#closing;
    const { fastMs, slowMs, liveMs } = this.#intervals;
    const startedMs = performance.now();
    let numMisses = 0;
    while (!signal.aborted) {
      const trouble = await checkReplica(address, spec.healthPath, spec.secret, signal);
      if (signal.aborted) return;
      numMisses = trouble === undefined ? 0 : numMisses + 1;
      if (trouble === undefined && !this.#isReady) {
        this.#isReady = true;
        this.#misplaced = undefined;
        emit({ type: 'ready', replicaId: spec.id });
      } else if (trouble !== undefined && this.#isReady && numMisses >= MAX_MISSES) {
        this.#isReady = false;
        emit({ type: 'unready', replicaId: spec.id, message: `It does not answer any more: ${trouble.message}` });
      }
      const elapsedMs = performance.now() - startedMs;
      if (trouble !== undefined && !this.#isReady && spec.isProduction)
        await this.#judgePlace(trouble, elapsedMs).catch(() => {});
      const waitMs = this.#isReady && numMisses === 0 ? liveMs : elapsedMs < FAST_FOR_MS ? fastMs : slowMs;
      await sleep(waitMs, undefined, { signal, ref: false }).catch(() => {});
    }
  }

  async #judgePlace(trouble: Trouble, elapsedMs: number): Promise<void> {
    const { spec, level, address, supervisor, emit } = this.#options;
    const listeners =
      level === 'L2' ? await listenersOf(supervisor.childPid) : await ownListeners(descendantsOf(supervisor.pid));
    const { host, port } =
      address.type === 'unix'
        ? { host: '0.0.0.0', port: spec.isProduction ? PRODUCTION_PORT : CONTAINER_PORT }
        : address;
    const isEarly = elapsedMs < this.#intervals.graceMs;
    const place = judge(listeners, level, host, port);
    if (this.#closing.signal.aborted || (place !== undefined && listeners.length === 0 && isEarly)) return;
    const verdict = place ?? (isEarly ? undefined : judgeAnswer(trouble));
    if (verdict?.message === this.#misplaced) return;
    this.#misplaced = verdict?.message;
    emit(
      verdict === undefined
        ? { type: 'placed', replicaId: spec.id }
        : { type: 'misplaced', replicaId: spec.id, ...verdict },
    );
  }
}
