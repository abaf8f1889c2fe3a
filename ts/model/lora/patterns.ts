import { CapstanError } from '../../errors';
import type { LoraConfig, ModuleNames } from './config';
import { ADAPTER_CONFIG } from './config';

/** Returns whether a regular expression matches a whole text. */
export type TextTest = (text: string) => boolean;

/**
 * Compiles a regular expression. The expressions of an adapter come from a file, so they must run in linear time, which
 * those of JavaScript do not.
 */
export type CompileRegex = (pattern: string) => Promise<TextTest>;

/** A name without special characters of regular expressions. A dot stands for itself. */
const PLAIN = /^[\w.-]+$/;

/** The rank of an update, and its factor. */
export interface LoraSettings {
  rank: number;
  scale: number;
}

interface Pattern {
  matches: TextTest;
  value: number;
}

/** Whether a module has this name, or ends with it after a dot. */
function endsWithName(module: string, name: string): boolean {
  const start = module.length - name.length;
  return module.endsWith(name) && (start === 0 || module[start - 1] === '.');
}

function endTest(name: string): TextTest {
  return (module) => endsWithName(module, name);
}

/** Returns the expression of what PEFT matches with a pattern. */
function endOfName(pattern: string): string {
  return `(.*\\.)?(${pattern})`;
}

/** The settings of modules, by name. */
export class ModulePatterns {
  readonly #config: LoraConfig;
  readonly #ranks: readonly Pattern[];
  readonly #alphas: readonly Pattern[];
  readonly #isTarget: TextTest;
  readonly #isExcluded: TextTest;

  private constructor(
    config: LoraConfig,
    ranks: readonly Pattern[],
    alphas: readonly Pattern[],
    isTarget: TextTest,
    isExcluded: TextTest,
  ) {
    this.#config = config;
    this.#ranks = ranks;
    this.#alphas = alphas;
    this.#isTarget = isTarget;
    this.#isExcluded = isExcluded;
  }

  /** @throws CapstanError `invalid_model` that names a key whose regular expression does not compile. */
  static async compile(config: LoraConfig, compileRegex: CompileRegex): Promise<ModulePatterns> {
    const compiled = new Map<string, TextTest>();
    const compile = async (key: string, pattern: string) => {
      const matches = compiled.get(pattern) ?? (await compileOrThrow(key, pattern, compileRegex));
      compiled.set(pattern, matches);
      return matches;
    };
    const compilePatterns = async (key: string, values: ReadonlyMap<string, number>) => {
      const patterns: Pattern[] = [];
      for (const [name, value] of values) {
        const matches = PLAIN.test(name) ? endTest(name) : await compile(key, endOfName(name));
        patterns.push({ matches, value });
      }
      return patterns;
    };
    const compileNames = async (key: string, names: ModuleNames | undefined): Promise<TextTest> => {
      if (typeof names === 'string') return compile(key, names);
      return (module) => names?.some((name) => endsWithName(module, name)) ?? false;
    };
    return new ModulePatterns(
      config,
      await compilePatterns('rank_pattern', config.rankPattern),
      await compilePatterns('alpha_pattern', config.alphaPattern),
      await compileNames('target_modules', config.targets),
      await compileNames('exclude_modules', config.excluded),
    );
  }

  /** The number of comparisons that `settings` needs at most. */
  get count(): number {
    return this.#ranks.length + this.#alphas.length + this.#config.targetParameters.length;
  }

  settings(module: string): LoraSettings {
    const weight = `${module}.weight`;
    // PEFT compares the patterns with the name of the parameter if `target_parameters` names it.
    const key = this.isTargetParameter(weight) ? weight : module;
    const { rank: defaultRank, alpha: defaultAlpha, isRankStabilized } = this.#config;
    const rank = this.#ranks.find(({ matches }) => matches(key))?.value ?? defaultRank;
    const alpha = this.#alphas.find(({ matches }) => matches(key))?.value ?? defaultAlpha;
    return { rank, scale: alpha / (isRankStabilized ? Math.sqrt(rank) : rank) };
  }

  /** Whether `target_parameters` names a parameter of a module. */
  isTargetParameter(parameter: string): boolean {
    return this.#config.targetParameters.some((name) => endsWithName(parameter, name));
  }

  /** Whether `target_modules` names a module. `isOuter`: the embedding or the LM head. */
  isTarget(module: string, layer: number, isOuter: boolean): boolean {
    const { layers, hasAllLinear } = this.#config;
    if (layers?.includes(layer) === false || (isOuter && hasAllLinear)) return false;
    return this.#isTarget(module) && !this.#isExcluded(module);
  }
}

async function compileOrThrow(key: string, pattern: string, compileRegex: CompileRegex): Promise<TextTest> {
  try {
    return await compileRegex(pattern);
  } catch (cause) {
    const { message } = cause as Error;
    throw new CapstanError('invalid_model', `${ADAPTER_CONFIG}: ${key}: ${message}`, { param: key, cause });
  }
}
