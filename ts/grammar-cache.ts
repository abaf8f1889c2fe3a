import { createHash } from 'node:crypto';
import type { NativeGrammar, NativeGrammarSource } from './addon-types';
import { CapstanError } from './errors';
import { type GrammarExpr, rule, sequence } from './text/grammar';

/** Rules can be put together here; GBNF is read natively. */
export type PlannedSource = Exclude<NativeGrammarSource, { kind: 'regex' }>;

/** A grammar that is not compiled yet. */
export interface GrammarPlan {
  /** Equal keys mean equal sources. */
  key: string;
  /** Makes the source; throws where there can be none. */
  source: () => PlannedSource;
  /** The option that errors name, where they know no better. */
  param: string;
}

/** JSON text as part of a key: the order of an object's members counts, as that of properties does. */
export function keyOf(param: string, value: unknown): string {
  try {
    return JSON.stringify(value);
  } catch {
    throw CapstanError.argument(param, 'a value that JSON can hold', value);
  }
}

/** The plan's grammar after something else; equal names mean equal prefixes. */
export function withPrefix(plan: GrammarPlan, name: string, prefix: GrammarExpr): GrammarPlan {
  return { ...plan, key: `${name} ${plan.key}`, source: () => prefixed(plan.source(), prefix) };
}

function prefixed(source: PlannedSource, prefix: GrammarExpr): PlannedSource {
  if (source.kind === 'gbnf') return { ...source, prefix };
  const root = `prefix ${source.root}`;
  return { kind: 'rules', root, rules: [...source.rules, { name: root, expr: sequence(prefix, rule(source.root)) }] };
}

/** A compiled grammar keeps its automaton and the masks made so far: some megabytes at most. */
const MAX_GRAMMARS = 128;

/** Compiled grammars, the most recently used ones kept. Callers that ask for the same one at once share its compilation; failures are not kept. */
export class GrammarCache {
  readonly #compile: (source: NativeGrammarSource) => Promise<NativeGrammar>;
  readonly #maxGrammars: number;
  /** By digest of the key, the least recently used first. */
  readonly #grammars = new Map<string, Promise<NativeGrammar>>();

  constructor(compile: (source: NativeGrammarSource) => Promise<NativeGrammar>, maxGrammars = MAX_GRAMMARS) {
    this.#compile = compile;
    this.#maxGrammars = maxGrammars;
  }

  /** @throws CapstanError `invalid_argument` with the plan's `param`, saying what in the source is wrong and where. */
  async get(plan: GrammarPlan): Promise<NativeGrammar> {
    const digest = createHash('sha256').update(plan.key).digest('base64');
    const known = this.#grammars.get(digest);
    const grammar = known ?? this.#make(plan);
    // Put back at the end.
    this.#grammars.delete(digest);
    this.#grammars.set(digest, grammar);
    if (known === undefined) this.#forgetOldest();
    try {
      return await grammar;
    } catch (error) {
      if (this.#grammars.get(digest) === grammar) this.#grammars.delete(digest);
      throw namingParam(error, plan.param);
    }
  }

  async #make(plan: GrammarPlan): Promise<NativeGrammar> {
    return this.#compile(plan.source());
  }

  #forgetOldest(): void {
    if (this.#grammars.size <= this.#maxGrammars) return;
    const [oldest] = this.#grammars.keys();
    this.#grammars.delete(oldest);
  }
}

function namingParam(cause: unknown, param: string): CapstanError {
  const known = CapstanError.from(cause);
  if (known.param !== undefined && known.param !== 'schema') return known;
  const { code, message, expected, received } = known;
  return new CapstanError(code, message, { param, expected, received, cause });
}
