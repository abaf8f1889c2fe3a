import { createHash } from 'node:crypto';
import type { NativeGrammar, NativeGrammarSource } from './addon-types';
import { CapstanError } from './errors';
import { abortedError, JobQueue } from './job-queue';
import { type GrammarExpr, rule, sequence } from './text/grammar';

/** Source of a grammar. A regex is wrapped in rules here; GBNF is parsed by the addon. */
export type PlannedSource = Exclude<NativeGrammarSource, { kind: 'regex' }>;

/** A grammar that is not compiled yet. */
export interface GrammarPlan {
  /** Equal keys mean equal sources. */
  key: string;
  /** Builds the source. Throws `invalid_argument` for an unsupported schema. */
  source: () => PlannedSource;
  /** The option that errors name if the compiler does not name one. */
  param: string;
}

/** Returns JSON text for a cache key. The order of members is part of the key, because it is part of the grammar. */
export function jsonKey(param: string, value: unknown): string {
  try {
    return JSON.stringify(value);
  } catch {
    throw CapstanError.argument(param, 'a value that can be written as JSON', value);
  }
}

/** Returns the plan with `prefix` before its grammar. Equal names must mean equal prefixes. */
export function withPrefix(plan: GrammarPlan, name: string, prefix: GrammarExpr): GrammarPlan {
  return { ...plan, key: `${name} ${plan.key}`, source: () => prependPrefix(plan.source(), prefix) };
}

function prependPrefix(source: PlannedSource, prefix: GrammarExpr): PlannedSource {
  if (source.kind === 'gbnf') return { ...source, prefix };
  const root = `prefix ${source.root}`;
  return { kind: 'rules', root, rules: [...source.rules, { name: root, expr: sequence(prefix, rule(source.root)) }] };
}

/** Memory of all cached grammars. Most take some kilobytes; the largest that compile take tens of megabytes. */
const MAX_BYTES = 128 << 20;
/** Number of cached grammars, those being compiled included. */
const MAX_GRAMMARS = 1024;

/**
 * Concurrent compilations. A hostile grammar takes a second, and libuv's four threads also serve files and tokenizers.
 */
const MAX_COMPILING = 2;
/** Waiting compilations, equal to the default of `maxQueuedRequests`. */
const MAX_WAITING = 1_024;

interface Limits {
  maxBytes: number;
  maxGrammars: number;
  maxCompiling: number;
  maxWaiting: number;
}

interface Entry {
  grammar: Promise<NativeGrammar>;
  /** Number of callers that wait for the compilation. */
  numCallers: number;
  /** Aborted when no caller waits any more. */
  abandoned: AbortController;
  /** The compilation has started. */
  hasStarted: boolean;
  /** 0 until it is compiled. */
  sizeBytes: number;
}

/**
 * An LRU cache of compiled grammars. Concurrent callers of one grammar share its compilation. Failures are not cached,
 * and a grammar that all callers abandon before its compilation starts is not compiled.
 */
export class GrammarCache {
  readonly #compile: (source: NativeGrammarSource) => Promise<NativeGrammar>;
  readonly #limits: Limits;
  readonly #queue: JobQueue;
  /** By digest of the key, least recently used first. */
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
    this.#queue = new JobQueue({
      maxRunning: this.#limits.maxCompiling,
      maxWaiting: this.#limits.maxWaiting,
      noun: 'grammars are waiting to be compiled',
    });
  }

  /**
   * Returns the compiled grammar of a plan.
   * @param signal Aborted when the caller no longer waits.
   * @throws CapstanError `invalid_argument` with the plan's `param` and the fault in the source, or `queue_full`.
   */
  async get(plan: GrammarPlan, signal?: AbortSignal): Promise<NativeGrammar> {
    if (signal?.aborted === true) throw abortedError(signal);
    const digest = createHash('sha256').update(plan.key).digest('base64');
    const entry = this.#entries.get(digest) ?? this.#createEntry(plan);
    // Moves the entry to the end of the map: most recently used.
    const isNew = !this.#entries.delete(digest);
    this.#entries.set(digest, entry);
    if (isNew) this.#evict();
    const onAbort = () => {
      if (--entry.numCallers > 0 || entry.hasStarted) return;
      // Later callers of this grammar create a new entry.
      if (this.#entries.get(digest) === entry) this.#entries.delete(digest);
      entry.abandoned.abort();
    };
    entry.numCallers++;
    signal?.addEventListener('abort', onAbort, { once: true });
    try {
      const grammar = await entry.grammar;
      if (isNew) this.#setSize(digest, entry, grammar.sizeBytes);
      return grammar;
    } catch (error) {
      if (this.#entries.get(digest) === entry) this.#entries.delete(digest);
      throw withParam(error, plan.param);
    } finally {
      signal?.removeEventListener('abort', onAbort);
    }
  }

  #createEntry(plan: GrammarPlan): Entry {
    const abandoned = new AbortController();
    const grammar = this.#queue.run(async () => {
      entry.hasStarted = true;
      return this.#compile(plan.source());
    }, abandoned.signal);
    const entry: Entry = { grammar, numCallers: 0, abandoned, hasStarted: false, sizeBytes: 0 };
    return entry;
  }

  /** Does nothing for an entry that was evicted while it was compiled. */
  #setSize(digest: string, entry: Entry, sizeBytes: number): void {
    if (this.#entries.get(digest) !== entry) return;
    entry.sizeBytes = sizeBytes;
    this.#sizeBytes += sizeBytes;
    this.#evict();
  }

  /** Evicts the least recently used entries above the limits. The newest one always stays. */
  #evict(): void {
    const { maxGrammars, maxBytes } = this.#limits;
    for (const [digest, { sizeBytes }] of this.#entries) {
      const fits = this.#entries.size <= maxGrammars && this.#sizeBytes <= maxBytes;
      if (fits || this.#entries.size === 1) return;
      this.#entries.delete(digest);
      this.#sizeBytes -= sizeBytes;
    }
  }
}

/** Sets the param of an `invalid_argument` that names none, or only `schema`. */
function withParam(cause: unknown, param: string): CapstanError {
  const error = CapstanError.from(cause);
  if (error.code !== 'invalid_argument' || (error.param !== undefined && error.param !== 'schema')) return error;
  const { code, message, expected, received } = error;
  return new CapstanError(code, message, { param, expected, received, cause });
}
