import { createHash } from 'node:crypto';
import type { NativeGrammar, NativeGrammarSource } from './addon-types';
import { CapstanError } from './errors';
import { abortedError, JobLine } from './job-line';
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

/** Compilations at once: a hostile grammar takes a second of a thread, and files and texts need some of the same four. */
const MAX_COMPILING = 2;
/** Grammars that wait for one: as many as requests may wait. */
const MAX_WAITING = 1_024;

interface Limits {
  maxBytes: number;
  maxGrammars: number;
  maxCompiling: number;
  maxWaiting: number;
}

interface Entry {
  grammar: Promise<NativeGrammar>;
  /** Those who wait for it. */
  numCallers: number;
  /** Aborted when nobody waits for it any more. */
  unwanted: AbortController;
  /** Its compilation is under way, or over. */
  hasBegun: boolean;
  /** 0 until it is compiled. */
  sizeBytes: number;
}

/** Compiled grammars, the most recently used ones kept. Callers that ask for the same one at once share its compilation; failures are not kept. What all callers have left is not compiled. */
export class GrammarCache {
  readonly #compile: (source: NativeGrammarSource) => Promise<NativeGrammar>;
  readonly #limits: Limits;
  readonly #line: JobLine;
  /** By digest of the key, the least recently used first. */
  readonly #entries = new Map<string, Entry>();
  #sizeBytes = 0;

  constructor(compile: (source: NativeGrammarSource) => Promise<NativeGrammar>, limits: Partial<Limits> = {}) {
    this.#compile = compile;
    this.#limits = {
      maxBytes: MAX_BYTES,
      maxGrammars: MAX_GRAMMARS,
      maxCompiling: MAX_COMPILING,
      maxWaiting: MAX_WAITING,
      ...limits,
    };
    this.#line = new JobLine({
      maxRunning: this.#limits.maxCompiling,
      maxWaiting: this.#limits.maxWaiting,
      noun: 'grammars wait to be compiled',
    });
  }

  /**
   * @param signal The caller's: aborted when it does not wait any more.
   * @throws CapstanError `invalid_argument` with the plan's `param`, saying what in the source is wrong and where; `queue_full` where too many wait.
   */
  async get(plan: GrammarPlan, signal?: AbortSignal): Promise<NativeGrammar> {
    if (signal?.aborted === true) throw abortedError(signal);
    const digest = createHash('sha256').update(plan.key).digest('base64');
    const entry = this.#entries.get(digest) ?? this.#enter(plan);
    // Put back at the end.
    const isNew = !this.#entries.delete(digest);
    this.#entries.set(digest, entry);
    if (isNew) this.#forgetOldest();
    const leave = () => {
      if (--entry.numCallers > 0 || entry.hasBegun) return;
      // Whoever comes now begins anew.
      if (this.#entries.get(digest) === entry) this.#entries.delete(digest);
      entry.unwanted.abort();
    };
    entry.numCallers++;
    signal?.addEventListener('abort', leave, { once: true });
    try {
      const grammar = await entry.grammar;
      if (isNew) this.#weigh(digest, entry, grammar.sizeBytes);
      return grammar;
    } catch (error) {
      if (this.#entries.get(digest) === entry) this.#entries.delete(digest);
      throw namingParam(error, plan.param);
    } finally {
      signal?.removeEventListener('abort', leave);
    }
  }

  #enter(plan: GrammarPlan): Entry {
    const unwanted = new AbortController();
    const grammar = this.#line.run(async () => {
      entry.hasBegun = true;
      return this.#compile(plan.source());
    }, unwanted.signal);
    const entry: Entry = { grammar, numCallers: 0, unwanted, hasBegun: false, sizeBytes: 0 };
    return entry;
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
      if (
        this.#entries.size === 1 ||
        (this.#entries.size <= this.#limits.maxGrammars && this.#sizeBytes <= this.#limits.maxBytes)
      )
        return;
      this.#entries.delete(digest);
      this.#sizeBytes -= sizeBytes;
    }
  }
}

function namingParam(cause: unknown, param: string): CapstanError {
  const known = CapstanError.from(cause);
  if (known.code !== 'invalid_argument' || (known.param !== undefined && known.param !== 'schema')) return known;
  const { code, message, expected, received } = known;
  return new CapstanError(code, message, { param, expected, received, cause });
}
