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

/** Whether a module has this name, or ends with it after a dot. */
function endsWithName(module: string, name: string): boolean {
  return module === name || module.endsWith(`.${name}`);
}

/** Returns the expression of what PEFT matches with a pattern. */
function endOfName(pattern: string): string {
  return `(.*\\.)?(${pattern})`;
}

/** The settings of modules, by name. */
export class ModulePatterns {
  readonly #config: LoraConfig;
  readonly #tests: ReadonlyMap<string, TextTest>;

  private constructor(config: LoraConfig, tests: ReadonlyMap<string, TextTest>) {
    this.#config = config;
    this.#tests = tests;
  }

  /** @throws CapstanError `invalid_model` that names a key whose regular expression does not compile. */
  static async compile(config: LoraConfig, compileRegex: CompileRegex): Promise<ModulePatterns> {
    const tests = new Map<string, TextTest>();
    const add = async (key: string, pattern: string) => {
      if (!tests.has(pattern)) tests.set(pattern, await compile(key, pattern, compileRegex));
    };
    for (const [key, patterns] of [
      ['rank_pattern', config.rankPattern],
      ['alpha_pattern', config.alphaPattern],
    ] as const)
      for (const name of patterns.keys()) if (!PLAIN.test(name)) await add(key, endOfName(name));
    for (const [key, names] of [
      ['target_modules', config.targets],
      ['exclude_modules', config.excluded],
    ] as const)
      if (typeof names === 'string') await add(key, names);
    return new ModulePatterns(config, tests);
  }

  rank(module: string): number {
    return this.#find(this.#config.rankPattern, module) ?? this.#config.rank;
  }

  /** Returns the factor of an update. */
  scale(module: string): number {
    const alpha = this.#find(this.#config.alphaPattern, module) ?? this.#config.alpha;
    const rank = this.rank(module);
    return alpha / (this.#config.isRankStabilized ? Math.sqrt(rank) : rank);
  }

  /** Whether `target_parameters` names a parameter of a module. */
  isTargetParameter(parameter: string): boolean {
    return this.#config.targetParameters.some((name) => endsWithName(parameter, name));
  }

  /** Whether `target_modules` names a module. `isOuter`: the embedding or the LM head. */
  isTarget(module: string, layer: number, isOuter: boolean): boolean {
    const { targets, excluded, layers, hasAllLinear } = this.#config;
    if (targets === undefined || layers?.includes(layer) === false || (isOuter && hasAllLinear)) return false;
    return this.#isNamed(targets, module) && !(excluded !== undefined && this.#isNamed(excluded, module));
  }

  #isNamed(names: ModuleNames, module: string): boolean {
    if (typeof names === 'string') return this.#tests.get(names)!(module);
    return names.some((name) => endsWithName(module, name));
  }

  #find(patterns: ReadonlyMap<string, number>, module: string): number | undefined {
    const weight = `${module}.weight`;
    const key = this.isTargetParameter(weight) ? weight : module;
    for (const [name, value] of patterns)
      if (this.#tests.get(endOfName(name))?.(key) ?? endsWithName(key, name)) return value;
    return undefined;
  }
}

async function compile(key: string, pattern: string, compileRegex: CompileRegex): Promise<TextTest> {
  try {
    return await compileRegex(pattern);
  } catch (cause) {
    const { message } = cause as Error;
    throw new CapstanError('invalid_model', `${ADAPTER_CONFIG}: ${key}: ${message}`, { param: key, cause });
  }
}
