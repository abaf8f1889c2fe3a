import type { NativeEngine, NativeModelSpec } from './addon-types';
import { checkBoolean, checkKnownKeys, checkNumber, checkObject, checkString, checkTokenIds } from './checks';
import { checkContext, DEFAULT_PRIORITY, whenAborted } from './call-context';
import type { CallTable } from './call-table';
import { CapstanError, closedError } from './errors';
import type { ModelConfig } from './model/config';
import type { Model } from './model/model';
import type { PoolingPlan } from './model/pooling-plan';
import {
  type EmbedOptions,
  type EmbedResult,
  type ModelTask,
  type PoolingOptions,
  type PoolingUsage,
  type ScoreResult,
  unsupportedTask,
} from './pooling';
import { type PooledInput, PoolQueue, type WaitingInputs } from './pool-queue';
import { estimateTokens, type QueueLimiter, type Reservation } from './queue-limiter';
import { looseTextBytes } from './text-limits';
import { RERANKER_PROMPT, rerankerBody } from './text/reranker-prompt';
import type { EncodedInput, TextInput } from './text/truncate-input';

/** Maximum number of inputs, pairs or documents of one call. */
export const MAX_INPUTS = 65_536;
/** Texts that are tokenized together, while the engine computes those before them. */
const TEXTS_PER_GROUP = 64;

/** NOTE: records, so that a field missing here does not compile. */
const POOLING_KEYS = Object.keys({
  signal: true,
  cacheSalt: true,
  requestId: true,
  priority: true,
  truncatePromptTokens: true,
  onTokens: true,
} satisfies Record<keyof PoolingOptions, true>);
const EMBED_KEYS = [
  ...POOLING_KEYS,
  ...Object.keys({
    dimensions: true,
    normalize: true,
    promptName: true,
  } satisfies Record<Exclude<keyof EmbedOptions, keyof PoolingOptions>, true>),
];

export interface PoolerOptions {
  native: NativeEngine;
  model: Model;
  plan: PoolingPlan;
  calls: CallTable;
  queueLimiter: QueueLimiter;
  maxModelLen: number;
  maxNumSeqs: number;
  maxQueuedRequests: number;
}

/** Names of pairs, and of their texts, in errors. */
interface PairNames {
  pair(index: number): InputName;
  text(index: number, side: 0 | 1): InputName;
}

/** `where` stands in messages. Default: `param`. */
interface InputName {
  param: string;
  where?: string;
}

/** An input before it is tokenized. */
type Input = InputName & ({ ids: Int32Array } | { text: TextInput });

/** Embeddings and scores of an engine whose model pools. */
export class Pooler {
  readonly #options: PoolerOptions;
  readonly #queue: PoolQueue;
  /** Token ids around a pair, encoded on first use. */
  #frame?: Promise<Int32Array[]>;
  #isClosed = false;

  constructor(options: PoolerOptions) {
    this.#options = options;
    const { native, calls, maxNumSeqs, maxQueuedRequests } = options;
    const maxOpen = Math.min(2 * maxNumSeqs, maxNumSeqs + maxQueuedRequests);
    this.#queue = new PoolQueue({ native, calls, maxOpen });
  }

  /** Inputs that the addon does not have yet, and their tokens. */
  get waiting(): WaitingInputs {
    return this.#queue.waiting;
  }

  close(): void {
    this.#isClosed = true;
    this.#queue.close();
  }

  async embed(inputs: Parameters<typeof toInputs>[0], options: EmbedOptions): Promise<EmbedResult> {
    const { plan } = this.#options;
    checkKnownKeys('options', checkObject('options', options), EMBED_KEYS);
    if (plan.task !== 'embed') throw unsupportedTask('embed', plan.task);
    const { spec } = this.#options.model.config;
    const size = embeddingSize(spec);
    const { dimensions = size, normalize = plan.normalizes } = options;
    checkNumber('dimensions', dimensions, { min: 1, max: size, isInteger: true });
    checkBoolean('normalize', normalize);
    const prompt = this.#promptOf(options.promptName);
    const { results, usage } = await this.#run(toInputs(inputs, prompt, spec.vocabSize), options);
    return { embeddings: results.map((values) => toEmbedding(values, dimensions, normalize)), usage };
  }

  async score(
    pairs: readonly (readonly [string, string])[],
    options: PoolingOptions,
    names: PairNames,
  ): Promise<ScoreResult> {
    const { plan } = this.#options;
    checkKnownKeys('options', checkObject('options', options), POOLING_KEYS);
    if (plan.task === 'embed') return this.#compare(pairs, options, names);
    const isYesNo = plan.activation === 'yes_no';
    const instruction = plan.defaultPromptName === undefined ? undefined : plan.prompts[plan.defaultPromptName];
    const inputs = pairs.map((pair, i): Input => {
      return { ...names.pair(i), text: isYesNo ? rerankerBody(...pair, instruction) : pair };
    });
    const { results, usage } = await this.#run(inputs, options, isYesNo ? await this.#rerankerFrame() : undefined);
    return { scores: results.map((values) => this.#toScore(values)), usage };
  }

  /** Returns the cosines of the embeddings. A text that is in several pairs is computed once. */
  async #compare(
    pairs: readonly (readonly [string, string])[],
    options: PoolingOptions,
    names: PairNames,
  ): Promise<ScoreResult> {
    const indices = new Map<string, number>();
    const inputs: Input[] = [];
    const prompt = this.#promptOf(undefined);
    for (const [i, pair] of pairs.entries())
      for (const side of [0, 1] as const) {
        const text = pair[side];
        if (indices.has(text)) continue;
        indices.set(text, inputs.length);
        inputs.push({ ...names.text(i, side), text: prompt + text });
      }
    const { results, usage } = await this.#run(inputs, options);
    const unit = results.map((values) => toEmbedding(values, values.length, true));
    const cosine = ([a, b]: readonly [string, string]): number => dot(unit[indices.get(a)!], unit[indices.get(b)!]);
    return { scores: pairs.map(cosine), usage };
  }

  #toScore(values: Float32Array): number {
    const { activation } = this.#options.plan;
    if (activation === 'identity') return values[0];
    return sigmoid(activation === 'yes_no' ? values[0] - values[1] : values[0]);
  }

  #promptOf(promptName: string | undefined): string {
    const { prompts, defaultPromptName } = this.#options.plan;
    const name = promptName ?? defaultPromptName;
    if (name === undefined) return '';
    if (!Object.hasOwn(prompts, checkString('promptName', name))) {
      const names = Object.keys(prompts);
      const expected = names.length === 0 ? 'none, because this model has no prompts' : `one of ${names.join(', ')}`;
      throw CapstanError.argument('promptName', expected, name);
    }
    return prompts[name];
  }

  #rerankerFrame(): Promise<Int32Array[]> {
    const { before, after } = RERANKER_PROMPT;
    this.#frame ??= this.#options.model.text.encodeTexts([before, after]).catch((error: unknown) => {
      this.#frame = undefined;
      throw error;
    });
    return this.#frame;
  }

  /** Computes the inputs of one call. @param frame Token ids before and after each input. */
  async #run(
    inputs: readonly Input[],
    options: PoolingOptions,
    frame?: readonly Int32Array[],
  ): Promise<{ results: Float32Array[]; usage: PoolingUsage }> {
    const { signal, cacheSalt = '', requestId = '', priority = DEFAULT_PRIORITY, truncatePromptTokens } = options;
    const { onTokens = () => {} } = options;
    checkContext(signal, cacheSalt, requestId, priority);
    if (typeof onTokens !== 'function') throw CapstanError.argument('onTokens', 'a function', onTokens);
    const maxTokens = this.#checkTruncation(truncatePromptTokens);
    if (signal?.aborted === true)
      throw new CapstanError('aborted', 'The call was aborted before it started', { cause: signal.reason });
    if (this.#isClosed) throw closedError();
    const reservation = this.#options.queueLimiter.reserve(priority);
    const call = this.#queue.open(priority, onTokens);
    try {
      const { aborted, release } = abortOf(signal);
      try {
        return await Promise.race([
          aborted,
          this.#compute(inputs, { maxTokens, cacheSalt, priority, frame, reservation, call }),
        ]);
      } finally {
        release();
      }
    } finally {
      reservation.release();
      call.end();
    }
  }

  async #compute(
    inputs: readonly Input[],
    options: RunOptions,
  ): Promise<{ results: Float32Array[]; usage: PoolingUsage }> {
    const { call, reservation, cacheSalt, priority, maxTokens } = options;
    const pending: Promise<PooledInput>[] = [];
    let numSubmitted = 0;
    let failure: { error: unknown } | undefined;
    for (let begin = 0; begin < inputs.length; begin += TEXTS_PER_GROUP) {
      const group = inputs.slice(begin, begin + TEXTS_PER_GROUP);
      reservation.countTokens(sumOf(group, (input) => Math.min(estimateInput(input), maxTokens)));
      const encoded = await this.#encode(group, options);
      if (failure !== undefined) throw failure.error;
      reservation.countTokens(sumOf(encoded, ({ ids }) => ids.length));
      reservation.checkTokens(numSubmitted);
      // The queue counts them now.
      reservation.countTokens(0);
      for (const { ids, typeIds } of encoded) {
        const types = typeIds.some((type) => type !== 0) ? { tokenTypes: typeIds } : {};
        const result = call.add({ promptTokenIds: ids, ...types, cacheSalt, priority });
        numSubmitted += ids.length;
        const end = () => (numSubmitted -= ids.length);
        result.then(end, (error: unknown) => {
          end();
          failure ??= { error };
        });
        pending.push(result);
      }
    }
    const results = await Promise.all(pending);
    return {
      results: results.map(({ values }) => values),
      usage: {
        promptTokens: sumOf(results, ({ promptTokens }) => promptTokens),
        cachedTokens: sumOf(results, ({ cachedTokens }) => cachedTokens),
      },
    };
  }

  async #encode(group: readonly Input[], { maxTokens, frame, reservation }: RunOptions): Promise<EncodedInput[]> {
    const { model } = this.#options;
    const { signal } = reservation;
    const texts = group.flatMap((input) => ('text' in input ? [input] : []));
    for (const input of texts) this.#checkText(input);
    const numFrame = frame === undefined ? 0 : frame[0].length + frame[1].length;
    const limit = Math.max(maxTokens - numFrame, 0);
    const bodies = await model.text.encodeInputs(
      texts.map(({ text }) => text),
      { maxTokens: limit, addSpecialTokens: frame === undefined },
      signal,
    );
    const encoded = frame === undefined ? bodies : bodies.map(({ ids }) => inFrame(ids, frame));
    let numTaken = 0;
    return group.map((input) => {
      const one = 'ids' in input ? toEncoded(input.ids.slice(0, maxTokens)) : encoded[numTaken++];
      return this.#checkEncoded(input, this.#hasTypes ? one : toEncoded(one.ids), maxTokens);
    });
  }

  get #hasTypes(): boolean {
    return (this.#options.model.config.spec.embedding?.numTokenTypes ?? 0) > 1;
  }

  #checkEncoded({ param, where = param }: InputName, encoded: EncodedInput, maxTokens: number): EncodedInput {
    const { length } = encoded.ids;
    const { maxModelLen } = this.#options;
    if (length === 0) throw CapstanError.unexpected('invalid_argument', param, 'at least one token', 'none');
    if (length > maxTokens)
      throw CapstanError.argument('truncatePromptTokens', 'more than the tokens that surround each text', maxTokens);
    if (length > maxModelLen)
      throw new CapstanError(
        'context_length_exceeded',
        `${where}: expected at most ${maxModelLen} tokens, the context length of this model, got ${length}. ` +
          'With truncatePromptTokens: -1 the end of a longer text is cut off',
        { param, expected: `at most ${maxModelLen} tokens`, received: String(length) },
      );
    return encoded;
  }

  /** Refuses a text that is too long even with its end cut off later. A word may be one token, however long. */
  #checkText({ param, where = param, text }: InputName & { text: TextInput }): void {
    const { maxModelLen } = this.#options;
    const max = looseTextBytes(maxModelLen);
    const texts = partsOf(text);
    // A UTF-16 code unit takes at most 3 bytes in UTF-8.
    if (sumOf(texts, ({ length }) => 3 * length) <= max) return;
    const numBytes = sumOf(texts, (part) => Buffer.byteLength(part));
    if (numBytes <= max) return;
    throw new CapstanError(
      'context_length_exceeded',
      `${where}: expected at most ${max} bytes of text for the ${maxModelLen} tokens of this model, got ${numBytes}`,
      { param, expected: `at most ${max} bytes`, received: `${numBytes} bytes` },
    );
  }

  /** Returns the most tokens of an input. Infinity: longer ones are refused. */
  #checkTruncation(limit: number | undefined): number {
    const { maxModelLen } = this.#options;
    if (limit === undefined) return Infinity;
    if (limit === -1) return maxModelLen;
    if (!Number.isInteger(limit) || limit < 1 || limit > maxModelLen)
      throw CapstanError.argument('truncatePromptTokens', `-1 or an integer from 1 to ${maxModelLen}`, limit);
    return limit;
  }
}

interface RunOptions {
  maxTokens: number;
  cacheSalt: string;
  priority: number;
  frame: readonly Int32Array[] | undefined;
  reservation: Reservation;
  call: ReturnType<PoolQueue['open']>;
}

function toInputs(
  inputs: string | readonly number[] | Int32Array | readonly (string | readonly number[] | Int32Array)[],
  prompt: string,
  vocabSize: number,
): Input[] {
  const isOne = typeof inputs === 'string' || ArrayBuffer.isView(inputs) || typeof inputs?.[0] === 'number';
  const list: unknown = isOne ? [inputs] : inputs;
  if (!Array.isArray(list) || list.length === 0)
    throw CapstanError.argument('inputs', 'a text, token ids, or a list of one or more of them', inputs);
  checkCount('inputs', list);
  return list.map((input: unknown, i): Input => {
    const param = isOne ? 'inputs' : `inputs[${i}]`;
    if (typeof input === 'string') return { param, text: prompt + input };
    return { param, ids: checkTokenIds(param, input, vocabSize) };
  });
}

function checkCount(param: string, { length }: readonly unknown[]): void {
  if (length > MAX_INPUTS)
    throw CapstanError.unexpected('invalid_argument', param, `at most ${MAX_INPUTS}`, String(length));
}

function estimateInput(input: Input): number {
  if ('ids' in input) return input.ids.length;
  return sumOf(partsOf(input.text), estimateTokens);
}

function partsOf(text: TextInput): readonly string[] {
  return typeof text === 'string' ? [text] : text;
}

function sumOf<T>(items: readonly T[], count: (item: T) => number): number {
  return items.reduce((sum, item) => sum + count(item), 0);
}

function toEncoded(ids: Int32Array): EncodedInput {
  return { ids, typeIds: new Int32Array(0) };
}

function inFrame(ids: Int32Array, [before, after]: readonly Int32Array[]): EncodedInput {
  const whole = new Int32Array(before.length + ids.length + after.length);
  whole.set(before);
  whole.set(ids, before.length);
  whole.set(after, before.length + ids.length);
  return toEncoded(whole);
}

function toEmbedding(values: Float32Array, dimensions: number, isNormalized: boolean): Float32Array {
  const kept = dimensions === values.length ? values : values.slice(0, dimensions);
  if (!isNormalized) return kept;
  const length = Math.sqrt(dot(kept, kept));
  return length === 0 ? kept : kept.map((value) => value / length);
}

function dot(a: Float32Array, b: Float32Array): number {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

function sigmoid(x: number): number {
  return 1 / (1 + Math.exp(-x));
}

/** Returns a promise that rejects when the signal aborts. */
function abortOf(signal: AbortSignal | undefined): { aborted: Promise<never>; release: () => void } {
  let onAbort = (): void => {};
  const aborted = new Promise<never>((_, reject) => {
    onAbort = () => reject(new CapstanError('aborted', 'The call was aborted', { cause: signal?.reason }));
  });
  if (signal !== undefined) whenAborted(signal, onAbort);
  return { aborted, release: () => signal?.removeEventListener('abort', onAbort) };
}

/** @throws CapstanError `invalid_argument` that names the pair. */
export function checkPairs(pairs: unknown): readonly (readonly [string, string])[] {
  if (!Array.isArray(pairs) || pairs.length === 0)
    throw CapstanError.argument('pairs', 'a list of one or more pairs of texts', pairs);
  checkCount('pairs', pairs);
  for (const [i, pair] of pairs.entries())
    if (!Array.isArray(pair) || pair.length !== 2 || pair.some((text) => typeof text !== 'string'))
      throw CapstanError.argument(`pairs[${i}]`, 'two texts', pair);
  return pairs as [string, string][];
}

/** @throws CapstanError `invalid_argument` that names the text. */
export function toPairs(query: unknown, documents: unknown): [string, string][] {
  const text = checkString('query', query);
  if (!Array.isArray(documents) || documents.length === 0)
    throw CapstanError.argument('documents', 'a list of one or more texts', documents);
  checkCount('documents', documents);
  return documents.map((document: unknown, i) => [text, checkString(`documents[${i}]`, document)]);
}

/** Returns what `EngineInfo` says about the task of a model. */
export function taskInfo({ pooling, spec }: ModelConfig): {
  task: ModelTask;
  embeddingSize?: number;
  promptNames?: readonly string[];
} {
  if (pooling?.task !== 'embed') return { task: pooling?.task ?? 'generate' };
  return { task: 'embed', embeddingSize: embeddingSize(spec), promptNames: Object.keys(pooling.prompts) };
}

function embeddingSize({ pooling, hiddenSize }: NativeModelSpec): number {
  return pooling!.head.at(-1)?.outputSize ?? hiddenSize;
}
