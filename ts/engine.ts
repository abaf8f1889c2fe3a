import { randomUUID } from 'node:crypto';
import { loadAddon } from './addon';
import type { NativeEngine, NativeStats } from './addon-types';
import type { AdapterInfo, Adapters } from './adapters';
import { type BatchOptions, type BatchRequest, type BatchResult, checkBatchOptions, runBatch } from './batch';
import {
  type CallContext,
  checkContext,
  checkPriority,
  DEFAULT_PRIORITY,
  splitContext,
  whenAborted,
} from './call-context';
import { CallParts } from './call-parts';
import { type CallTable, deliver } from './call-table';
import { checkBoolean, checkObject, checkString, checkTokenIds } from './checks';
import type { EngineInfo, EngineStats } from './engine-info';
import { CapstanError, closedError } from './errors';
import type { ChatEvent } from './events';
import { Generation } from './generation';
import { GrammarCache } from './grammar-cache';
import { type LoadedModel, loadNative } from './load';
import { limitOutput, type PreparedCall, toNativeRequest } from './native-request';
import type { Model } from './model/model';
import { type ChatOptions, prepareChat, renderChat } from './chat';
import type { EngineOptions } from './options';
import { type EmbedOptions, type EmbedResult, type PoolingOptions, type ScoreResult, unsupportedTask } from './pooling';
import { checkPairs, Pooler, taskInfo, toPairs } from './pooler';
import type { SamplingParams } from './sampling';
import { planStructuredOutput, type StructuredOutput } from './structured-output';
import { parseGrammar } from './text/grammar-parser';
import type { OpenText } from './text/text-client';
import type { EncodeOptions, Messages } from './text/text-service';
import { QueueLimiter, type QueueStats, type Reservation } from './queue-limiter';

/** Options of {@link Engine.generate}: sampling parameters, the call's context, and how a text becomes tokens. */
export interface GenerateOptions extends SamplingParams, CallContext {
  /** Runs the tokenizer's post-processor on a text prompt, which adds tokens such as BOS. Default: true. */
  addSpecialTokens?: boolean;
}

/** Closes the engines that were garbage-collected without {@link Engine.close}. Neither part refers to its engine. */
const droppedEngines = new FinalizationRegistry<{ native: NativeEngine; text: OpenText }>(({ native, text }) => {
  process.emitWarning('An Engine was garbage-collected before it was closed: call engine.close() when it is done', {
    code: 'CAPSTAN_ENGINE_NOT_CLOSED',
  });
  void native.close();
  void text.close();
});

/**
 * A loaded model that serves any number of concurrent calls. A process may hold several engines. Call
 * {@link Engine.close} to free the threads and the memory; an idle engine does not keep the process alive. An engine
 * that is garbage-collected without it is closed with the process warning `CAPSTAN_ENGINE_NOT_CLOSED`.
 */
export class Engine {
  /** The loaded model and the resolved options. */
  readonly info: EngineInfo;
  readonly #native: NativeEngine;
  readonly #model: Model;
  readonly #calls: CallTable;
  readonly #grammars: GrammarCache;
  readonly #parts: CallParts;
  readonly #queueLimiter: QueueLimiter;
  readonly #maxNumSeqs: number;
  readonly #adapters: Adapters;
  /** undefined: the model generates text. */
  readonly #pooler: Pooler | undefined;
  #isClosed = false;

  private constructor(loaded: LoadedModel, info: EngineInfo, calls: CallTable) {
    // JavaScript can call a private constructor.
    if (!(calls instanceof Map))
      throw new CapstanError('invalid_argument', 'new Engine(): expected await Engine.load(model, options) instead');
    const { native, model, adapters, maxNumSeqs, maxQueuedRequests, maxQueuedTokens, grammarCacheBytes } = loaded;
    this.#native = native;
    this.#model = model;
    this.info = info;
    this.#calls = calls;
    this.#adapters = adapters;
    this.#grammars = new GrammarCache(
      async (json) => native.compileGrammar({ kind: 'parsed', handle: await parseGrammar(json) }),
      { maxTotalBytes: grammarCacheBytes },
    );
    this.#parts = new CallParts(model, this.#grammars);
    this.#maxNumSeqs = maxNumSeqs;
    this.#queueLimiter = new QueueLimiter({
      maxRunning: maxNumSeqs,
      maxRequests: maxQueuedRequests,
      maxTokens: maxQueuedTokens,
      stats: () => this.#queueStats(),
    });
    if (model.config.pooling !== undefined)
      this.#pooler = new Pooler({
        native,
        model,
        plan: model.config.pooling,
        calls,
        queueLimiter: this.#queueLimiter,
        maxModelLen: info.maxModelLen,
        maxNumSeqs,
        maxQueuedRequests,
      });
    droppedEngines.register(this, { native, text: model.text }, this);
  }

  /**
   * Loads a model.
   * @param model A Hugging Face model directory, a GGUF file (of a split one, any part), a model from the hub such
   *   as `Qwen/Qwen3-4B` or `hf:ORG/NAME@revision:Q4_K_M`, or `'demo'` for the model that ships with the package. An
   *   existing path takes precedence over a name on the hub. A model from the hub is downloaded unless it is cached.
   * @throws CapstanError `invalid_argument`, `invalid_model`, `unsupported_model`, `out_of_memory`, `aborted`,
   *   `addon_not_found`, `io_error`, `model_not_found`, `access_denied` or `download_failed`.
   */
  static async load(model: string, options: EngineOptions = {}): Promise<Engine> {
    const calls: CallTable = new Map();
    try {
      const loaded = await loadNative(loadAddon, checkString('model', model), options, (events) =>
        deliver(calls, events),
      );
      const { native, eosTokenIds, samplingDefaults, prefixCache } = loaded;
      const { name, config, checkpoint, toolCallFormat, reasoningFormat } = loaded.model;
      return new Engine(
        loaded,
        {
          ...native.info,
          version: loadAddon().version,
          ...taskInfo(loaded.model.config),
          modelName: name,
          architecture: config.family.architecture,
          numParameters: checkpoint.numParameters,
          vocabSize: config.spec.vocabSize,
          eosTokenIds,
          samplingDefaults,
          toolCallFormat: toolCallFormat?.name ?? null,
          reasoningFormat: reasoningFormat?.name ?? null,
          prefixCache,
        },
        calls,
      );
    } catch (error) {
      throw CapstanError.from(error);
    }
  }

  /**
   * Completes a prompt: a text, to which special tokens such as BOS are added, or token ids, which are used unchanged.
   * Does not throw: all errors, those of the arguments included, come from the returned {@link Generation}.
   * @param context The same fields as in `options`, over which they take precedence.
   */
  generate(
    prompt: string | readonly number[] | Int32Array,
    options: GenerateOptions = {},
    context: CallContext = {},
  ): Generation {
    const call = splitContext(options, context);
    return this.#start('generate', call.context, (reservation) => {
      const { addSpecialTokens = true, ...sampling } = checkObject('options', call.rest) as GenerateOptions;
      if (prompt === undefined) throw CapstanError.argument('prompt', 'a text, or an array of token ids', prompt);
      const { structuredOutput } = sampling;
      checkBoolean('addSpecialTokens', addSpecialTokens);
      const plan = structuredOutput === undefined ? undefined : planStructuredOutput(structuredOutput);
      const ids =
        typeof prompt === 'string'
          ? this.#encode(
              prompt,
              {
                addSpecialTokens,
                maxModelLen: this.info.maxModelLen,
                isTruncated: sampling.truncatePrompt !== undefined,
              },
              reservation,
            )
          : checkTokenIds('prompt', prompt, this.info.vocabSize);
      const unfinished = { sampling, readerOptions: {}, plan, thinkingBudget: undefined };
      if (ids instanceof Promise || plan !== undefined || sampling.badWords !== undefined)
        return this.#parts.complete(unfinished, ids, reservation);
      return { ...unfinished, promptTokenIds: ids, grammar: null, badWords: [], thinkingBudget: null };
    });
  }

  /**
   * Generates the next message of a conversation, rendered with the model's chat template. Tool calls and reasoning
   * are separate events. Does not throw: all errors come from the returned {@link Generation}.
   * @param messages The conversation, or the JSON text of its array, as a string or as UTF-8 bytes. A function is
   *   called when the call is prepared, and returns the conversation.
   * @param context The same fields as in `options`, over which they take precedence.
   */
  chat(
    messages: Messages | (() => Promise<Messages>),
    options: ChatOptions & CallContext = {},
    context: CallContext = {},
  ): Generation<ChatEvent> {
    const { context: all, rest } = splitContext(options, context);
    return this.#start<ChatEvent>('chat', all, async (reservation) => {
      const { maxModelLen } = this.info;
      const { promptTokenIds, ...call } = await prepareChat(
        this.#model,
        typeof messages === 'function' ? await messages() : messages,
        rest,
        maxModelLen,
        reservation.signal,
      );
      reservation.setPrompt(promptTokenIds);
      return this.#parts.complete(call, promptTokenIds, reservation);
    });
  }

  /**
   * Loads a LoRA adapter while the engine works: a folder with `adapter_config.json` and
   * `adapter_model.safetensors`, as PEFT writes it. Calls choose it by `adapter: name`. Different adapters, and none,
   * run in the same step.
   * @throws CapstanError `invalid_argument` (without `enableLora`, for a name in use, or at `maxLoras`),
   *   `invalid_model`, `unsupported_model`, `out_of_memory`, `io_error` or `engine_closed`.
   */
  async loadAdapter(name: string, path: string): Promise<AdapterInfo> {
    if (this.#isClosed) throw closedError();
    return this.#adapters.load(name, path);
  }

  /**
   * Unloads an adapter. Calls that have been submitted with it run to their end, and then its memory is freed. Later
   * calls cannot name it.
   * @throws CapstanError `invalid_argument` for a name that is not loaded, or `engine_closed`.
   */
  unloadAdapter(name: string): void {
    if (this.#isClosed) throw closedError();
    this.#adapters.unload(name);
  }

  /** The loaded adapters, in the order in which they were loaded. */
  get adapters(): readonly AdapterInfo[] {
    return this.#adapters.list;
  }

  /**
   * Returns the embeddings of texts or of token ids, one per input.
   * @throws CapstanError `unsupported_task`, `invalid_argument`, `context_length_exceeded`, `queue_full`,
   *   `engine_closed`, `aborted` or `numeric_error`.
   */
  embed(
    inputs: string | readonly number[] | Int32Array | readonly (string | readonly number[] | Int32Array)[],
    options: EmbedOptions = {},
  ): Promise<EmbedResult> {
    return this.#pool('embed', (pooler) => pooler.embed(inputs, options));
  }

  /**
   * Scores pairs of texts: with a reranker as its files say, with an embedding model by the cosine of their embeddings.
   * @throws CapstanError as {@link Engine.embed}.
   */
  score(pairs: readonly (readonly [string, string])[], options: PoolingOptions = {}): Promise<ScoreResult> {
    return this.#pool('score', (pooler) =>
      pooler.score(checkPairs(pairs), options, {
        pair: (index) => ({ param: `pairs[${index}]` }),
        text: (index, side) => ({ param: `pairs[${index}][${side}]` }),
      }),
    );
  }

  /**
   * Scores each document for the query: {@link Engine.score} of the pairs.
   * @throws CapstanError as {@link Engine.embed}.
   */
  rerank(query: string, documents: readonly string[], options: PoolingOptions = {}): Promise<ScoreResult> {
    return this.#pool('rerank', (pooler) =>
      pooler.score(toPairs(query, documents), options, {
        pair: (index) => ({ param: `documents[${index}]`, where: `query and documents[${index}] together` }),
        text: (index, side) => ({ param: side === 0 ? 'query' : `documents[${index}]` }),
      }),
    );
  }

  /**
   * Runs many calls of {@link Engine.chat}, {@link Engine.generate} or {@link Engine.embed} as background work, and
   * yields their results in the order in which they end. A call that fails yields its error. Leaving the loop aborts
   * the calls in progress.
   * @param requests They are taken when a call can start, so a stream of them may be longer than the memory.
   * @throws CapstanError `invalid_argument` for invalid options. The loop throws `invalid_argument` for a request
   *   without exactly one of `messages`, `prompt` and `inputs`; also `aborted`, `engine_closed` and `device_lost`. An
   *   error of `requests` ends the loop unchanged.
   */
  batch(
    requests: Iterable<BatchRequest> | AsyncIterable<BatchRequest>,
    options: BatchOptions = {},
  ): AsyncGenerator<BatchResult, undefined> {
    if (this.#isClosed) throw closedError();
    return runBatch(this, requests, checkBatchOptions(options, this.#maxNumSeqs), options.signal);
  }

  /**
   * Throws if the queue cannot take another call. Every call checks this itself; a server can use it to refuse a
   * request before it reads the body.
   * @param context `priority`: that of the call.
   * @throws CapstanError `queue_full` at `maxQueuedRequests` or `maxQueuedTokens`, or `engine_closed`.
   */
  checkCapacity({ priority = DEFAULT_PRIORITY }: Pick<CallContext, 'priority'> = {}): void {
    if (this.#isClosed) throw closedError();
    this.#queueLimiter.check(checkPriority(priority));
  }

  /**
   * Compiles a structured output and caches it for later calls.
   * @throws CapstanError `invalid_argument` that names the fault and its place, for a schema the keyword and its path.
   */
  async compile(structuredOutput: StructuredOutput): Promise<void> {
    if (this.#isClosed) throw closedError();
    await this.#grammars.get(planStructuredOutput(structuredOutput));
  }

  /**
   * Returns the prompt text that {@link Engine.chat} would tokenize. Counts against `maxQueuedRequests` while it runs.
   * @param context `signal`: ends the call with code `aborted`.
   * @throws CapstanError `invalid_argument`, or `template_error` if the template is missing or fails.
   */
  async renderChat(
    messages: Messages,
    options: ChatOptions = {},
    { signal }: Pick<CallContext, 'signal'> = {},
  ): Promise<string> {
    return this.#inQueue(() => renderChat(this.#model, messages, options, signal));
  }

  /**
   * Returns the token ids of a text. Counts against `maxQueuedRequests` and `maxQueuedTokens` while it runs.
   * @param options `addSpecialTokens`: runs the tokenizer's post-processor, which adds tokens such as BOS. Default:
   *   true.
   * @param context `signal`: ends the call with code `aborted`.
   * @throws CapstanError `queue_full`, or `engine_closed`.
   */
  async tokenize(
    text: string,
    { addSpecialTokens = true }: { addSpecialTokens?: boolean } = {},
    { signal }: Pick<CallContext, 'signal'> = {},
  ): Promise<Int32Array> {
    checkString('text', text);
    return this.#inQueue((reservation) => {
      reservation.setPrompt(text);
      return this.#model.text.encode(text, { addSpecialTokens }, signal);
    });
  }

  /**
   * Returns the text of token ids. Bytes that are not valid UTF-8 become U+FFFD.
   * @param options `skipSpecialTokens`: omits special tokens. Default: true.
   * @throws CapstanError `invalid_argument` for an id that is not in the vocabulary.
   */
  detokenize(tokenIds: readonly number[] | Int32Array, options: { skipSpecialTokens?: boolean } = {}): string {
    return this.#model.tokens.decode(
      checkTokenIds('tokenIds', tokenIds, this.info.vocabSize),
      options.skipSpecialTokens ?? true,
    );
  }

  /** Like {@link Engine.detokenize} for long arrays: decodes in parts and yields to the event loop between them. */
  async detokenizeAsync(
    tokenIds: readonly number[] | Int32Array,
    options: { skipSpecialTokens?: boolean } = {},
  ): Promise<string> {
    return this.#model.tokens.decodeAsync(
      checkTokenIds('tokenIds', tokenIds, this.info.vocabSize),
      options.skipSpecialTokens ?? true,
    );
  }

  /**
   * Returns the bytes of one token, which may be part of a UTF-8 character. Empty for an id without a token.
   * @throws CapstanError `invalid_argument` for an id that is not below `vocabSize`.
   */
  tokenBytes(tokenId: number): Uint8Array {
    return this.#model.tokens.tokenBytes(checkTokenIds('tokenId', [tokenId], this.info.vocabSize)[0]).slice();
  }

  /**
   * Returns the current counters and gauges.
   * @throws CapstanError `engine_closed`.
   */
  stats(): EngineStats {
    if (this.#isClosed) throw closedError();
    const stats = this.#stats();
    return { ...stats, prefixCacheHitRate: stats.promptTokens === 0 ? 0 : stats.cachedTokens / stats.promptTokens };
  }

  /** Ends open calls with code `engine_closed`, then frees the threads and the memory. Idempotent. */
  async close(): Promise<void> {
    this.#isClosed = true;
    droppedEngines.unregister(this);
    this.#pooler?.close();
    await this.#native.close();
    for (const call of [...this.#calls.values()]) call.fail(closedError());
    await this.#model.text.close();
  }

  /** Closes the engine at the end of a block with `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Counts the inputs that the addon does not have yet. */
  #stats(): NativeStats {
    const stats = this.#native.stats();
    const waiting = this.#pooler?.waiting;
    if (waiting === undefined) return stats;
    return {
      ...stats,
      numWaiting: stats.numWaiting + waiting.numInputs,
      numBackground: stats.numBackground + waiting.numBackgroundInputs,
      queuedPromptTokens: stats.queuedPromptTokens + waiting.numTokens,
      queuedBackgroundTokens: stats.queuedBackgroundTokens + waiting.numBackgroundTokens,
    };
  }

  /** NOTE: each call of a model that pools has a reservation until it ends, so its inputs are not counted again. */
  #queueStats(): QueueStats {
    const stats = this.#stats();
    return this.#pooler === undefined ? stats : { ...stats, numRunning: 0, numWaiting: 0, numBackground: 0 };
  }

  /** Runs work on a prompt that is not generated from. It has a place in the queue. */
  async #inQueue<T>(work: (reservation: Reservation) => Promise<T>): Promise<T> {
    if (this.#isClosed) throw closedError();
    const reservation = this.#queueLimiter.reserve();
    try {
      return await work(reservation);
    } finally {
      reservation.release();
    }
  }

  async #pool<T>(method: string, run: (pooler: Pooler) => Promise<T>): Promise<T> {
    if (this.#isClosed) throw closedError();
    if (this.#pooler === undefined) throw unsupportedTask(method, this.info.task);
    try {
      return await run(this.#pooler);
    } catch (error) {
      throw CapstanError.from(error);
    }
  }

  #encode(text: string, options: EncodeOptions, reservation: Reservation): Promise<Int32Array> {
    reservation.setPrompt(text);
    return this.#model.text.encode(text, options, reservation.signal);
  }

  /** Runs one call from preparation to its end. A call that needs no asynchronous preparation is submitted at once. */
  #start<E extends ChatEvent>(
    method: string,
    { signal, cacheSalt = '', requestId = randomUUID(), priority = DEFAULT_PRIORITY, onPrompt }: CallContext,
    prepare: (reservation: Reservation) => PreparedCall | Promise<PreparedCall>,
  ): Generation<E> {
    let nativeId: number | undefined;
    let reservation: Reservation | undefined;
    let releaseAdapter: (() => void) | undefined;
    const onAbort = () => call.abort(signal?.reason);
    const call = new Generation<E>(requestId, {
      stop: (index) => {
        if (nativeId !== undefined && !this.#isClosed) this.#native.stop(nativeId, index);
      },
      onEnd: (isComplete) => {
        if (signal instanceof AbortSignal) signal.removeEventListener('abort', onAbort);
        reservation?.release();
        releaseAdapter?.();
        if (nativeId === undefined) return;
        this.#calls.delete(nativeId);
        if (!isComplete && !this.#isClosed) this.#native.abort(nativeId);
      },
    });
    const submit = (prepared: PreparedCall) => {
      if (call.hasEnded) return;
      if (this.#isClosed) throw closedError();
      const { adapterId, release } = this.#adapters.use(prepared.sampling.adapter);
      releaseAdapter = release;
      const request = {
        ...toNativeRequest(prepared, { cacheSalt, priority }, this.info, this.#model.tokens),
        adapterId,
      };
      reservation?.setPrompt(request.promptTokenIds);
      if (onPrompt !== undefined) limitOutput(request, onPrompt);
      nativeId = this.#native.submit(request);
      this.#calls.set(nativeId, call);
      reservation?.release();
      call.start(request.promptTokenIds, request.numChoices, prepared.readerOptions);
    };
    const fail = (error: unknown) => call.fail(CapstanError.from(error));
    try {
      checkContext(signal, cacheSalt, requestId, priority, onPrompt);
      if (signal?.aborted === true)
        throw new CapstanError('aborted', 'The call was aborted before it started', { cause: signal.reason });
      if (this.#isClosed) throw closedError();
      if (this.#pooler !== undefined) throw unsupportedTask(method, this.info.task);
      reservation = this.#queueLimiter.reserve(priority);
      if (signal !== undefined) whenAborted(signal, onAbort);
      const prepared = prepare(reservation);
      if (prepared instanceof Promise) prepared.then(submit).catch(fail);
      else submit(prepared);
    } catch (error) {
      fail(error);
    }
    return call;
  }
}
