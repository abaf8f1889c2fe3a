import { CapstanError, describeModel, type Engine } from '../../../ts';
import { ApiError } from '../../base/errors';
import { formatBytes } from '../../base/bytes';
import type { Log } from '../../base/log';
import { UsageError } from '../../base/usage-error';
import { ServedModel } from '../openai/models';
import type { ServeOptions } from '../serve-options';
import { checkFit, EngineModel } from './engine-model';
import { planMemory } from './memory-plan';
import { DEFAULT_MEMORY_SHARE, type ModelOptions } from './model-options';
import { type Clock, ModelPool, type PoolEvents, type PoolLimits } from './model-pool';
import { type ModelEntry, ServedModels, SYSTEM_CLOCK } from './served-models';

/** The models of a server, and what the server needs of them. */
export interface OpenedModels {
  models: ServedModels;
  engineModels: readonly EngineModel[];
}

export interface OpenModelsParts {
  signal: AbortSignal;
  log: Log;
  observe: (engine: Engine, name: string) => Engine;
  clock?: Clock;
}

type Options = Pick<ServeOptions, 'model' | 'models' | 'servedNames' | 'aliases' | 'engine' | 'modelLimits'>;

/** Requests that wait for one model, unless its engine has another limit of its queue. */
const MAX_WAITING = 1024;
/** Bodies of the requests that wait for any model. */
const MAX_WAITING_BYTES = 256 * 2 ** 20;

/**
 * Prepares the models of a server. One model is loaded. Of several models the files are read, and downloaded if
 * necessary, but only {@link loadFirst} loads some of them.
 * @throws CapstanError as `Engine.load` does, or UsageError for names that do not fit together.
 */
export async function openModels(options: Options, parts: OpenModelsParts): Promise<OpenedModels> {
  return options.models.length === 0 ? openOne(options, parts) : openSeveral(options, parts);
}

async function openOne(options: Options, { signal, log, observe, clock }: OpenModelsParts): Promise<OpenedModels> {
  const { model, engine, servedNames } = options;
  const engineModel = new EngineModel({ options: { model, engine, isPinned: false }, log, observe }, servedNames[0]);
  const limits = {
    ...options.modelLimits,
    memoryBytes: Infinity,
    maxWaiting: engine.maxQueuedRequests ?? MAX_WAITING,
    maxWaitingBytes: MAX_WAITING_BYTES,
  };
  const pool = makePool([engineModel], limits, log, clock);
  try {
    await load(pool, engineModel, signal);
    const { modelName } = pool.slots[0].engine!.info;
    const [first = modelName, ...rest] = servedNames;
    engineModel.name = first;
    const names: [string, ...string[]] = [first, ...rest];
    for (const { name, target } of options.aliases) {
      if (target !== undefined && target !== model && !names.includes(target)) throw unknownTarget(name, target, names);
      if (!names.includes(name)) names.push(name);
    }
    return { models: new ServedModels([entryOf(engineModel, names)], pool), engineModels: [engineModel] };
  } catch (error) {
    await pool.close();
    throw error;
  }
}

async function openSeveral(options: Options, { signal, log, observe, clock }: OpenModelsParts): Promise<OpenedModels> {
  const { models: all, modelLimits, aliases } = options;
  const described = [];
  for (const model of all) {
    const description = await describeModel(model.model, {
      ...model.engine,
      signal,
      onDownload: (info) => checkFit(info, log),
    });
    described.push({ model, description });
  }
  const memoryBytes =
    modelLimits.memoryBytes ?? Math.floor(described[0].description.availableBytes * DEFAULT_MEMORY_SHARE);
  const planned = described.map(({ model, description }) => {
    const { modelName } = description;
    const name = model.name ?? modelName;
    const plan = planMemory({ ...description, modelName: name }, model.engine, memoryBytes);
    return {
      model,
      engineModel: new EngineModel({ options: model, description, plan, log, observe }, name),
      modelName,
    };
  });
  const engineModels = planned.map(({ engineModel }) => engineModel);
  checkPinned(engineModels, memoryBytes);
  const names = planned.map(({ model, engineModel }) => [...new Set([engineModel.name, ...model.aliases])]);
  for (const { name, target } of aliases) {
    const index = planned.findIndex(
      ({ model, modelName }, i) => target === model.model || target === modelName || names[i].includes(target ?? ''),
    );
    if (index < 0) throw unknownTarget(name, target, names.flat());
    if (!names[index].includes(name)) names[index].push(name);
  }
  const maxWaiting = Math.max(...all.map(({ engine }) => engine.maxQueuedRequests ?? MAX_WAITING), 1);
  const pool = makePool(
    engineModels,
    { ...modelLimits, memoryBytes, maxWaiting, maxWaitingBytes: MAX_WAITING_BYTES },
    log,
    clock,
  );
  log.info(
    { memoryBytes, models: engineModels.map(({ name, neededBytes }) => ({ name, neededBytes })) },
    'the models share this memory',
  );
  const entries = planned.map(({ model, engineModel }, i) => ({
    ...entryOf(engineModel, names[i] as [string, ...string[]]),
    settings: model.settings,
  }));
  return { models: new ServedModels(entries, pool), engineModels };
}

/**
 * Loads the pinned models of several, then the preloaded ones.
 * @throws CapstanError as `Engine.load` does.
 */
export async function loadFirst(
  { engineModels, models: { pool } }: OpenedModels,
  options: readonly ModelOptions[],
  signal: AbortSignal,
): Promise<void> {
  const pinned = engineModels.filter(({ isPinned }) => isPinned);
  const preloaded = engineModels.filter((model, i) => !model.isPinned && options.at(i)?.isPreloaded === true);
  for (const model of [...pinned, ...preloaded]) await load(pool, model, signal);
}

async function load(pool: ModelPool<Engine>, model: EngineModel, signal: AbortSignal): Promise<void> {
  try {
    await pool.load(model.slot!, signal);
  } catch (error) {
    if (signal.aborted) throw new CapstanError('aborted', 'The load was aborted', { cause: signal.reason });
    throw error instanceof ApiError && error.cause instanceof Error ? error.cause : error;
  }
}

function makePool(
  engineModels: readonly EngineModel[],
  limits: PoolLimits,
  log: Log,
  clock: Clock = SYSTEM_CLOCK,
): ModelPool<Engine> {
  // The start of a server with one model reports its load itself.
  const isQuiet = (loads: number): boolean => engineModels.length === 1 && loads === 1;
  const events: PoolEvents<Engine> = {
    onLoad: ({ model: { name, neededBytes }, counts }, ms) => {
      if (!isQuiet(counts.loads))
        log.info({ model: name, bytes: neededBytes, ms: Math.round(ms) }, 'a model is loaded');
    },
    onLoadError: ({ model: { name }, counts }, error) => {
      if (isQuiet(counts.loads + 1) || isAborted(error)) return;
      log.error({ model: name, reason: reasonOf(error) }, 'a model cannot be loaded');
    },
    onUnload: ({ model: { name } }, reason) => log.info({ model: name, reason }, 'a model is unloaded'),
  };
  const pool = new ModelPool(engineModels, limits, clock, events);
  engineModels.forEach((model, i) => (model.slot = pool.slots[i]));
  return pool;
}

function entryOf(model: EngineModel, names: readonly [string, ...string[]]): ModelEntry {
  return { served: new ServedModel(names, model), slot: model.slot! };
}

function isAborted(error: unknown): boolean {
  const { cause } = error as Error;
  return cause instanceof CapstanError && cause.code === 'aborted';
}

function reasonOf(error: unknown): string {
  const { cause, message } = error as Error;
  return cause instanceof Error ? cause.message : message;
}

/** @throws CapstanError `out_of_memory` */
function checkPinned(models: readonly EngineModel[], memoryBytes: number): void {
  const bytes = models.reduce((sum, { isPinned, neededBytes }) => sum + (isPinned ? neededBytes : 0), 0);
  if (bytes > memoryBytes)
    throw new CapstanError(
      'out_of_memory',
      `The pinned models need about ${formatBytes(bytes)} together, and --models-memory allows ${formatBytes(memoryBytes)}`,
    );
}

function unknownTarget(name: string, target: string | undefined, names: readonly string[]): UsageError {
  const expected = `one of ${names.map((known) => `'${known}'`).join(', ')}`;
  return new UsageError(
    target === undefined
      ? `--alias: expected NAME=MODEL with several models, got '${name}'`
      : `--alias: expected ${expected} after '${name}=', got '${target}'`,
  );
}
