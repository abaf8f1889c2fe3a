import { randomUUID } from 'node:crypto';
import { setMaxListeners } from 'node:events';
import { loadAddon } from './addon';
import type {
  NativeEngine,
  NativeEngineInfo,
  NativeEvent,
  NativeGrammar,
  NativeRequest,
  NativeStats,
  NativeThinkingBudget,
} from './addon-types';
import { tokenizeBadWords } from './bad-words';
import { checkBoolean, checkObject, checkString, checkTokenIds } from './checks';
import { CapstanError } from './errors';
import type { ChatEvent } from './events';
import { Generation } from './generation';
import { GrammarCache, type GrammarPlan } from './grammar-cache';
import { type LoadedModel, type LoadProgress, loadNative } from './load';
import type { Model } from './model/model';
import type { ChoiceReading } from './choice-reader';
import { type ChatOptions, prepareChat } from './chat';
import type { EngineOptions } from './options';
import {
  checkTextLength,
  resolveSampling,
  type SamplingDefaults,
  type SamplingParams,
  truncatePrompt,
} from './sampling';
import { planStructuredOutput, type StructuredOutput } from './structured-output';
import type { ChatMessage } from './text/messages';
import { REASONING_FORMATS, THINK_CLOSE, THINK_OPEN } from './text/reasoning';
import { type Place, WaitingRoom } from './waiting-room';

/** What a call is given beside its content. */
export interface CallContext {
  /** Aborts the call. */
  signal?: AbortSignal;
  /** Partition of the prefix cache: calls with other salts share nothing with this one. */
  cacheSalt?: string;
  /** The id of the result; default: a random one. */
  requestId?: string;
}

/** Sampling parameters, and how a text becomes tokens. */
export interface GenerateOptions extends SamplingParams {
  /** Run the tokenizer's post-processor (BOS and the like) over a text; default true. */
  addSpecialTokens?: boolean;
}

/** What an engine resolved its options to, and what it loaded. */
export interface EngineInfo extends NativeEngineInfo {
  /** Of the addon. */
  version: string;
  /** The model directory's name, or `demo`. */
  modelName: string;
  architecture: string;
  numParameters: number;
  vocabSize: number;
  eosTokenIds: number[];
  /** From `generation_config.json`. */
  samplingDefaults: SamplingDefaults;
  /** The format of tool calls that the model's template knows, or null. */
  toolCallFormat: string | null;
  /** The format of thoughts that are told apart from the text, or null. */
  reasoningFormat: string | null;
  prefixCache: boolean;
}

/** Counters and gauges of one engine, since it was loaded. */
export interface EngineStats extends NativeStats {
  /** Prompt tokens found in the prefix cache over all prompt tokens. */
  prefixCacheHitRate: number;
}

/** A loaded model that answers many calls at once. A process may hold several. */
export class Engine {
  readonly info: EngineInfo;
  readonly #native: NativeEngine;
  readonly #model: Model;
  readonly #calls: CallTable;
  readonly #grammars: GrammarCache;
  readonly #waitingRoom: WaitingRoom;
  /** The tokens of a thought's markers, once they are needed. */
  #thinkIds?: Promise<Pick<NativeThinkingBudget, 'openIds' | 'closeIds'>>;
  #isClosed = false;

  private constructor(
    { native, model, maxQueuedRequests, maxQueuedTokens }: LoadedModel,
    info: EngineInfo,
    calls: CallTable,
  ) {
    this.#native = native;
    this.#model = model;
    this.info = info;
    this.#calls = calls;
    this.#grammars = new GrammarCache((source) => native.compileGrammar(source));
    this.#waitingRoom = new WaitingRoom({
      maxRequests: maxQueuedRequests,
      maxTokens: maxQueuedTokens,
      waiting: () => native.stats(),
    });
  }

  /**
   * Loads a Hugging Face model directory, or the model that ships with the package: `'demo'`.
   * @param onProgress Hears of packed weights while they load; what it throws ends the load, which rejects with it.
   * @throws CapstanError `invalid_argument`, `invalid_model`, `unsupported_model`, `out_of_memory`, `aborted`, `addon_not_found` or `io_error`.
   */
  static async load(
    modelDir: string,
    options: EngineOptions = {},
    onProgress?: (progress: LoadProgress) => void,
  ): Promise<Engine> {
    const calls: CallTable = new Map();
    try {
      const loaded = await loadNative(loadAddon, checkString('modelDir', modelDir), options, onProgress, (events) =>
        deliver(calls, events),
      );
      const { native, model, eosTokenIds, samplingDefaults, prefixCache } = loaded;
      const { config, checkpoint, toolCallFormat } = model;
      return new Engine(
        loaded,
        {
          ...native.info,
          version: loadAddon().version,
          modelName: model.name,
          architecture: config.family.architecture,
          numParameters: checkpoint.numParameters,
          vocabSize: config.spec.vocabSize,
          eosTokenIds,
          samplingDefaults,
          toolCallFormat: toolCallFormat?.name ?? null,
          reasoningFormat: model.hasThoughts ? REASONING_FORMATS[0] : null,
          prefixCache,
        },
        calls,
      );
    } catch (error) {
      throw CapstanError.from(error);
    }
  }

  /** Completes a text (special tokens such as BOS are added) or token ids (taken as they are). */
  generate(
    prompt: string | readonly number[] | Int32Array,
    options: GenerateOptions = {},
    context: CallContext = {},
  ): Generation {
    return this.#start(context, (place) => {
      const { addSpecialTokens = true, ...sampling } = checkObject('sampling', options) as GenerateOptions;
      const { structuredOutput } = sampling;
      checkBoolean('addSpecialTokens', addSpecialTokens);
      const plan = structuredOutput === undefined ? undefined : planStructuredOutput(structuredOutput);
      const ids =
        typeof prompt === 'string'
          ? this.#encodePrompt(prompt, addSpecialTokens, sampling, place)
          : checkTokenIds('prompt', prompt, this.info.vocabSize);
      const call = { sampling, reading: {}, plan, thinkingBudget: undefined };
      if (ids instanceof Promise || plan !== undefined || sampling.badWords !== undefined)
        return this.#complete(call, ids, place);
      return { ...call, promptTokenIds: ids, grammar: null, badWords: [], thinkingBudget: null };
    });
  }

  /** Answers a conversation by the model's chat template; tool calls and reasoning come as events of their own. */
  chat(messages: readonly ChatMessage[], options: ChatOptions = {}, context: CallContext = {}): Generation<ChatEvent> {
    return this.#start<ChatEvent>(context, async (place) => {
      const { prompt, addSpecialTokens, ...call } = await prepareChat(this.#model, messages, options);
      return this.#complete(call, this.#encodePrompt(prompt, addSpecialTokens, call.sampling, place), place);
    });
  }

  /**
   * Whether a further call may wait, judged by the requests and prompt tokens that wait already, those being tokenized included. Calls find
   * out by themselves; this is for those who want to know before they have read one.
   * @throws CapstanError `queue_full`, or `engine_closed`.
   */
  checkRoom(): void {
    if (this.#isClosed) throw closedError();
    this.#waitingRoom.check();
  }

  /**
   * Compiles what a text may be held to, and keeps it for the calls that ask for it next.
   * @throws CapstanError `invalid_argument` that says what is wrong where, for a schema keyword its name and path.
   */
  async compile(structuredOutput: StructuredOutput): Promise<void> {
    if (this.#isClosed) throw closedError();
    await this.#grammars.get(planStructuredOutput(structuredOutput));
  }

  /** The prompt text that {@link Engine.chat} would tokenize, without adding special tokens. */
  async renderChat(messages: readonly ChatMessage[], options: ChatOptions = {}): Promise<string> {
    return (await prepareChat(this.#model, messages, options)).prompt;
  }

  /**
   * Meanwhile it takes the room of a call that waits.
   * @param options `addSpecialTokens`: run the tokenizer's post-processor (BOS and the like); default true, as {@link Engine.generate} does.
   * @throws CapstanError `queue_full`, or `engine_closed`.
   */
  async tokenize(text: string, options: { addSpecialTokens?: boolean } = {}): Promise<Int32Array> {
    checkString('text', text);
    if (this.#isClosed) throw closedError();
    const place = this.#waitingRoom.enter();
    try {
      return await this.#encode(text, options.addSpecialTokens ?? true, place);
    } finally {
      place.leave();
    }
  }

  /** @param options `skipSpecialTokens`: leave special tokens out; default true. */
  detokenize(tokenIds: readonly number[] | Int32Array, options: { skipSpecialTokens?: boolean } = {}): string {
    return this.#model.tokenizer.decode(
      checkTokenIds('tokenIds', tokenIds, this.info.vocabSize),
      options.skipSpecialTokens ?? true,
    );
  }

  /** The same for very many at once: whatever else there is to do has its turn between parts of them. */
  async detokenizeInTurns(
    tokenIds: readonly number[] | Int32Array,
    options: { skipSpecialTokens?: boolean } = {},
  ): Promise<string> {
    return this.#model.tokenizer.decodeInTurns(
      checkTokenIds('tokenIds', tokenIds, this.info.vocabSize),
      options.skipSpecialTokens ?? true,
    );
  }

  /** The bytes that one token stands for; part of a character, perhaps. Empty for ids that no token has. */
  tokenBytes(tokenId: number): Uint8Array {
    return this.#model.tokenizer.tokenBytes(checkTokenIds('tokenId', [tokenId], this.info.vocabSize)[0]).slice();
  }

  /** @throws CapstanError `engine_closed`. */
  stats(): EngineStats {
    if (this.#isClosed) throw closedError();
    const stats = this.#native.stats();
    return { ...stats, prefixCacheHitRate: stats.promptTokens === 0 ? 0 : stats.cachedTokens / stats.promptTokens };
  }

  /** Ends open calls with code `engine_closed` and frees threads and memory, which nothing else does before the process ends. May be called again. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#native.close();
    for (const call of [...this.#calls.values()]) call.fail(closedError());
  }

  #encode(text: string, addSpecialTokens: boolean, place: Place): Promise<Int32Array> {
    place.expect(text);
    return this.#model.tokenizer.encode(text, addSpecialTokens, place.signal);
  }

  /** @throws CapstanError `context_length_exceeded` for a text that no tokens could make fit: it is not tokenized. */
  #encodePrompt(
    text: string,
    addSpecialTokens: boolean,
    { truncatePrompt: most }: SamplingParams,
    place: Place,
  ): Promise<Int32Array> {
    const {
      tokenizer: { vocabulary },
    } = this.#model;
    if (most === undefined) checkTextLength(text, this.info.maxModelLen, vocabulary.maxTokenBytes);
    return this.#encode(text, addSpecialTokens, place);
  }

  /** What a call needs beside its prompt is made at the same time. */
  async #complete(
    { plan, thinkingBudget, ...call }: UnfinishedCall,
    prompt: Int32Array | Promise<Int32Array>,
    place: Place,
  ): Promise<PreparedCall> {
    const { badWords } = call.sampling;
    const [promptTokenIds, grammar, badWordIds, markers] = await Promise.all([
      prompt,
      plan === undefined ? null : this.#grammars.get(plan, place.signal),
      badWords === undefined ? [] : tokenizeBadWords(this.#model.tokenizer, badWords, this.info.vocabSize),
      thinkingBudget === undefined ? null : this.#thinkingMarkers(),
    ]);
    return {
      ...call,
      promptTokenIds,
      grammar,
      badWords: badWordIds,
      thinkingBudget: thinkingBudget === undefined || markers === null ? null : { ...thinkingBudget, ...markers },
    };
  }

  #thinkingMarkers(): Promise<Pick<NativeThinkingBudget, 'openIds' | 'closeIds'>> {
    const { tokenizer } = this.#model;
    this.#thinkIds ??= Promise.all([tokenizer.encode(THINK_OPEN, false), tokenizer.encode(THINK_CLOSE, false)]).then(
      ([openIds, closeIds]) => ({ openIds, closeIds }),
      (error: unknown) => {
        this.#thinkIds = undefined;
        throw error;
      },
    );
    return this.#thinkIds;
  }

  /** Prepares, submits and keeps the books of one call. What needs no preparation is submitted at once. */
  #start<E extends ChatEvent>(
    { signal, cacheSalt = '', requestId = randomUUID() }: CallContext,
    prepare: (place: Place) => PreparedCall | Promise<PreparedCall>,
  ): Generation<E> {
    let nativeId: number | undefined;
    let place: Place | undefined;
    const onAbort = () => call.abort(signal?.reason);
    const call = new Generation<E>(requestId, {
      stop: (index) => {
        if (nativeId !== undefined && !this.#isClosed) this.#native.stop(nativeId, index);
      },
      onEnd: (isComplete) => {
        signal?.removeEventListener('abort', onAbort);
        place?.leave();
        if (nativeId === undefined) return;
        this.#calls.delete(nativeId);
        if (!isComplete && !this.#isClosed) this.#native.abort(nativeId);
      },
    });
    const submit = (prepared: PreparedCall) => {
      if (call.hasEnded) return;
      const request = this.#toRequest(prepared, cacheSalt);
      place?.expect(request.promptTokenIds);
      nativeId = this.#native.submit(request);
      this.#calls.set(nativeId, call);
      place?.leave();
      call.start(request.promptTokenIds, request.numChoices, prepared.reading);
    };
    const fail = (error: unknown) => call.fail(CapstanError.from(error));
    try {
      checkContext(signal, cacheSalt, requestId);
      if (signal?.aborted === true)
        throw new CapstanError('aborted', 'The call was aborted before it began', { cause: signal.reason });
      if (this.#isClosed) throw closedError();
      place = this.#waitingRoom.enter();
      if (signal !== undefined) whenAborted(signal, onAbort);
      const prepared = prepare(place);
      if (prepared instanceof Promise) prepared.then(submit).catch(fail);
      else submit(prepared);
    } catch (error) {
      fail(error);
    }
    return call;
  }

  #toRequest(
    { promptTokenIds: ids, sampling: params, grammar, badWords, thinkingBudget }: PreparedCall,
    cacheSalt: string,
  ): NativeRequest {
    if (this.#isClosed) throw closedError();
    const promptTokenIds = truncatePrompt(ids, params, this.info.maxModelLen);
    if (promptTokenIds.length === 0) throw CapstanError.argument('prompt', 'at least one token', 0);
    const limits = {
      vocabSize: this.info.vocabSize,
      maxModelLen: this.info.maxModelLen,
      numPromptTokens: promptTokenIds.length,
    };
    const { sampling, numChoices } = resolveSampling(params, this.info.samplingDefaults, limits);
    const stripLeadingSpace = this.#model.tokenizer.startsText(promptTokenIds, sampling.skipSpecialTokens);
    return {
      promptTokenIds,
      numChoices,
      sampling: { ...sampling, badWords, thinkingBudget },
      cacheSalt,
      stripLeadingSpace,
      grammar,
    };
  }
}

interface PreparedCall {
  promptTokenIds: Int32Array;
  sampling: SamplingParams;
  reading: ChoiceReading;
  grammar: NativeGrammar | null;
  badWords: Int32Array[];
  thinkingBudget: NativeThinkingBudget | null;
}

/** With what is still to be compiled and tokenized. */
interface UnfinishedCall {
  sampling: SamplingParams;
  reading: ChoiceReading;
  plan: GrammarPlan | undefined;
  thinkingBudget: Pick<NativeThinkingBudget, 'budget' | 'isInside'> | undefined;
}

/** Running calls by the addon's request id. */
type CallTable = Map<number, Generation<ChatEvent>>;

/** One array per step for all calls together; calls that have ended are no longer in the table. */
function deliver(calls: CallTable, events: NativeEvent[]): void {
  for (const event of events) {
    const call = calls.get(event.id);
    try {
      call?.accept(event);
    } catch (error) {
      // One call's fault must not cost the others their step.
      call?.fail(CapstanError.from(error));
    }
  }
}

function checkContext(signal: unknown, cacheSalt: unknown, requestId: unknown): void {
  if (signal !== undefined && !(signal instanceof AbortSignal))
    throw CapstanError.argument('signal', 'an AbortSignal', signal);
  checkString('cacheSalt', cacheSalt);
  checkString('requestId', requestId);
}

/** NOTE: a signal may end many calls at once, which Node takes for a leak and says so. */
function whenAborted(signal: AbortSignal, run: () => void): void {
  setMaxListeners(0, signal);
  signal.addEventListener('abort', run, { once: true });
}

function closedError(): CapstanError {
  return new CapstanError('engine_closed', 'The engine is closed');
}
