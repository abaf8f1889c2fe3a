import type { ChatEvent, FinishEvent, ToolCall, Usage } from '../../../ts';
import { type ApiError } from '../../base/errors';
import { DONE, errorStyleOf, namedEvent } from '../../base/error-styles';
import { Content } from '../anthropic/content';
import { MESSAGES_PATH, stopOf, wireUsage as messagesUsage } from '../anthropic/messages';
import type { MessagesCall } from '../anthropic/request';
import type { ChatCall } from '../openai/chat-request';
import { chatChunk, chatCompletion, type ChatStyle, type CompletionHead, finishChoice } from '../openai/chat-response';
import { ChatChunks } from '../openai/chat-stream';
import { TokenWords } from '../openai/logprobs';
import { wireUsage } from '../openai/usage';
import { Output } from '../responses/output';
import type { ResponsesCall } from '../responses/request';
import { type ResponseHead, statusOf, wireResponse } from '../responses/response';
import type { Outcome, UpstreamUsage } from './upstream-reader';

/** Writes the response to a client in one interface. */
export interface ClientWriter {
  /** Returns the first events of a stream. */
  begin(): string;
  /** Takes an event of the chat, except its end. Returns the events of a stream. */
  take(event: ChatEvent): string;
  /** Returns the last events of a stream. */
  end(outcome: Outcome): string;
  /** Returns the last events of a stream that fails. */
  fail(error: ApiError): string;
  /** Returns the complete response, after all events. */
  whole(outcome: Outcome): object;
}

/** The identity of a response. */
export interface ReplyHead {
  /** The name of the model in the request. */
  model: string;
  /** Unique. Letters, digits and dashes. */
  requestId: string;
  /** Seconds since 1970. */
  created: number;
}

const NO_USAGE: UpstreamUsage = { promptTokens: 0, completionTokens: 0, totalTokens: 0, cachedTokens: 0 };
/** Another server reports no such times. */
const NO_TIMES = { timings: { queueMs: 0, prefillMs: 0, decodeMs: 0 }, numPreemptions: 0 };

function usageOf({ usage = NO_USAGE }: Outcome): Usage {
  return { ...usage, ...NO_TIMES };
}

function finishOf(outcome: Outcome): FinishEvent {
  const { finishReason, stopSequence } = outcome;
  return { type: 'finish', index: 0, finishReason, stopReason: stopSequence, usage: usageOf(outcome) };
}

/** No log-probabilities are converted, so no token is ever spelled. */
const STYLE: ChatStyle = {
  role: 'assistant',
  hasPrefixCache: true,
  words: new TokenWords({ tokenBytes: () => Buffer.alloc(0) }),
};

export class ChatWriter implements ClientWriter {
  readonly #head: CompletionHead;
  readonly #call: ChatCall;
  readonly #chunks: ChatChunks;
  #text = '';
  #reasoning = '';
  readonly #calls: ToolCall[] = [];

  constructor({ requestId, ...head }: ReplyHead, call: ChatCall) {
    this.#head = { ...head, id: `chatcmpl-${requestId}` };
    this.#call = call;
    this.#chunks = new ChatChunks(this.#head, call, 0, STYLE);
  }

  begin(): string {
    return toEvents(this.#chunks.begin({ tokenIds: undefined, text: undefined }));
  }

  take(event: ChatEvent): string {
    if (event.type === 'delta') this.#text += event.textDelta;
    if (event.type === 'reasoning') this.#reasoning += event.textDelta;
    if (event.type === 'toolCall') {
      const { callIndex, id, name, argumentsDelta } = event;
      const call = (this.#calls[callIndex] ??= { id, name, arguments: '' });
      call.arguments += argumentsDelta;
    }
    return toEvents(this.#chunks.take([event]));
  }

  end(outcome: Outcome): string {
    const finish = finishOf(outcome);
    const last = outcome.isFiltered
      ? [chatChunk(this.#head, [{ ...finishChoice(finish), finish_reason: 'content_filter' }])]
      : this.#chunks.take([finish]);
    if (this.#call.usage.isAtEnd) last.push(chatChunk(this.#head, [], wireUsage(finish.usage, true)));
    return toEvents(last) + DONE;
  }

  fail(error: ApiError): string {
    return errorStyleOf('').events(error, '');
  }

  whole(outcome: Outcome): object {
    const { finishReason, stopReason, usage } = finishOf(outcome);
    const choice = {
      index: 0,
      text: this.#text,
      toolCalls: this.#calls,
      ...(this.#reasoning === '' ? {} : { reasoning: this.#reasoning }),
      tokenIds: [],
      finishReason,
      stopReason,
    };
    const result = { id: this.#head.id, promptTokenIds: new Int32Array(), choices: [choice], usage };
    const response = chatCompletion(this.#head, this.#call, result, { tokenIds: undefined, text: undefined }, STYLE);
    if (!outcome.isFiltered) return response;
    const { choices } = response as { choices: object[] };
    return { ...response, choices: choices.map((wire) => ({ ...wire, finish_reason: 'content_filter' })) };
  }
}

function toEvents(chunks: readonly string[]): string {
  return chunks.map((chunk) => `data: ${chunk}\n\n`).join('');
}

export class ResponsesWriter implements ClientWriter {
  readonly #head: ResponseHead;
  readonly #output: Output;
  #events = '';
  #numEvents = 0;

  constructor({ model, created }: ReplyHead, id: string, call: ResponsesCall) {
    this.#head = { id, created, model, isStored: false, call, defaults: {} };
    this.#output = new Output({
      responseId: id,
      callForms: call.callForms,
      words: STYLE.words,
      emit: (type, fields) => this.#emit(type, fields),
    });
  }

  begin(): string {
    const response = wireResponse(this.#head, { status: 'in_progress', output: [] });
    this.#emit('response.created', { response });
    this.#emit('response.in_progress', { response });
    return this.#flush();
  }

  take(event: ChatEvent): string {
    this.#output.take(event);
    return this.#flush();
  }

  end(outcome: Outcome): string {
    const response = this.whole(outcome) as { status: string };
    this.#emit(`response.${response.status}`, { response });
    return this.#flush();
  }

  fail(error: ApiError): string {
    const response = wireResponse(this.#head, { status: 'failed', output: this.#output.items, error });
    this.#emit('response.failed', { response });
    return this.#flush() + errorStyleOf('/v1/responses').events(error, '');
  }

  whole(outcome: Outcome): object {
    const finish = finishOf(outcome);
    this.#output.take(finish);
    const status = outcome.isFiltered ? 'incomplete' : statusOf(outcome.finishReason);
    const response = wireResponse(this.#head, { status, output: this.#output.items, usage: finish.usage });
    return outcome.isFiltered ? { ...response, incomplete_details: { reason: 'content_filter' } } : response;
  }

  #emit(type: string, fields: object): void {
    this.#events += namedEvent(type, { type, ...fields, sequence_number: this.#numEvents++ });
  }

  #flush(): string {
    const events = this.#events;
    this.#events = '';
    return events;
  }
}

export class MessagesWriter implements ClientWriter {
  readonly #head: { id: string; model: string };
  readonly #requestId: string;
  readonly #content: Content;
  #events = '';

  constructor({ model, requestId }: ReplyHead, _call: MessagesCall) {
    this.#head = { id: `msg_${requestId}`, model };
    this.#requestId = requestId;
    this.#content = new Content((type, fields) => this.#emit(type, fields));
  }

  get #fields(): object {
    return { id: this.#head.id, type: 'message', role: 'assistant', model: this.#head.model };
  }

  begin(): string {
    const stop = { stop_reason: null, stop_sequence: null };
    this.#emit('message_start', {
      message: { ...this.#fields, content: [], ...stop, usage: messagesUsage(NO_USAGE) },
    });
    return this.#flush();
  }

  take(event: ChatEvent): string {
    this.#content.take(event);
    return this.#flush();
  }

  end(outcome: Outcome): string {
    this.#emit('message_delta', { delta: this.#finish(outcome), usage: messagesUsage(usageOf(outcome)) });
    this.#emit('message_stop', {});
    return this.#flush();
  }

  fail(error: ApiError): string {
    return errorStyleOf(MESSAGES_PATH).events(error, this.#requestId);
  }

  whole(outcome: Outcome): object {
    const stop = this.#finish(outcome);
    return { ...this.#fields, content: this.#content.blocks, ...stop, usage: messagesUsage(usageOf(outcome)) };
  }

  #finish(outcome: Outcome): object {
    this.#content.take(finishOf(outcome));
    return outcome.isFiltered ? { stop_reason: 'refusal', stop_sequence: null } : stopOf(this.#content);
  }

  #emit(type: string, fields: object): void {
    this.#events += namedEvent(type, { type, ...fields });
  }

  #flush(): string {
    const events = this.#events;
    this.#events = '';
    return events;
  }
}
