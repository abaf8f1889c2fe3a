import { formatBytes } from '../../base/bytes';
import { ApiError } from '../../base/errors';
import { show } from '../../base/json/validate';

/** Where time comes from. Tests replace it. */
export interface Clock {
  now(): number;
  /** Calls `run` once after a time. Returns a function that cancels it. */
  after(ms: number, run: () => void): () => void;
}

/** A model that a pool loads and unloads. */
export interface Loadable<E> {
  /** For messages. */
  readonly name: string;
  /** A pinned model is unloaded only when the pool closes. */
  readonly isPinned: boolean;
  /** Memory that the model takes once it is loaded. Before its first load, an estimate. */
  readonly neededBytes: number;
  load(signal: AbortSignal): Promise<E>;
  /** Never rejects. */
  unload(engine: E): Promise<void>;
}

export interface PoolLimits {
  /** Memory of all loaded models together. */
  memoryBytes: number;
  /** Loaded models. */
  maxLoaded: number;
  /** A model that is not used for this long is unloaded. Infinity: never. */
  idleMs: number;
  /** How long a request waits for its model. */
  waitTimeoutMs: number;
  /** Requests that wait for one model. */
  maxWaiting: number;
  /** Bodies of the requests that wait for any model. One more is refused, unless no other body waits. */
  maxWaitingBytes: number;
}

/** How long a model is refused after its first failed load. The time doubles with each further failure. */
const FIRST_REFUSAL_MS = 5_000;
const MAX_REFUSAL_MS = 60_000;

export interface AcquireOptions {
  /** Loads the model although its last load failed just before. Default: false. */
  isForced?: boolean;
  /** Default: that of the pool. */
  timeoutMs?: number;
  /** Size of the body that the request keeps while it waits. Default: 0. */
  bodyBytes?: number;
}

export type ModelState = 'unloaded' | 'loading' | 'loaded' | 'unloading' | 'sleeping';
/** Why a model was unloaded: for the memory of another one, after its idle time, or by a request. */
export type UnloadReason = 'memory' | 'idle' | 'request';

/** What a pool reports, for the log. */
export interface PoolEvents<E> {
  onLoad?: (slot: Slot<E>, ms: number) => void;
  onLoadError?: (slot: Slot<E>, error: unknown) => void;
  onUnload?: (slot: Slot<E>, reason: UnloadReason) => void;
}

/** An engine in use. The model stays loaded until every lease of it is released. */
export interface Lease<E> {
  readonly engine: E;
  /** Idempotent. */
  readonly release: () => void;
}

/** The place of one model in a pool. Only the pool changes it. */
export class Slot<E> {
  state: ModelState = 'unloaded';
  /** Set from `loaded` until `unloading` has ended. */
  engine: E | undefined;
  numLeases = 0;
  /** When the last lease began or ended. */
  lastUsedMs = 0;
  /** Loads that failed since the last one that did not. */
  numFailures = 0;
  /** Until then requests do not load the model again. */
  refusedUntilMs = -Infinity;
  /** Those that wait for the requests of the model in order to unload it. */
  numLeavers = 0;
  readonly counts = { loads: 0, failures: 0, unloads: { memory: 0, idle: 0, request: 0 } };
  readonly waiters = new Set<Waiter<E>>();
  onFree: (() => void)[] = [];
  cancelIdle: () => void = () => {};

  constructor(readonly model: Loadable<E>) {}

  /** Whether requests for the model go to its queue, not to its engine. */
  get isLeaving(): boolean {
    return this.numLeavers > 0;
  }

  /** Whether the memory of the model is in use. */
  get isInMemory(): boolean {
    return this.state === 'loading' || this.state === 'loaded' || this.state === 'unloading';
  }
}

interface Waiter<E> {
  resolve: (lease: Lease<E>) => void;
  reject: (error: Error) => void;
}

/**
 * Holds the engines of several models under limits. One model loads at a time, in the order in which requests ask. For
 * its memory the model that was used longest ago is unloaded. A model in use finishes its requests first; its next
 * requests wait in the queue, so that two models that do not fit together take turns. Meanwhile a later model of the
 * queue loads if it fits beside the models in memory and beside the first one of the queue.
 */
export class ModelPool<E> {
  readonly slots: readonly Slot<E>[];
  readonly #limits: PoolLimits;
  readonly #clock: Clock;
  readonly #events: PoolEvents<E>;
  /** Models to load, in order. The first may be loading. */
  readonly #queue: Slot<E>[] = [];
  readonly #closing = new AbortController();
  #worker: Promise<void> | undefined;
  /** Wakes the worker when a later model of the queue may fit. */
  #onChange: () => void = () => {};
  /** Bodies of all waiting requests. */
  #waitingBytes = 0;

  constructor(models: readonly Loadable<E>[], limits: PoolLimits, clock: Clock, events: PoolEvents<E> = {}) {
    this.slots = models.map((model) => new Slot(model));
    this.#limits = limits;
    this.#clock = clock;
    this.#events = events;
  }

  get limits(): Readonly<PoolLimits> {
    return this.#limits;
  }

  /** Memory of the models that are loaded or loading. */
  get usedBytes(): number {
    return this.#inMemory().reduce((sum, { model }) => sum + model.neededBytes, 0);
  }

  /** Puts an engine that exists into its slot. */
  hold(slot: Slot<E>, engine: E): void {
    slot.state = 'loaded';
    slot.engine = engine;
    this.#touch(slot);
  }

  /** Returns undefined if the model has to be loaded first. */
  tryAcquire(slot: Slot<E>): Lease<E> | undefined {
    return slot.state === 'loaded' && !slot.isLeaving ? this.#lease(slot, slot.engine!) : undefined;
  }

  /**
   * Waits until the model is loaded. Rejects with ApiError `model_load_failed`, `model_loading` after the time limit,
   * `queue_full` or `shutting_down`, and with the reason of the signal.
   */
  async acquire(
    slot: Slot<E>,
    signal: AbortSignal,
    { timeoutMs = this.#limits.waitTimeoutMs, bodyBytes = 0, isForced = false }: AcquireOptions = {},
  ): Promise<Lease<E>> {
    const lease = this.tryAcquire(slot);
    if (lease !== undefined) return lease;
    this.#closing.signal.throwIfAborted();
    signal.throwIfAborted();
    // A broken model must not take the memory of others at every request.
    const refusedMs = slot.refusedUntilMs - this.#clock.now();
    if (refusedMs > 0 && !isForced && slot.state !== 'loading') throw failedBefore(slot.model.name, refusedMs);
    const { maxWaiting, maxWaitingBytes } = this.#limits;
    if (slot.waiters.size >= maxWaiting) throw queueFull(slot.model.name, maxWaiting);
    if (this.#waitingBytes > 0 && this.#waitingBytes + bodyBytes > maxWaitingBytes)
      throw bodiesFull(this.#waitingBytes);
    this.#waitingBytes += bodyBytes;
    return new Promise((resolve, reject) => {
      const settle = (): void => {
        cancelTimer();
        this.#waitingBytes -= bodyBytes;
        signal.removeEventListener('abort', onAbort);
        slot.waiters.delete(waiter);
      };
      const waiter: Waiter<E> = {
        resolve: (granted) => (settle(), resolve(granted)),
        reject: (error) => (settle(), reject(error)),
      };
      const leave = (error: Error): void => {
        waiter.reject(error);
        this.#stopUnwanted();
      };
      const onAbort = (): void => leave(signal.reason as Error);
      const cancelTimer = Number.isFinite(timeoutMs)
        ? this.#clock.after(timeoutMs, () => leave(timedOut(slot.model.name, timeoutMs)))
        : () => {};
      signal.addEventListener('abort', onAbort, { once: true });
      slot.waiters.add(waiter);
      this.#want(slot);
    });
  }

  /** Loads a model without using it, also just after a failed load. Rejects as `acquire` does. */
  async load(slot: Slot<E>, signal: AbortSignal): Promise<void> {
    (await this.acquire(slot, signal, { timeoutMs: Infinity, isForced: true })).release();
  }

  /** Unloads a model after its requests. Resolves when its memory is free. A model that is not loaded stays so. */
  async unload(slot: Slot<E>, restState: 'unloaded' | 'sleeping', reason: UnloadReason = 'request'): Promise<void> {
    while (slot.state === 'loading' || slot.state === 'unloading') await this.#change(slot);
    if (slot.state === 'loaded') await this.#leave(slot, restState, reason);
    else slot.state = restState;
    if (slot.waiters.size > 0) this.#want(slot);
  }

  /** Ends all waits and loads, and unloads every model at once. */
  async close(): Promise<void> {
    this.#closing.abort(shuttingDown());
    for (const slot of this.slots) {
      for (const { reject } of [...slot.waiters]) reject(shuttingDown());
      slot.cancelIdle();
      notify(slot);
    }
    await this.#worker;
    await Promise.all(this.slots.map((slot) => this.#unloadNow(slot, 'unloaded')));
  }

  #lease(slot: Slot<E>, engine: E): Lease<E> {
    slot.numLeases++;
    this.#touch(slot);
    let isReleased = false;
    const release = (): void => {
      if (isReleased) return;
      isReleased = true;
      slot.numLeases--;
      this.#touch(slot);
      if (slot.numLeases === 0) notify(slot);
    };
    return { engine, release };
  }

  #touch(slot: Slot<E>): void {
    slot.lastUsedMs = this.#clock.now();
    slot.cancelIdle();
    slot.cancelIdle = () => {};
    const { idleMs } = this.#limits;
    if (slot.numLeases > 0 || slot.model.isPinned || !Number.isFinite(idleMs)) return;
    slot.cancelIdle = this.#clock.after(idleMs, () => {
      if (slot.state === 'loaded' && slot.numLeases === 0) void this.unload(slot, 'sleeping', 'idle');
    });
  }

  /** Adds a model to the queue, unless it is there. */
  #want(slot: Slot<E>): void {
    if (!this.#queue.includes(slot)) this.#queue.push(slot);
    this.#onChange();
    this.#worker ??= this.#work();
  }

  async #work(): Promise<void> {
    // One turn later, so that `#worker` is set.
    await Promise.resolve();
    for (let slot = this.#queue.at(0); slot !== undefined; slot = this.#queue.at(0)) {
      while (slot.state === 'unloading' || slot.isLeaving) await this.#loadOthersUntil(slot, slot);
      if (this.#isWanted(slot) && slot.state !== 'loaded') await this.#load(slot, () => this.#unloadOthersFor(slot));
      this.#take(slot);
    }
    // In the same turn as the look at the queue, so that the next request starts another worker.
    this.#worker = undefined;
  }

  #isWanted(slot: Slot<E>): boolean {
    return slot.waiters.size > 0 && !this.#closing.signal.aborted;
  }

  /** Removes a model from the queue. */
  #take(slot: Slot<E>): void {
    this.#queue.splice(this.#queue.indexOf(slot), 1);
    this.#grant(slot);
  }

  /** Waits for the next change of `blocker`, which keeps the first model of the queue from its load. */
  async #loadOthersUntil(blocker: Slot<E>, first: Slot<E>): Promise<void> {
    let hasChanged = false;
    const changed = this.#change(blocker).then(() => {
      hasChanged = true;
    });
    while (!hasChanged) {
      const other = this.#queue.find((slot) => slot !== first && this.#fitsBeside(slot, first));
      if (other === undefined) {
        await Promise.race([changed, new Promise<void>((resolve) => (this.#onChange = resolve))]);
      } else {
        await this.#load(other);
        this.#take(other);
      }
    }
  }

  /**
   * Whether a model fits now, and also once `first` is loaded, so that `first` needs not wait for its memory. A load
   * that has begun is not stopped: `first` may wait until this one ends.
   */
  #fitsBeside(slot: Slot<E>, first: Slot<E>): boolean {
    if (!this.#isWanted(slot) || slot.isInMemory) return false;
    const others = this.#inMemory().filter((other) => other !== first);
    const staying = others.filter((other) => other.state !== 'unloading' && !other.isLeaving);
    const victims = staying.filter(({ model }) => !model.isPinned).sort(byLastUse);
    while (victims.length > 0 && !this.#fits([...staying, first])) staying.splice(staying.indexOf(victims.shift()!), 1);
    return this.#fits([...this.#inMemory(), slot]) && this.#fits([...staying, first, slot]);
  }

  #fits(slots: readonly Slot<E>[]): boolean {
    const bytes = slots.reduce((sum, { model }) => sum + model.neededBytes, 0);
    return bytes <= this.#limits.memoryBytes && slots.length <= this.#limits.maxLoaded;
  }

  async #load(slot: Slot<E>, unloadOthers = () => Promise.resolve(true)): Promise<void> {
    try {
      if (!(await unloadOthers())) return;
      slot.state = 'loading';
      const startedMs = this.#clock.now();
      slot.engine = await slot.model.load(this.#closing.signal);
      slot.state = 'loaded';
      slot.numFailures = 0;
      slot.refusedUntilMs = -Infinity;
      slot.counts.loads++;
      this.#touch(slot);
      // Those who waited come before an unload that waited.
      this.#grant(slot);
      this.#events.onLoad?.(slot, this.#clock.now() - startedMs);
    } catch (error) {
      slot.state = 'unloaded';
      slot.refusedUntilMs = this.#clock.now() + Math.min(FIRST_REFUSAL_MS * 2 ** slot.numFailures++, MAX_REFUSAL_MS);
      slot.counts.failures++;
      this.#events.onLoadError?.(slot, error);
      for (const { reject } of [...slot.waiters]) reject(error as Error);
    } finally {
      notify(slot);
    }
  }

  /** Unloads others until the model fits. Returns false if the model has no waiters any more. */
  async #unloadOthersFor(slot: Slot<E>): Promise<boolean> {
    while (this.#isWanted(slot)) {
      const others = this.#inMemory().filter((other) => other !== slot);
      if (others.length === 0 || this.#fits([...others, slot])) return true;
      const leaving = others.find(({ state, isLeaving }) => state === 'unloading' || isLeaving);
      const pinned = others.filter(({ model }) => model.isPinned);
      // Checked first, so that no other model is unloaded in vain.
      if (pinned.length > 0 && !this.#fits([...pinned, slot])) throw doesNotFit(slot.model, this.#limits);
      const victim = leaving ?? others.filter(({ model }) => !model.isPinned).sort(byLastUse)[0];
      if (leaving === undefined) void this.#leave(victim, 'unloaded', 'memory', () => this.#isWanted(slot));
      await this.#loadOthersUntil(victim, slot);
    }
    return false;
  }

  #inMemory(): Slot<E>[] {
    return this.slots.filter(({ isInMemory }) => isInMemory);
  }

  /** Waits for the requests of a model and unloads it, if that is still needed then. */
  async #leave(
    slot: Slot<E>,
    restState: 'unloaded' | 'sleeping',
    reason: UnloadReason,
    isNeeded = () => true,
  ): Promise<void> {
    slot.numLeavers++;
    while (slot.numLeases > 0 && isNeeded() && !this.#closing.signal.aborted) await this.#change(slot);
    slot.numLeavers--;
    if (slot.state === 'loaded' && isNeeded() && !this.#closing.signal.aborted) {
      slot.counts.unloads[reason]++;
      await this.#unloadNow(slot, restState);
      this.#events.onUnload?.(slot, reason);
    }
    // Another one may unload the model.
    while (slot.state === 'unloading' && isNeeded()) await this.#change(slot);
    notify(slot);
    this.#grant(slot);
  }

  async #unloadNow(slot: Slot<E>, restState: 'unloaded' | 'sleeping'): Promise<void> {
    while (slot.state === 'unloading') await this.#change(slot);
    if (slot.state !== 'loaded') return;
    slot.cancelIdle();
    slot.state = 'unloading';
    await slot.model.unload(slot.engine!);
    slot.state = restState;
    slot.engine = undefined;
    notify(slot);
    this.#onChange();
  }

  /** Gives a loaded model to the requests that wait for it. A model that is not loaded is queued for them. */
  #grant(slot: Slot<E>): void {
    if (slot.state === 'loaded' && !slot.isLeaving)
      for (const { resolve } of [...slot.waiters]) resolve(this.#lease(slot, slot.engine!));
    else if (this.#isWanted(slot)) this.#want(slot);
  }

  /** Ends the wait of those that unload models for one without waiters. */
  #stopUnwanted(): void {
    for (const slot of this.slots) if (slot.isLeaving) notify(slot);
  }

  /** Resolves at the next change of a model. */
  #change(slot: Slot<E>): Promise<void> {
    return new Promise((resolve) => slot.onFree.push(resolve));
  }
}

function notify<E>(slot: Slot<E>): void {
  slot.onFree.splice(0).forEach((resolve) => resolve());
}

/** Models in use come last. */
function byLastUse<E>(a: Slot<E>, b: Slot<E>): number {
  return Number(a.numLeases > 0) - Number(b.numLeases > 0) || a.lastUsedMs - b.lastUsedMs;
}

function shuttingDown(): ApiError {
  return new ApiError('shutting_down', 'The server is shutting down');
}

function queueFull(name: string, maxWaiting: number): ApiError {
  return new ApiError(
    'queue_full',
    `The queue is full: ${maxWaiting} requests wait for the model ${show(name)} to load`,
  );
}

function bodiesFull(waitingBytes: number): ApiError {
  return new ApiError(
    'queue_full',
    `The queue is full: ${formatBytes(waitingBytes)} of request bodies wait for models to load`,
  );
}

function timedOut(name: string, timeoutMs: number): ApiError {
  return new ApiError(
    'model_loading',
    `The model ${show(name)} was not loaded within ${timeoutMs / 1000} s (--model-wait-timeout)`,
  );
}

function failedBefore(name: string, refusedMs: number): ApiError {
  const seconds = Math.ceil(refusedMs / 1000);
  return new ApiError(
    'model_load_failed',
    `The last load of the model ${show(name)} failed. Requests load it again in ${seconds} s. The log of the server says why it failed.`,
    { headers: { 'Retry-After': String(seconds) } },
  );
}

function doesNotFit({ name, neededBytes }: Loadable<unknown>, { memoryBytes, maxLoaded }: PoolLimits): ApiError {
  return new ApiError(
    'model_load_failed',
    `The model ${show(name)} does not fit beside the pinned models: it needs about ${formatBytes(neededBytes)}, --models-memory allows ${formatBytes(memoryBytes)} and --models-max ${maxLoaded} models`,
  );
}
