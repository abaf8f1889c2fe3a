import type { NativeEvent, NativeFinish } from './addon-types';
import { ChoiceReader, type ChoiceReading } from './choice-reader';
import { CapstanError } from './errors';
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
 * A running call: an async iterable of events, and the whole answer by {@link Generation.result}. Both may be used, each once. Leaving the
 * loop aborts the call. A reader slower than the model finds several steps' text in one event. Errors, those of the arguments included,
 * come out of both as {@link CapstanError}; where nobody looks they are dropped.
 */
export class Generation<E extends ChatEvent = GenerateEvent> implements AsyncIterable<E> {
  readonly id: string;
  /** Resolves once the engine has taken the request: its prompt is counted and fits. */
  readonly submitted: Promise<Submission>;
  readonly #result: Promise<GenerationResult>;
  readonly #hooks: GenerationHooks;
  #promptTokenIds: Int32Array = new Int32Array(0);
  #settleSubmitted!: Settle<Submission>;
  #settleResult!: Settle<GenerationResult>;
  #choices: RunningChoice[] = [];
  #promptLogprobs?: (TokenLogprob | null)[];
  /** Not yet read; per choice, consecutive texts are one event. */
  readonly #queue: ChatEvent[] = [];
  readonly #newest = new Map<number, ChatEvent>();
  /** Per choice, the newest call's, while nothing but tokens has come after it. */
  readonly #newestCalls = new Map<number, ToolCallEvent>();
  readonly #waiting: Settle<IteratorResult<E>>[] = [];
  #isEnded = false;
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
    // Nobody has to look at them.
    this.submitted.catch(ignore);
    this.#result.catch(ignore);
  }

  /** The whole answer. Rejects with the error that ended the call, `aborted` if it was left. */
  result(): Promise<GenerationResult> {
    return this.#result;
  }

  /** Ends the call with code `aborted`; without effect once it has ended. */
  abort(reason?: unknown): void {
    this.fail(new CapstanError('aborted', 'The call was aborted', reason === undefined ? {} : { cause: reason }));
  }

  [Symbol.asyncIterator](): AsyncIterator<E, undefined> {
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

  /** Those of the result, from the first event on. */
  get promptLogprobs(): readonly (TokenLogprob | null)[] | undefined {
    return this.#promptLogprobs;
  }

  get hasEnded(): boolean {
    return this.#isEnded;
  }

  /** Tokens of the prompt and of all choices so far, also of a call that was left; 0 until the engine has taken it. */
  get numTokens(): number {
    return this.#choices.reduce(
      (sum, { reader, finish }) => sum + (finish?.completionTokens ?? reader.tokenIds.length),
      this.#promptTokenIds.length,
    );
  }

  /** @internal The engine took the request. */
  start(promptTokenIds: Int32Array, numChoices: number, reading: ChoiceReading): void {
    this.#promptTokenIds = promptTokenIds;
    this.#choices = Array.from({ length: numChoices }, (_, index) => ({ reader: new ChoiceReader(index, reading) }));
    this.#settleSubmitted.resolve({ promptTokens: promptTokenIds.length, promptTokenIds });
  }

  /** @internal What a step gave one of the choices. */
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
        CapstanError.from({ code: finish.errorCode, message: finish.errorMessage ?? 'The engine could not go on' }),
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
      this.#settleResult.resolve(this.#wholeAnswer());
      this.#end(true);
    }
  }

  #wholeAnswer(): GenerationResult {
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
      this.#waiting.push({ resolve, reject } as Settle<IteratorResult<E>>);
      this.#deliver();
    });
  }

  #deliver(): void {
    while (this.#waiting.length > 0) {
      const event = this.#queue.shift();
      if (event !== undefined) {
        if (this.#newest.get(event.index) === event) this.#newest.delete(event.index);
        if (this.#newestCalls.get(event.index) === event) this.#newestCalls.delete(event.index);
        this.#waiting.shift()!.resolve({ done: false, value: event as E });
      } else if (this.#isEnded) {
        this.#deliverEnd(this.#waiting.shift()!);
      } else {
        return;
      }
    }
  }

  /** The error comes out once; after it the iteration is over. */
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

/** What the engine was given. */
export interface Submission {
  promptTokens: number;
  promptTokenIds: Int32Array;
}

/** What a call asks of the engine. */
export interface GenerationHooks {
  /** Runs once, however the call ends. */
  onEnd: (isComplete: boolean) => void;
  /** A choice has all that was asked for although the model would go on: its end is wanted now. */
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

/** Adds an event's text to one that nobody has read yet. */
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

/** Deltas without text bring tokens that a machine holds back, or that a call is made of. */
function isText(event: ChatEvent): boolean {
  return event.type !== 'delta' || event.textDelta !== '';
}

function ignore(): void {}
