import type { ModelOptions } from '../inference/models/model-options';
import type { ServeOptions } from '../inference/serve-options';
import { UsageError } from '../base/usage-error';
import { flagNamesOf, toValues } from './flag-names';
import { nearest } from '../../ts/nearest';
import { type Flag, SERVE_FLAGS } from './serve-flags';

const GROUPS: ReadonlySet<string> = new Set(['Model', 'Engine', 'Sampling and responses']);
/** Options of the server, not of a model. */
const OF_SERVER: ReadonlySet<string> = new Set([
  'served-model-name',
  'alias',
  'models',
  'models-memory',
  'models-max',
  'model-wait-timeout',
  'sleep-idle-seconds',
  'lora-dir',
  'prefix-cache-scope',
]);
const QUEUE_LIMITS: ReadonlySet<string> = new Set(['max-num-queued-reqs', 'max-num-queued-tokens']);
/** What an entry says besides flags. */
const OWN_KEYS = ['name', 'aliases', 'preload', 'pinned'] as const;
const MAX_MODELS = 64;

const MODEL_FLAGS = SERVE_FLAGS.filter(
  ({ name, group }) => (GROUPS.has(group) && !OF_SERVER.has(name)) || QUEUE_LIMITS.has(name),
);
const MODEL_FLAG_NAMES = flagNamesOf(MODEL_FLAGS);

/**
 * Reads the table of `--models`: options by name, or a list of options. Options are flags of `capstan serve`, whose
 * values on the command line are the defaults of every model.
 * @param single Where a flag for one model came from, if there is one.
 * @param check Checks and completes the options of one model.
 */
export function readModelTable(
  defaults: ServeOptions,
  { value, source }: { value: string; source: string },
  single: string | undefined,
  check: (options: ServeOptions) => void,
): ModelOptions[] {
  if (single !== undefined) throw new UsageError(`${single}: expected either one model or ${source}, got both`);
  if (defaults.servedNames.length > 0)
    throw new UsageError(`--served-model-name: expected one model. Use --alias NAME=MODEL with several`);
  if (defaults.engine.loraModules !== undefined)
    throw new UsageError(`--lora-modules: expected one model. Put lora-modules into an entry of ${source}`);
  const entries = toEntries(parse(value, source), source);
  if (entries.length === 0 || entries.length > MAX_MODELS)
    throw new UsageError(`${source}: expected 1 to ${MAX_MODELS} models, got ${entries.length}`);
  return entries.map(({ place, name, settings }) => readModel(defaults, settings, name, place, check));
}

interface Entry {
  place: string;
  name: string | undefined;
  settings: Record<string, unknown>;
}

function parse(value: string, source: string): unknown {
  try {
    return JSON.parse(value) as unknown;
  } catch {
    throw new UsageError(`${source}: expected JSON, for example {"chat": {"model": "DIR"}}, got '${value}'`);
  }
}

function toEntries(table: unknown, source: string): Entry[] {
  if (Array.isArray(table))
    return table.map((settings: unknown, i) => {
      const place = `${source}[${i}]`;
      const checked = checkSettings(settings, place);
      const { name } = checked;
      if (name !== undefined && (typeof name !== 'string' || name === ''))
        throw new UsageError(`${place}.name: expected a name, got ${JSON.stringify(name)}`);
      return { place, name, settings: checked };
    });
  return Object.entries(checkSettings(table, source)).map(([name, settings]) => {
    const place = `${source}.${name}`;
    const checked = checkSettings(settings, place);
    if (name === '') throw new UsageError(`${source}: expected names that are not empty`);
    if ('name' in checked) throw new UsageError(`${place}.name: expected no name here: it is '${name}'`);
    return { place, name, settings: checked };
  });
}

function checkSettings(value: unknown, place: string): Record<string, unknown> {
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  const received = Array.isArray(value) ? 'a list' : JSON.stringify(value);
  throw new UsageError(`${place}: expected settings such as {"model": "DIR"}, got ${received}`);
}

function readModel(
  defaults: ServeOptions,
  settings: Record<string, unknown>,
  name: string | undefined,
  place: string,
  check: (options: ServeOptions) => void,
): ModelOptions {
  const options: ServeOptions = {
    ...defaults,
    model: '',
    loraDir: undefined,
    engine: { ...defaults.engine },
    settings: { ...defaults.settings },
  };
  const flags = new Map<Flag, { values: string[]; source: string }>();
  for (const [key, value] of Object.entries(settings)) {
    if (OWN_KEYS.some((own) => own === key) || value === null) continue;
    const source = `${place}.${key}`;
    const flagName = MODEL_FLAG_NAMES.get(`--${key.replaceAll('_', '-')}`);
    if (flagName === undefined) throw new UsageError(`${source}: unknown setting of a model${suggest(key)}`);
    const values = toValues(flagName, value, source);
    flags.set(flagName.flag as Flag, {
      values: flagName.isNegation ? values.map((on) => String(on !== 'true')) : values,
      source,
    });
  }
  for (const flag of MODEL_FLAGS) {
    const { values, source } = flags.get(flag) ?? { values: [], source: '' };
    for (const value of values) flag.apply(options, value, source);
  }
  if (options.model === '') throw new UsageError(`${place}.model: expected a model, but it is missing`);
  check(options);
  return {
    model: options.model,
    name,
    aliases: readAliases(settings.aliases, `${place}.aliases`),
    engine: options.engine,
    settings: options.settings,
    isPreloaded: readSwitch(settings.preload, `${place}.preload`),
    isPinned: readSwitch(settings.pinned, `${place}.pinned`),
  };
}

function readAliases(value: unknown, place: string): string[] {
  const names: unknown = value ?? [];
  return (Array.isArray(names) ? names : [names]).map((name: unknown) => {
    if (typeof name !== 'string' || name === '')
      throw new UsageError(`${place}: expected names, got ${JSON.stringify(name)}`);
    return name;
  });
}

function readSwitch(value: unknown, place: string): boolean {
  if (value === undefined || value === null) return false;
  if (typeof value !== 'boolean')
    throw new UsageError(`${place}: expected true or false, got ${JSON.stringify(value)}`);
  return value;
}

function suggest(key: string): string {
  const known = [...MODEL_FLAGS.filter(({ isHidden }) => isHidden !== true).map(({ name }) => name), ...OWN_KEYS];
  const name = nearest(key.replaceAll('_', '-'), known);
  return name === undefined ? '' : `; did you mean ${name}?`;
}
