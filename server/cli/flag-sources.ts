import { existsSync } from 'node:fs';
import path from 'node:path';
import { UsageError } from '../base/usage-error';
import { type NamedFlag, SERVE_FLAGS } from './serve-flags';
import { defaultServeOptions, type ServeOptions } from '../inference/serve-options';
import { type FlagName, type FlagNames, flagNamesOf, isSwitch } from './flag-names';
import { readModelTable } from './model-table';
import { type VllmFlag, VLLM_FLAGS } from './vllm-flags';

export { type FlagName, type FlagNames, flagNamesOf, isSwitch };

/** The flags of `capstan serve`, including those of vLLM. */
export const FLAG_NAMES = flagNamesOf([...SERVE_FLAGS, ...VLLM_FLAGS]);

/** The values of one flag in one source. */
interface Entry {
  values: string[];
  /** The place, for messages: `--port`, `CAPSTAN_PORT`, `config.yaml: port`. */
  source: string;
}

/** The flag values of one source: the command line, the environment or a configuration file. */
export class FlagValues {
  readonly #entries = new Map<NamedFlag | VllmFlag, Entry>();

  /**
   * Adds a value. It replaces an earlier one unless the flag takes several values.
   * @param value `true` or `false` for a switch.
   */
  add({ flag, isNegation }: FlagName, value: string, source: string): void {
    const effective = isNegation ? String(value !== 'true') : value;
    const earlier = 'separator' in flag && flag.separator !== undefined ? (this.#entries.get(flag)?.values ?? []) : [];
    this.#entries.set(flag, { values: [...earlier, effective], source });
  }

  entries(): ReadonlyMap<NamedFlag | VllmFlag, Entry> {
    return this.#entries;
  }
}

/** @param sources Lowest priority first. For each flag, the last source that has it wins. */
export function resolveServeOptions(sources: readonly FlagValues[], env: NodeJS.ProcessEnv): ServeOptions {
  const entries = new Map(sources.flatMap((source) => [...source.entries()]));
  const options = defaultServeOptions(env);
  preferNearerDatabase(sources, entries);
  for (const flag of SERVE_FLAGS) {
    const { values, source } = entries.get(flag) ?? { values: [], source: '' };
    for (const value of values) flag.apply(options, value, source);
  }
  for (const flag of VLLM_FLAGS) {
    const entry = entries.get(flag);
    if (entry !== undefined) acceptVllmFlag(flag, entry, options);
  }
  checkCombinations(options);
  if (options.modelTable !== undefined) {
    const single = entries.get(FLAG_NAMES.get('--model')!.flag)?.source;
    options.models = readModelTable(options, options.modelTable, single, checkEngineOptions);
  }
  checkDataDir(entries.get(FLAG_NAMES.get('--data-dir')!.flag)?.source, options);
  return options;
}

/**
 * The database of a `--data-dir` on the command line takes the place of the one in CAPSTAN_KEYS_DB, as for
 * `capstan keys`.
 */
function preferNearerDatabase(sources: readonly FlagValues[], entries: Map<NamedFlag | VllmFlag, Entry>): void {
  const { flag: keysDb } = FLAG_NAMES.get('--keys-db')!;
  const { flag: dataDir } = FLAG_NAMES.get('--data-dir')!;
  const lastOf = (flag: NamedFlag | VllmFlag) => sources.findLastIndex((source) => source.entries().has(flag));
  if (lastOf(keysDb) < 0 || lastOf(dataDir) <= lastOf(keysDb)) return;
  const { values, source } = entries.get(dataDir)!;
  entries.set(keysDb, { values: values.map((folder) => path.join(folder, 'capstan.db')), source });
}

/**
 * A directory without keys is one of files and batches. CAPSTAN_DATA_DIR is also that of `capstan up`.
 * @throws UsageError for a key database in it that has no effect.
 */
function checkDataDir(
  source: string | undefined,
  { accessControl, apiKeys, keysDb, dataDir }: Pick<ServeOptions, 'accessControl' | 'apiKeys' | 'keysDb' | 'dataDir'>,
): void {
  if (source === 'CAPSTAN_DATA_DIR' || dataDir === undefined || keysDb !== undefined || accessControl === false) return;
  if (!existsSync(path.join(dataDir, 'capstan.db'))) return;
  if (apiKeys.length > 0)
    throw new UsageError(
      `${source}: expected no fixed keys (--api-key, CAPSTAN_API_KEY or VLLM_API_KEY), because they take the place of its key database. Use --keys-db ${path.join(dataDir, 'capstan.db')} to accept keys of both`,
    );
  if (accessControl === undefined)
    throw new UsageError(`${source}: expected --access-control too: the directory contains the key database`);
}

function acceptVllmFlag(flag: VllmFlag, { values, source }: Entry, options: ServeOptions): void {
  const isHarmless =
    flag.takes === 'nothing' ? values[0] === 'false' : values.every((value) => flag.harmless?.includes(value));
  if (flag.refusal === undefined) options.ignored.push(source);
  else if (!isHarmless) throw new UsageError(`${source}: not supported: ${flag.refusal}`);
}

function checkCombinations(options: ServeOptions): void {
  const { tls, adminHost, adminPort, accessControl, apiKeys } = options;
  if ((tls.keyFile === undefined) !== (tls.certFile === undefined))
    throw new UsageError('--ssl-keyfile and --ssl-certfile: expected both, got one');
  if (tls.passphrase !== undefined && tls.keyFile === undefined)
    throw new UsageError('--ssl-keyfile-password: expected --ssl-keyfile and --ssl-certfile too');
  checkEngineOptions(options);
  if (adminHost !== undefined && adminPort === undefined)
    throw new UsageError('--admin-host: expected --admin-port too');
  if (accessControl === false && apiKeys.length > 0)
    throw new UsageError('--api-key: expected access control to be on, got --no-access-control');
}

/** Checks the options of one model, and completes those of its engine. */
function checkEngineOptions(options: ServeOptions): void {
  const { engine, generationConfig, samplingOverrides } = options;
  checkAdapters(options);
  const overrides = { ...generationConfig, ...samplingOverrides };
  if (Object.keys(overrides).length > 0) engine.generationConfigOverrides = overrides;
}

/** Of the library. */
const DEFAULT_MAX_LORAS = 64;

/** NOTE: `--max-loras` of vLLM is a limit of one step, not of `--lora-modules`, so these always fit. */
function checkAdapters({ engine, loraDir, adminPort, servedNames }: ServeOptions): void {
  const names = Object.keys(engine.loraModules ?? {});
  const numModules = names.length;
  const taken = names.find((name) => servedNames.includes(name));
  if (taken !== undefined)
    throw new UsageError(`--lora-modules: expected names that the model does not have, got '${taken}'`);
  if (engine.enableLora === false && numModules > 0)
    throw new UsageError('--lora-modules: expected --enable-lora, got --no-enable-lora');
  if (loraDir !== undefined && adminPort === undefined)
    throw new UsageError('--lora-dir: expected --admin-port too, because adapters are loaded over that port');
  if (loraDir !== undefined) engine.enableLora ??= true;
  if (numModules > (engine.maxLoras ?? 0) && (engine.maxLoras !== undefined || numModules > DEFAULT_MAX_LORAS))
    engine.maxLoras = numModules;
}
