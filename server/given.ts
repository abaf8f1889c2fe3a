import { UsageError } from './flag-values';
import { type NamedFlag, SERVE_FLAGS } from './flags';
import { defaultServeOptions, type ServeOptions } from './serve-options';
import { type ForeignFlag, VLLM_FLAGS } from './vllm-flags';

/** A name of a flag: whose it is, and whether it means the opposite. */
export interface FlagName {
  flag: NamedFlag | ForeignFlag;
  isNegation: boolean;
}

/** What a command's flags are called. */
export type FlagNames = ReadonlyMap<string, FlagName>;

/** Every name of each flag, aliases and negations included, as it is written on the command line. */
export function namesOf(flags: readonly (NamedFlag | ForeignFlag)[]): FlagNames {
  return new Map<string, FlagName>(
    flags.flatMap((flag) => {
      const named = (name: string, isNegation: boolean): [string, FlagName] => [name, { flag, isNegation }];
      const negations = isSwitch(flag)
        ? [`--no-${flag.name}`, ...('negations' in flag ? (flag.negations ?? []) : [])]
        : [];
      return [
        ...[`--${flag.name}`, ...(flag.aliases ?? [])].map((name) => named(name, false)),
        ...negations.map((name) => named(name, true)),
      ];
    }),
  );
}

/** Those of `capstan serve`. */
export const FLAG_NAMES = namesOf([...SERVE_FLAGS, ...VLLM_FLAGS]);

export function isSwitch(flag: NamedFlag | ForeignFlag): boolean {
  return 'takes' in flag ? flag.takes === 'nothing' : flag.value === undefined;
}

/** What one source says of a flag. */
interface Entry {
  values: string[];
  /** For messages: `--port`, `CAPSTAN_PORT`, `config.yaml: port`. */
  source: string;
}

/** What one source says: the command line, the environment or a configuration file. */
export class Given {
  readonly #entries = new Map<NamedFlag | ForeignFlag, Entry>();

  /** A later value takes the place of an earlier one, unless the flag takes several. @param value Of a switch `true` or `false`. */
  add({ flag, isNegation }: FlagName, value: string, source: string): void {
    const said = isNegation ? (value === 'true' ? 'false' : 'true') : value;
    const earlier = 'separator' in flag && flag.separator !== undefined ? (this.#entries.get(flag)?.values ?? []) : [];
    this.#entries.set(flag, { values: [...earlier, said], source });
  }

  entries(): ReadonlyMap<NamedFlag | ForeignFlag, Entry> {
    return this.#entries;
  }
}

/** @param sources The weakest first; a flag goes by the strongest source that says anything of it. */
export function resolveServeOptions(sources: readonly Given[], env: NodeJS.ProcessEnv): ServeOptions {
  const entries = new Map(sources.flatMap((given) => [...given.entries()]));
  const options = defaultServeOptions(env);
  for (const flag of SERVE_FLAGS) {
    const { values, source } = entries.get(flag) ?? { values: [], source: '' };
    for (const value of values) flag.apply(options, value, source);
  }
  for (const flag of VLLM_FLAGS) {
    const entry = entries.get(flag);
    if (entry !== undefined) takeForeign(flag, entry, options);
  }
  checkTogether(options);
  return options;
}

function takeForeign(flag: ForeignFlag, { values, source }: Entry, options: ServeOptions): void {
  // A switch that is off asks for nothing.
  const isHarmless =
    flag.takes === 'nothing' ? values[0] === 'false' : values.every((value) => flag.harmless?.includes(value));
  if (flag.refusal === undefined) options.ignored.push(source);
  else if (!isHarmless) throw new UsageError(`${source}: not supported: ${flag.refusal}`);
}

function checkTogether(options: ServeOptions): void {
  const { tls, adminHost, adminPort, accessControl, apiKeys, engine, generationConfig, samplingOverrides } = options;
  if ((tls.keyFile === undefined) !== (tls.certFile === undefined))
    throw new UsageError('--ssl-keyfile and --ssl-certfile: expected both, got one');
  if (tls.passphrase !== undefined && tls.keyFile === undefined)
    throw new UsageError('--ssl-keyfile-password: expected --ssl-keyfile and --ssl-certfile with it');
  if (adminHost !== undefined && adminPort === undefined)
    throw new UsageError('--admin-host: expected --admin-port with it');
  if (accessControl === false && apiKeys.length > 0)
    throw new UsageError('--api-key: expected access control, got --no-access-control');
  const overrides = { ...generationConfig, ...samplingOverrides };
  if (Object.keys(overrides).length > 0) engine.generationConfigOverrides = overrides;
}
