import { resolve } from 'node:path';
import {
  type AdapterInfo,
  CapstanError,
  Engine,
  type EngineStats,
  type ModelDescription,
  type ModelInfo,
  machineInfo,
} from '../../../ts';
import { ApiError } from '../../base/errors';
import { LoadProgress } from '../../base/load-progress';
import type { Log } from '../../base/log';
import { fitWarning, uncheckedWarning } from '../../base/model-fit';
import type { ListedEngine, ModelStatus } from '../openai/models';
import { show } from '../../base/json/validate';
import { addCounters, type Counters, NO_COUNTERS } from './engine-counters';
import type { MemoryPlan } from './memory-plan';
import type { Loadable, Slot } from './model-pool';
import type { ModelOptions } from './model-options';

export interface EngineModelParts {
  options: Pick<ModelOptions, 'model' | 'engine' | 'isPinned'>;
  /** What is known before the first load. Undefined: nothing asks before it. */
  description?: ModelDescription;
  /** Undefined: the engine chooses its memory. */
  plan?: MemoryPlan;
  log: Log;
  /** Returns an engine to use in place of a loaded one. */
  observe: (engine: Engine, name: string) => Engine;
}

const DISK_WATCH_MS = 5_000;

/** A model that loads as an engine of this process. What it says of itself outlives its engine. */
export class EngineModel implements Loadable<Engine>, ListedEngine {
  readonly #parts: EngineModelParts;
  readonly isPinned: boolean;
  /** Set by the creator of the pool. */
  slot: Slot<Engine> | undefined;
  /** The name for messages and metrics. */
  name: string;
  #info: ListedEngine['info'] | undefined;
  #bytes: number;
  #engine: Engine | undefined;
  /** Of the last engine. The next one loads them again. */
  #adapters: readonly Pick<AdapterInfo, 'name' | 'path'>[];
  #counters: Counters = NO_COUNTERS;
  #diskWatch: NodeJS.Timeout | undefined;

  constructor(parts: EngineModelParts, name = parts.description?.modelName ?? parts.options.model) {
    this.#parts = parts;
    this.isPinned = parts.options.isPinned;
    this.name = name;
    this.#info = parts.description;
    this.#bytes = parts.plan?.neededBytes ?? 0;
    const { loraModules = {} } = parts.options.engine;
    this.#adapters = Object.entries(loraModules).map(([adapter, path]) => ({ name: adapter, path }));
  }

  get info(): ListedEngine['info'] {
    if (this.#info === undefined) throw new Error('a model is listed before it was loaded or described');
    return this.#info;
  }

  get adapters(): ListedEngine['adapters'] {
    return this.#engine?.adapters ?? this.#adapters;
  }

  /** Needs no load: the next engine does not load the adapter. */
  unloadAdapter(name: string): void {
    this.#engine?.unloadAdapter(name);
    this.#adapters = this.#adapters.filter((adapter) => adapter.name !== name);
  }

  get status(): ModelStatus {
    const { state = 'unloaded', numFailures = 0 } = this.slot ?? {};
    return { value: state, ...(numFailures > 0 && state !== 'loaded' ? { failed: true } : {}) };
  }

  /** Undefined while the model is not loaded. */
  get engine(): Engine | undefined {
    return this.#engine;
  }

  get neededBytes(): number {
    return this.#bytes;
  }

  /** Statistics of all engines that this model has had, without gauges while it has none. */
  get stats(): Counters & Partial<EngineStats> {
    const stats = this.#engine?.stats();
    return stats === undefined ? this.#counters : { ...stats, ...addCounters(this.#counters, stats) };
  }

  /** Rejects with ApiError `model_load_failed`, with the error of the library as its cause. */
  async load(signal: AbortSignal): Promise<Engine> {
    const { log, options, observe, plan } = this.#parts;
    const progress = new LoadProgress((text, fields) => log.info(fields, text));
    try {
      const engine = await Engine.load(options.model, {
        ...options.engine,
        ...(plan?.kvCacheBytes === undefined ? {} : { kvCacheBytes: plan.kvCacheBytes }),
        ...(options.engine.loraModules === undefined ? {} : { loraModules: this.#configuredAdapters() }),
        signal,
        onProgress: (done) => progress.update(done),
        onDownload: (info) => checkFit(info, log),
      });
      for (const note of engine.info.notes) log[isNews(note) ? 'info' : 'debug'](note);
      await this.#loadAdaptersAgain(engine);
      this.#use(engine);
      this.#watchDiskCache(engine);
      return (this.#engine = observe(engine, this.name));
    } catch (error) {
      const code = error instanceof CapstanError ? ` (${error.code})` : '';
      throw new ApiError(
        'model_load_failed',
        `The model ${show(this.name)} could not be loaded${code}. The log of the server says why.`,
        { cause: error },
      );
    } finally {
      progress.end();
    }
  }

  async unload(engine: Engine): Promise<void> {
    this.#adapters = engine.adapters.map(({ name, path }) => ({ name, path }));
    this.#counters = addCounters(this.#counters, engine.stats());
    this.#engine = undefined;
    clearInterval(this.#diskWatch);
    try {
      await engine.close();
    } catch (error) {
      this.#parts.log.error({ model: this.name, err: error }, 'cannot close the engine of a model cleanly');
    }
  }

  /** The adapters that the options name, without those that a request unloaded. */
  #configuredAdapters(): Record<string, string> {
    const { loraModules = {} } = this.#parts.options.engine;
    const isKept = ([name, path]: [string, string]): boolean =>
      this.#adapters.some((adapter) => adapter.name === name && resolve(adapter.path) === resolve(path));
    return Object.fromEntries(Object.entries(loraModules).filter(isKept));
  }

  /** Loads the adapters that requests loaded. One whose files have gone or changed must not make the model unusable. */
  async #loadAdaptersAgain(engine: Engine): Promise<void> {
    const isLoaded = (name: string): boolean => engine.adapters.some((adapter) => adapter.name === name);
    for (const { name, path } of this.#adapters) {
      if (isLoaded(name)) continue;
      try {
        await engine.loadAdapter(name, path);
      } catch (error) {
        const reason = error instanceof Error ? error.message : String(error);
        this.#parts.log.warn({ model: this.name, adapter: name, reason }, 'an adapter is left out of its model');
      }
    }
    // A request may have unloaded some meanwhile.
    for (const { name } of engine.adapters)
      if (!this.#adapters.some((adapter) => adapter.name === name)) engine.unloadAdapter(name);
  }

  /** Logs why the prefix cache on disk is not written, once for each reason. */
  #watchDiskCache(engine: Engine): void {
    if (this.#parts.options.engine.prefixCacheDir === undefined) return;
    let logged: string | null = null;
    this.#diskWatch = setInterval(() => {
      const { diskProblem } = engine.stats();
      if (diskProblem !== null && diskProblem !== logged) this.#parts.log.warn({ model: this.name }, diskProblem);
      logged = diskProblem;
    }, DISK_WATCH_MS).unref();
  }

  #use({ info }: Engine): void {
    this.#info = info;
    this.#bytes = info.backend === 'cuda' ? 0 : info.weightBytes + info.kvCacheBytes;
  }
}

/** @throws CapstanError `out_of_memory` for a model that this machine cannot hold, before it is downloaded. */
export function checkFit(info: ModelInfo, log: Log): void {
  const { repository, commit, downloadBytes, fit } = info;
  const warning = fitWarning(info);
  if (fit?.verdict === 'too_large') throw new CapstanError('out_of_memory', warning!);
  const unchecked = uncheckedWarning(info);
  for (const text of [warning, unchecked]) if (text !== undefined) log.warn(text);
  log.info({ repository, commit, downloadBytes }, 'downloading the model');
}

/** The choice of the CPU is news only on a machine with a GPU. */
function isNews(note: string): boolean {
  return !note.startsWith('running on the CPU') || machineInfo().gpus.length > 0;
}
