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

/** What the kept grammars may take together. Most take some kilobytes, the largest that compile some tens of megabytes. */
const MAX_BYTES = 128 << 20;
/** Also of those whose compilation is under way. */
const MAX_GRAMMARS = 1024;

interface Limits {
  maxBytes: number;
  maxGrammars: number;
}

interface Entry {
  grammar: Promise<NativeGrammar>;
  /** 0 until it is compiled. */
  sizeBytes: number;
}

/** Compiled grammars, the most recently used ones kept. Callers that ask for the same one at once share its compilation; failures are not kept. */
export class GrammarCache {
  readonly #compile: (source: NativeGrammarSource) => Promise<NativeGrammar>;
  readonly #limits: Limits;
  /** By digest of the key, the least recently used first. */
  readonly #entries = new Map<string, Entry>();
  #sizeBytes = 0;

  constructor(compile: (source: NativeGrammarSource) => Promise<NativeGrammar>, limits: Partial<Limits> = {}) {
    this.#compile = compile;
    this.#limits = { maxBytes: MAX_BYTES, maxGrammars: MAX_GRAMMARS, ...limits };
  }

  /** @throws CapstanError `invalid_argument` with the plan's `param`, saying what in the source is wrong and where. */
  async get(plan: GrammarPlan): Promise<NativeGrammar> {
    const digest = createHash('sha256').update(plan.key).digest('base64');
    const entry = this.#entries.get(digest) ?? { grammar: this.#make(plan), sizeBytes: 0 };
    // Put back at the end.
    const isNew = !this.#entries.delete(digest);
    this.#entries.set(digest, entry);
    if (isNew) this.#forgetOldest();
    try {
      const grammar = await entry.grammar;
      if (isNew) this.#weigh(digest, entry, grammar.sizeBytes);
      return grammar;
    } catch (error) {
      if (this.#entries.get(digest) === entry) this.#entries.delete(digest);
      throw namingParam(error, plan.param);
    }
  }

  async #make(plan: GrammarPlan): Promise<NativeGrammar> {
    return this.#compile(plan.source());
  }

  /** It may have been forgotten while it was compiled. */
  #weigh(digest: string, entry: Entry, sizeBytes: number): void {
    if (this.#entries.get(digest) !== entry) return;
    entry.sizeBytes = sizeBytes;
    this.#sizeBytes += sizeBytes;
    this.#forgetOldest();
  }

  /** The newest stays, whatever it takes. */
  #forgetOldest(): void {
    for (const [digest, { sizeBytes }] of this.#entries) {
      if (this.#entries.size === 1 || (this.#entries.size <= this.#limits.maxGrammars && this.#sizeBytes <= this.#limits.maxBytes)) return;
      this.#entries.delete(digest);
      this.#sizeBytes -= sizeBytes;
    }
  }
}

function namingParam(cause: unknown, param: string): CapstanError {
  const known = CapstanError.from(cause);
  if (known.param !== undefined && known.param !== 'schema') return known;
  const { code, message, expected, received } = known;
  return new CapstanError(code, message, { param, expected, received, cause });
}
