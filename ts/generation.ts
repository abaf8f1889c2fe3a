import type { NativeEvent, NativeFinish } from './addon-types';
import { ChoiceReader, type ChoiceReaderOptions } from './choice-reader';
import { CapstanError } from './errors';
import { byteStream, type ResponseOptions, type StreamFormat, textOf, toResponse } from './generation-streams';
import {
  type ChatEvent,
  type Choice,
  type GenerateEvent,
  type GenerationResult,
  sumUsage,
  type TokenLogprob,
  type ToolCallEvent,
  toTokenLogprob,
  toUsage,
} from './events';

/**
 * A running call. Iterate over it for the events, call {@link Generation.result} for the complete result, or do both.
 *
 * - Iterate at most once. Leaving the loop early aborts the call.
 * - If the caller reads more slowly than the model generates, one event holds the text of several steps.
 * - Errors, those of the arguments included, are {@link CapstanError}s. The iteration throws them and `result()`
 *   rejects with them. An error that nothing reads causes no unhandled rejection.
 */
export class Generation<E extends ChatEvent = GenerateEvent> implements AsyncIterable<E> {
  /** The `requestId` of the call. */
  readonly id: string;
  /**
   * Resolves when the engine has accepted the request, so its prompt is counted and fits. Rejects if the call fails.
   */
  readonly submitted: Promise<Submission>;
  readonly #result: Promise<GenerationResult>;
  readonly #hooks: GenerationHooks;
  #promptTokenIds: Int32Array = new Int32Array(0);
  #settleSubmitted!: Settle<Submission>;
  #settleResult!: Settle<GenerationResult>;
  #choices: RunningChoice[] = [];
  #promptLogprobs?: (TokenLogprob | null)[];
  /** Unread events. Consecutive events of one choice and type are merged. */
  readonly #queue: ChatEvent[] = [];
  /** The last unread event of each choice. */
  readonly #newest = new Map<number, ChatEvent>();
  /** The last unread tool call event of each choice, while no text has followed it. */
  readonly #newestCalls = new Map<number, ToolCallEvent>();
  /** Pending calls of the iterator's `next`. */
  readonly #pendingReads: Settle<IteratorResult<E>>[] = [];
  #isEnded = false;
  #isIterated = false;
  #error?: CapstanError;

  /** @internal */
  constructor(id: string, hooks: GenerationHooks) {
    this.id = id;
    this.#hooks = hooks;
    this.submitted = new Promise((resolve, reject) => {
      this.#settleSubmitted = { resolve, reject };
    });
    this.#result = new Promise((resolve, reject) => {
      this.#settleResult = { resolve, reject };
    });
    // The caller may ignore them: prevent unhandled rejections.
    this.submitted.catch(ignore);
    this.#result.catch(ignore);
  }

  /** Resolves with the complete result. Rejects with the error that ended the call, `aborted` if the loop was left. */
  result(): Promise<GenerationResult> {
    return this.#result;
  }

  /** Resolves with the text of the first choice. Rejects as {@link Generation.result} does. */
  async text(): Promise<string> {
    return (await this.#result).choices[0].text;
  }

  /** Iterates over the text of the first choice, piece by piece, in place of the events. */
  get textStream(): AsyncIterable<string> {
    return textOf(this);
  }

  /**
   * Returns the call as a web stream of UTF-8 bytes, in place of the events. Cancelling the stream aborts the call.
   * @param format Default: `'text'`.
   */
  toReadableStream(format: StreamFormat = 'text'): ReadableStream<Uint8Array> {
    return byteStream(this, format);
  }

  /**
   * Returns a web response that streams the call, for a route of Hono, Next.js or another web framework. Waits until
   * the engine has accepted the request: a call that fails before that becomes a JSON response with an error status.
   */
  toResponse(options: ResponseOptions = {}): Promise<Response> {
    return toResponse(this, options);
  }

  /** Ends the call with code `aborted`. Does nothing if the call has ended. */
  abort(reason?: unknown): void {
    this.fail(new CapstanError('aborted', 'The call was aborted', reason === undefined ? {} : { cause: reason }));
  }

  /** Iterates over the events. At most once; leaving the loop early aborts the call. */
  [Symbol.asyncIterator](): AsyncIterator<E, undefined> {
    if (this.#isIterated) throw iteratedError('result() or text() for the whole answer');
    this.#isIterated = true;
    return {
      next: () => this.#next(),
      return: () => {
        this.abort();
        this.#queue.length = 0;
        this.#error = undefined;
        return Promise.resolve({ done: true, value: undefined });
      },
    };
  }

  /** Log-probabilities of the prompt tokens, as in the result. Available from the first event on. */
  get promptLogprobs(): readonly (TokenLogprob | null)[] | undefined {
    return this.#promptLogprobs;
  }

  /** Whether the call has ended, successfully or not. */
  get hasEnded(): boolean {
    return this.#isEnded;
  }

  /** Number of prompt tokens plus the completion tokens of all choices so far. 0 until the request is submitted. */
  get numTokens(): number {
    return this.#choices.reduce(
      (sum, { reader, finish }) => sum + (finish?.completionTokens ?? reader.tokenIds.length),
      this.#promptTokenIds.length,
    );
  }

  /** @internal Called when the engine has accepted the request. */
  start(promptTokenIds: Int32Array, numChoices: number, options: ChoiceReaderOptions): void {
    this.#promptTokenIds = promptTokenIds;
    this.#choices = Array.from({ length: numChoices }, (_, index) => ({ reader: new ChoiceReader(index, options) }));
    this.#settleSubmitted.resolve({ promptTokens: promptTokenIds.length, promptTokenIds });
  }

  /** @internal Handles one event of the addon. */
  accept(event: NativeEvent): void {
    if (this.#isEnded) return;
    const choice = this.#choices[event.index];
    const { finish } = event;
    if (event.promptLogprobs !== null)
      this.#promptLogprobs = event.promptLogprobs.map((entry) => entry && toTokenLogprob(entry));
    for (const content of choice.reader.read(event)) this.#enqueue(content);
    if (finish !== null) this.#finish(choice, event.index, finish);
    else if (choice.reader.hasStopped) this.#stop(choice, event.index);
    this.#deliver();
  }

  /** @internal */
  fail(error: CapstanError): void {
    if (this.#isEnded) return;
    this.#error = error;
    this.#settleSubmitted.reject(error);
    this.#settleResult.reject(error);
    this.#end(false);
  }

  #stop(choice: RunningChoice, index: number): void {
    if (choice.isStopping === true) return;
    choice.isStopping = true;
    this.#hooks.stop(index);
  }

  #finish(choice: RunningChoice, index: number, native: NativeFinish): void {
    const finish = choice.reader.toFinish(native);
    const { reason, stopReason } = finish;
    if (reason === 'abort') return this.fail(new CapstanError('aborted', 'The call was aborted'));
    if (reason === 'error')
      return this.fail(
        CapstanError.from({ code: finish.errorCode, message: finish.errorMessage ?? 'The engine failed' }),
      );
    choice.finish = finish;
    this.#enqueue({
      type: 'finish',
      index,
      finishReason: choice.reader.finishReason(reason),
      stopReason,
      usage: toUsage(finish, choice.reader.reasoningTokens),
    });
    if (this.#choices.every((other) => other.finish !== undefined)) {
      this.#settleResult.resolve(this.#toResult());
      this.#end(true);
    }
  }

  #toResult(): GenerationResult {
    const finishes = this.#choices.map(({ finish }) => finish!);
    const choices = this.#choices.map(({ reader }, index): Choice => ({
      index,
      text: reader.text,
      toolCalls: reader.toolCalls,
      ...(reader.reasoning === '' ? {} : { reasoning: reader.reasoning }),
      tokenIds: reader.tokenIds,
      ...(reader.logprobs.length === 0 ? {} : { logprobs: reader.logprobs }),
      finishReason: reader.finishReason(finishes[index].reason as 'stop' | 'length'),
      stopReason: finishes[index].stopReason,
    }));
    return {
      id: this.id,
      promptTokenIds: this.#promptTokenIds,
      choices,
      usage: sumUsage(finishes.map((finish, index) => toUsage(finish, this.#choices[index].reader.reasoningTokens))),
      ...(this.#promptLogprobs === undefined ? {} : { promptLogprobs: this.#promptLogprobs }),
    };
  }

  #enqueue(event: ChatEvent): void {
    const newest = this.#newest.get(event.index);
    if (newest !== undefined && merge(newest, event)) {
      if (event.type !== 'toolCall' && isText(event)) this.#newestCalls.delete(event.index);
      return;
    }
    const call = this.#newestCalls.get(event.index);
    if (event.type === 'toolCall' && call !== undefined && merge(call, event)) return;
    this.#queue.push(event);
    this.#newest.set(event.index, event);
    if (event.type === 'toolCall') this.#newestCalls.set(event.index, event);
    else if (isText(event)) this.#newestCalls.delete(event.index);
  }

  #next(): Promise<IteratorResult<E, undefined>> {
    return new Promise((resolve, reject) => {
      this.#pendingReads.push({ resolve, reject } as Settle<IteratorResult<E>>);
      this.#deliver();
    });
  }

  #deliver(): void {
    while (this.#pendingReads.length > 0) {
      const event = this.#queue.shift();
      if (event !== undefined) {
        if (this.#newest.get(event.index) === event) this.#newest.delete(event.index);
        if (this.#newestCalls.get(event.index) === event) this.#newestCalls.delete(event.index);
        this.#pendingReads.shift()!.resolve({ done: false, value: event as E });
      } else if (this.#isEnded) {
        this.#deliverEnd(this.#pendingReads.shift()!);
      } else {
        return;
      }
    }
  }

  /** Throws the error once; later reads get the end of the iteration. */
  #deliverEnd({ resolve, reject }: Settle<IteratorResult<E>>): void {
    const error = this.#error;
    this.#error = undefined;
    if (error === undefined) resolve({ done: true, value: undefined });
    else reject(error);
  }

  #end(isComplete: boolean): void {
    this.#isEnded = true;
    this.#hooks.onEnd(isComplete);
    this.#deliver();
  }
}

/** @param advice What has the result of a call whose events were read. */
export function iteratedError(advice: string): CapstanError {
  return new CapstanError(
    'invalid_argument',
    `The events of a call can be read only once: by a loop over the call, by textStream or by a stream. Use ${advice}`,
  );
}

/** The prompt as the engine accepted it. */
export interface Submission {
  /** Number of prompt tokens. */
  promptTokens: number;
  /** The prompt as the engine computes it: truncated, with special tokens. */
  promptTokenIds: Int32Array;
}

/** Callbacks of a call to its engine. */
export interface GenerationHooks {
  /** Called exactly once, however the call ends. */
  onEnd: (isComplete: boolean) => void;
  /** Ends a choice that is complete although the model would continue. */
  stop: (index: number) => void;
}

interface RunningChoice {
  reader: ChoiceReader;
  isStopping?: boolean;
  finish?: NativeFinish;
}

interface Settle<T> {
  resolve(this: void, value: T): void;
  reject(this: void, error: unknown): void;
}

/** Appends an event to an unread one of the same kind. Returns false if they cannot be merged. */
function merge(into: ChatEvent, event: ChatEvent): boolean {
  if (into.type === 'delta' && event.type === 'delta') {
    into.textDelta += event.textDelta;
    into.tokenIds.push(...event.tokenIds);
    if (event.logprobs !== undefined) (into.logprobs ??= []).push(...event.logprobs);
    return true;
  }
  if (into.type === 'reasoning' && event.type === 'reasoning') {
    into.textDelta += event.textDelta;
    return true;
  }
  if (into.type === 'toolCall' && event.type === 'toolCall' && into.callIndex === event.callIndex) {
    into.argumentsDelta += event.argumentsDelta;
    return true;
  }
  return false;
}

/** A delta without text has tokens whose text a parser holds back, or that belong to a tool call. */
function isText(event: ChatEvent): boolean {
  return event.type !== 'delta' || event.textDelta !== '';
}

function ignore(): void {}
