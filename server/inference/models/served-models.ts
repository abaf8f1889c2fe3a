import { CapstanError, type Engine } from '../../../ts';
import { ApiError } from '../../base/errors';
import { type ModelItem, modelNotFound, ServedModel } from '../openai/models';
import { show } from '../../base/json/validate';
import type { ServerSettings } from '../settings';
import { type Clock, type Lease, ModelPool, type PoolLimits, type Slot } from './model-pool';

/** One model of the server. */
export interface ModelEntry {
  /** Its names in requests. */
  readonly served: ServedModel;
  /** Its engine, while it is loaded. */
  readonly slot: Slot<Engine>;
  /** Undefined: those of the server. */
  readonly settings?: ServerSettings;
}

export const NO_LIMITS: PoolLimits = {
  memoryBytes: Infinity,
  maxLoaded: Infinity,
  idleMs: Infinity,
  waitTimeoutMs: Infinity,
  maxWaiting: Infinity,
  maxWaitingBytes: Infinity,
};

export const SYSTEM_CLOCK: Clock = {
  now: () => performance.now(),
  after: (ms, run) => {
    const timer = setTimeout(run, ms);
    timer.unref();
    return () => clearTimeout(timer);
  },
};

/** The models of a server by name. A name belongs to one model, or to an adapter of one model. */
export class ServedModels {
  readonly entries: readonly ModelEntry[];
  readonly pool: ModelPool<Engine>;
  /** Names of adapters that load. */
  readonly #reserved = new Set<string>();

  /** @throws CapstanError `invalid_argument` if two models share a name. */
  constructor(entries: readonly ModelEntry[], pool: ModelPool<Engine>) {
    const owners = new Map<string, ServedModel>();
    for (const { served } of entries) {
      for (const name of served.all()) {
        const owner = owners.get(name);
        if (owner !== undefined)
          throw CapstanError.argument(
            'models',
            'each name, alias and adapter once',
            `${name}, a name of ${owner.names[0]} and of ${served.names[0]}`,
          );
        owners.set(name, served);
      }
    }
    this.entries = entries;
    this.pool = pool;
  }

  /** Returns the models of a server with one engine that its caller loads and closes. */
  static of(engine: Engine, names: readonly [string, ...string[]]): ServedModels {
    const held = {
      name: names[0],
      isPinned: true,
      neededBytes: 0,
      load: () => Promise.reject(new ApiError('model_load_failed', 'The engine is not loaded by this server')),
      unload: () => Promise.resolve(),
    };
    const pool = new ModelPool<Engine>([held], NO_LIMITS, SYSTEM_CLOCK);
    pool.hold(pool.slots[0], engine);
    return new ServedModels([{ served: new ServedModel(names, engine), slot: pool.slots[0] }], pool);
  }

  /** The model of a server with one. It also gets the requests that name none. */
  get only(): ModelEntry | undefined {
    return this.entries.length === 1 ? this.entries[0] : undefined;
  }

  /** The engines that are loaded, with the name of their model. */
  get loaded(): { name: string; engine: Engine }[] {
    return this.entries.flatMap(({ served, slot: { state, engine } }) =>
      state === 'loaded' ? [{ name: served.names[0], engine: engine! }] : [],
    );
  }

  /** Whether a model or an adapter has the name. */
  has(name: string): boolean {
    return this.entries.some(({ served }) => served.has(name));
  }

  /**
   * Keeps a name for an adapter until it is loaded. Returns undefined if the name is in use, or a function that ends
   * the reservation.
   */
  reserve(name: string): (() => void) | undefined {
    if (this.has(name) || this.#reserved.has(name)) return undefined;
    this.#reserved.add(name);
    return () => this.#reserved.delete(name);
  }

  /** Returns the model that a request names, itself or one of its adapters. Throws an ApiError for any other name. */
  find(name: string | undefined): ModelEntry {
    const found = name === undefined ? this.only : this.entries.find(({ served }) => served.has(name));
    if (found !== undefined) return found;
    if (name !== undefined) throw modelNotFound(this.#names(), name);
    const listed = this.entries.map(({ served }) => show(served.names[0])).join(', ');
    throw new ApiError('missing_required_parameter', `model: expected one of ${listed}, but it is missing`, {
      param: 'model',
    });
  }

  /** Returns undefined if the model has to be loaded first. */
  tryAcquire({ slot }: ModelEntry): Lease<Engine> | undefined {
    return this.pool.tryAcquire(slot);
  }

  /** Loads the model if necessary. Rejects as `ModelPool.acquire` does. */
  acquire({ slot }: ModelEntry, signal: AbortSignal, bodyBytes?: number): Promise<Lease<Engine>> {
    return this.pool.acquire(slot, signal, { bodyBytes });
  }

  /** The body of GET /v1/models. */
  list(): { object: 'list'; data: ModelItem[] } {
    return { object: 'list', data: this.entries.flatMap(({ served }) => served.describeAll()) };
  }

  /** Returns an item of the list. */
  describe(name: string): ModelItem {
    return this.find(name).served.describe(name);
  }

  #names(): string[] {
    return this.entries.flatMap(({ served }) => served.all());
  }
}
