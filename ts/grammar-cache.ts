import { createHash } from 'node:crypto';
import type { NativeGrammar } from './addon-types';
import { CapstanError } from './errors';
import { abortedError, JobQueue } from './job-queue';
import type { GrammarSpec } from './text/grammar-source';
import type { ThinkingState } from './text/reasoning';

/** A grammar that is not compiled yet. */
export interface GrammarPlan {
  /** The JSON text of its {@link GrammarSpec}. Equal texts mean equal grammars. */
  json: string;
  /** The option that errors name if the compiler does not name one. */
  param: string;
}

/** @throws CapstanError `invalid_argument` for a value that cannot be written as JSON. */
export function grammarPlan(spec: GrammarSpec, param: string): GrammarPlan {
  try {
    return { json: JSON.stringify(spec), param };
  } catch {
    throw CapstanError.argument(param, 'a value that can be written as JSON', spec);
  }
}

/** Returns the plan of a text after the reasoning that is left. */
export function reasonedPlan({ json, param }: GrammarPlan, format: string, thinking: ThinkingState): GrammarPlan {
  const text = `{"kind":"reasoned","format":"${format}","thinking":"${thinking}","then":${json}}`;
  return { json: text, param };
}

/** Returns the plan of a text after a prefix. */
export function prefixedPlan({ json, param }: GrammarPlan, prefix: string): GrammarPlan {
  return { json: `{"kind":"prefixed","prefix":${JSON.stringify(prefix)},"then":${json}}`, param };
}

/**
 * Returns the plan of the texts of either plan. Errors of `second` name its param, so `first` must name its own. GBNF
 * is refused when the grammar is built.
 */
export function eitherPlan(first: GrammarPlan, { json, param }: GrammarPlan): GrammarPlan {
  const text = `{"kind":"either","first":${first.json},"second":${json},"param":${JSON.stringify(param)}}`;
  return { json: text, param };
}

/** Share of the memory that grammars may use. The rest is for what speeds them up, such as their masks. */
const GRAMMAR_SHARE = 1 / 2;
/** Number of cached grammars, those being compiled included. */
const MAX_GRAMMARS = 1024;

/**
 * Concurrent compilations. A hostile grammar takes a second, and libuv's four threads also serve files and tokenizers.
 */
const MAX_COMPILING = 2;
/** Waiting compilations, equal to the default of `maxQueuedRequests`. */
const MAX_WAITING = 1_024;

interface Limits {
  /** Memory of all grammars and masks: the option `grammarCacheBytes`. */
  maxTotalBytes: number;
  maxGrammars: number;
  maxCompiling: number;
  maxWaiting: number;
}

interface Entry {
  grammar: Promise<NativeGrammar>;
  /** Number of callers that wait for the compilation, or have not passed the grammar to the engine yet. */
  numCallers: number;
  /** Aborted when no caller waits any more. */
  abandoned: AbortController;
  /** The compilation has started. */
  hasStarted: boolean;
  /** Undefined until it is compiled. */
  compiled?: NativeGrammar;
}

/**
 * An LRU cache of compiled grammars. Concurrent callers of one grammar share its compilation. Failures are not cached,
 * and a grammar that all callers abandon before its compilation starts is not compiled. A grammar in use is never
 * evicted, so each compiled grammar is in memory once and counted. The evicted ones are freed at once, because the
 * garbage collector may take its time.
 */
export class GrammarCache {
  readonly #compile: (json: string) => Promise<NativeGrammar>;
  readonly #limits: Limits;
  readonly #queue: JobQueue;
  /** By digest of the key, least recently used first. */
  readonly #entries = new Map<string, Entry>();
  #sizeBytes = 0;

  /** @param compile Compiles the grammar of the JSON text of a {@link GrammarSpec}. */
  constructor(
    compile: (json: string) => Promise<NativeGrammar>,
    limits: Partial<Limits> & Pick<Limits, 'maxTotalBytes'>,
  ) {
    this.#compile = compile;
    this.#limits = {
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
   * @param signal Aborted when the caller has passed the grammar to the engine, or no longer wants it. Without it, the
   *   grammar may be freed once the promise is settled.
   * @throws CapstanError `invalid_argument` with the plan's `param` and the fault in the source, or `queue_full` if too
   *   many grammars wait to be compiled or are in use.
   */
  async get(plan: GrammarPlan, signal?: AbortSignal): Promise<NativeGrammar> {
    if (signal?.aborted === true) throw abortedError(signal);
    const digest = createHash('sha256').update(plan.json).digest('base64');
    const entry = this.#entries.get(digest) ?? this.#createEntry(plan);
    // Moves the entry to the end of the map: most recently used.
    const isNew = !this.#entries.delete(digest);
    this.#entries.set(digest, entry);
    if (isNew) this.#evict(entry);
    const leave = () => {
      if (--entry.numCallers > 0 || entry.hasStarted) return;
      // Later callers of this grammar create a new entry.
      if (this.#entries.get(digest) === entry) this.#entries.delete(digest);
      entry.abandoned.abort();
    };
    entry.numCallers++;
    signal?.addEventListener('abort', leave, { once: true });
    try {
      return await entry.grammar;
    } catch (error) {
      if (this.#entries.get(digest) === entry) this.#entries.delete(digest);
      throw withParam(error, plan.param);
    } finally {
      if (signal === undefined) leave();
    }
  }

  #createEntry(plan: GrammarPlan): Entry {
    const abandoned = new AbortController();
    const grammar = this.#queue.run(async () => {
      entry.hasStarted = true;
      return this.#admit(entry, await this.#compile(plan.json));
    }, abandoned.signal);
    const entry: Entry = { grammar, numCallers: 0, abandoned, hasStarted: false };
    return entry;
  }

  #admit(entry: Entry, grammar: NativeGrammar): NativeGrammar {
    const { sizeBytes } = grammar;
    const maxBytes = this.#limits.maxTotalBytes * GRAMMAR_SHARE;
    entry.compiled = grammar;
    this.#sizeBytes += sizeBytes;
    this.#evict(entry);
    if (this.#sizeBytes <= maxBytes) return grammar;
    this.#free(entry);
    if (sizeBytes > maxBytes)
      throw new CapstanError(
        'invalid_argument',
        `The compiled grammar takes ${sizeBytes} bytes, and grammarCacheBytes allows ${maxBytes}: simplify it, or raise grammarCacheBytes`,
      );
    throw new CapstanError(
      'queue_full',
      `The grammars of open calls take ${this.#sizeBytes} of at most ${maxBytes} bytes: retry later, or raise grammarCacheBytes`,
    );
  }

  /** Evicts the least recently used entries above the limits, except `newest` and those in use. */
  #evict(newest: Entry): void {
    const { maxGrammars, maxTotalBytes } = this.#limits;
    for (const [digest, entry] of this.#entries) {
      if (this.#entries.size <= maxGrammars && this.#sizeBytes <= maxTotalBytes * GRAMMAR_SHARE) return;
      if (entry === newest || entry.numCallers > 0 || entry.compiled?.isInUse() !== false) continue;
      this.#entries.delete(digest);
      this.#free(entry);
    }
  }

  #free(entry: Entry): void {
    this.#sizeBytes -= entry.compiled?.sizeBytes ?? 0;
    entry.compiled?.free();
    entry.compiled = undefined;
  }
}

/** Sets the param of an `invalid_argument` that names none, or only `schema`: that of the message, if it names one. */
function withParam(cause: unknown, param: string): CapstanError {
  const error = CapstanError.from(cause);
  if (error.code !== 'invalid_argument' || (error.param !== undefined && error.param !== 'schema')) return error;
  const { code, message, expected, received } = error;
  const schema = /^tools\[\d+\]\.function\.parameters/.exec(message)?.[0];
  return new CapstanError(code, message, { param: schema ?? param, expected, received, cause });
}
