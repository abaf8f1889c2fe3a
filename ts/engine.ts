import { randomUUID } from 'node:crypto';
import { loadAddon } from './addon';
import type { NativeEngine, NativeEngineInfo, NativeEvent, NativeRequest, NativeStats } from './addon-types';
import { checkString, checkTokenIds } from './checks';
import { CapstanError } from './errors';
import type { ChatEvent } from './events';
import { Generation } from './generation';
import { type LoadProgress, loadNative } from './load';
import type { Model } from './model/model';
import type { ChoiceReading } from './choice-reader';
import { type ChatOptions, prepareChat, splitChatOptions } from './chat';
import type { EngineOptions } from './options';
import { resolveSampling, type SamplingDefaults, type SamplingParams } from './sampling';
import type { ChatMessage } from './text/messages';

/** What a call is given beside its content. */
export interface CallContext {
  /** Aborts the call. */
  signal?: AbortSignal;
  /** Partition of the prefix cache: calls with other salts share nothing with this one. */
  cacheSalt?: string;
  /** The id of the result; default: a random one. */
  requestId?: string;
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
  #isClosed = false;

  private constructor(native: NativeEngine, model: Model, info: EngineInfo, calls: CallTable) {
    this.#native = native;
    this.#model = model;
    this.info = info;
    this.#calls = calls;
  }

  /**
   * Loads a Hugging Face model directory, or the model that ships with the package: `'demo'`.
   * @param onProgress Hears of packed weights while they load.
   * @throws CapstanError `invalid_argument`, `invalid_model`, `unsupported_model`, `out_of_memory`, `aborted`, `addon_not_found` or `io_error`.
   */
  static async load(modelDir: string, options: EngineOptions = {}, onProgress?: (progress: LoadProgress) => void): Promise<Engine> {
    const calls: CallTable = new Map();
    try {
      const { native, model, eosTokenIds, samplingDefaults, prefixCache } = await loadNative(loadAddon, checkString('modelDir', modelDir), options, onProgress, (events) => deliver(calls, events));
      const { config, checkpoint, toolCallFormat } = model;
      return new Engine(native, model, {
        ...native.info,
        version: loadAddon().version,
        modelName: model.name,
        architecture: config.family.architecture,
        numParameters: checkpoint.numParameters,
        vocabSize: config.spec.vocabSize,
        eosTokenIds,
        samplingDefaults,
        toolCallFormat: toolCallFormat?.name ?? null,
        prefixCache,
      }, calls);
    } catch (error) {
      throw CapstanError.from(error);
    }
  }

  /** Completes a text (special tokens such as BOS are added) or token ids (taken as they are). */
  generate(prompt: string | readonly number[] | Int32Array, sampling: SamplingParams = {}, context: CallContext = {}): Generation {
    return this.#start(context, () => {
      if (typeof prompt !== 'string') return { promptTokenIds: checkTokenIds('prompt', prompt, this.info.vocabSize), sampling, reading: {} };
      return this.#model.tokenizer.encode(prompt, true).then((promptTokenIds) => ({ promptTokenIds, sampling, reading: {} }));
    });
  }

  /** Answers a conversation by the model's chat template; tool calls and reasoning come as events of their own. */
  chat(messages: readonly ChatMessage[], options: ChatOptions = {}, context: CallContext = {}): Generation<ChatEvent> {
    return this.#start<ChatEvent>(context, async () => {
      const { prompt, reading } = await prepareChat(this.#model, messages, options);
      return { promptTokenIds: await this.#model.tokenizer.encode(prompt, false), sampling: splitChatOptions(options).sampling, reading };
    });
  }

  /** The prompt text that {@link Engine.chat} would tokenize, without adding special tokens. */
  async renderChat(messages: readonly ChatMessage[], options: ChatOptions = {}): Promise<string> {
    return (await prepareChat(this.#model, messages, options)).prompt;
  }

  /** @param options `addSpecialTokens`: run the tokenizer's post-processor (BOS and the like); default true, as {@link Engine.generate} does. */
  async tokenize(text: string, options: { addSpecialTokens?: boolean } = {}): Promise<Int32Array> {
    return this.#model.tokenizer.encode(checkString('text', text), options.addSpecialTokens ?? true);
  }

  /** @param options `skipSpecialTokens`: leave special tokens out; default true. */
  detokenize(tokenIds: readonly number[] | Int32Array, options: { skipSpecialTokens?: boolean } = {}): string {
    return this.#model.tokenizer.decode(checkTokenIds('tokenIds', tokenIds, this.info.vocabSize), options.skipSpecialTokens ?? true);
  }

  /** The bytes that one token stands for; part of a character, perhaps. Empty for ids that no token has. */
  tokenBytes(tokenId: number): Uint8Array {
    return this.#model.tokenizer.tokenBytes(checkTokenIds('tokenId', [tokenId], this.info.vocabSize)[0]).slice();
  }

  stats(): EngineStats {
    const stats = this.#native.stats();
    return { ...stats, prefixCacheHitRate: stats.promptTokens === 0 ? 0 : stats.cachedTokens / stats.promptTokens };
  }

  /** Ends open calls with code `engine_closed` and frees threads and memory. May be called again. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#native.close();
    for (const call of [...this.#calls.values()]) call.fail(closedError());
  }

  /** Prepares, submits and keeps the books of one call. Token ids are submitted at once, texts when they are tokenized. */
  #start<E extends ChatEvent>({ signal, cacheSalt = '', requestId = randomUUID() }: CallContext, prepare: () => PreparedCall | Promise<PreparedCall>): Generation<E> {
    let nativeId: number | undefined;
    const onAbort = () => call.abort(signal?.reason);
    const call = new Generation<E>(requestId, (isComplete) => {
      signal?.removeEventListener('abort', onAbort);
      if (nativeId === undefined) return;
      this.#calls.delete(nativeId);
      if (!isComplete && !this.#isClosed) this.#native.abort(nativeId);
    });
    const submit = ({ promptTokenIds, sampling: params, reading }: PreparedCall) => {
      if (call.hasEnded) return;
      const { request, numChoices } = this.#toRequest(promptTokenIds, params, cacheSalt);
      nativeId = this.#native.submit(request);
      this.#calls.set(nativeId, call);
      call.start(promptTokenIds.length, numChoices, reading);
    };
    const fail = (error: unknown) => call.fail(CapstanError.from(error));
    try {
      checkContext(signal, cacheSalt, requestId);
      if (signal?.aborted === true) throw new CapstanError('aborted', 'The call was aborted before it began', { cause: signal.reason });
      if (this.#isClosed) throw closedError();
      signal?.addEventListener('abort', onAbort, { once: true });
      const prepared = prepare();
      if (prepared instanceof Promise) prepared.then(submit).catch(fail);
      else submit(prepared);
    } catch (error) {
      fail(error);
    }
    return call;
  }

  #toRequest(promptTokenIds: Int32Array, params: SamplingParams, cacheSalt: string): { request: NativeRequest; numChoices: number } {
    if (this.#isClosed) throw closedError();
    if (promptTokenIds.length === 0) throw CapstanError.argument('prompt', 'at least one token', 0);
    const limits = { vocabSize: this.info.vocabSize, maxModelLen: this.info.maxModelLen, numPromptTokens: promptTokenIds.length };
    const { sampling, numChoices } = resolveSampling(params, this.info.samplingDefaults, limits);
    const stripLeadingSpace = this.#model.tokenizer.startsText(promptTokenIds, sampling.skipSpecialTokens);
    return { request: { promptTokenIds, numChoices, sampling, cacheSalt, stripLeadingSpace }, numChoices };
  }
}

interface PreparedCall {
  promptTokenIds: Int32Array;
  sampling: SamplingParams;
  reading: ChoiceReading;
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
  if (signal !== undefined && !(signal instanceof AbortSignal)) throw CapstanError.argument('signal', 'an AbortSignal', signal);
  checkString('cacheSalt', cacheSalt);
  checkString('requestId', requestId);
}

function closedError(): CapstanError {
  return new CapstanError('engine_closed', 'The engine is closed');
}
