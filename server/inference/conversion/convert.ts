import type { ChatEvent, ChatMessage, Messages } from '../../../ts';
import { ApiError } from '../../base/errors';
import type { Log } from '../../base/log';
import { sseData, SseSplitter } from '../../http/sse-splitter';
import type { HttpRequest } from '../../http/transport';
import { logDroppedTools } from '../conversation/tools';
import { readCall } from '../openai/read-call';
import { newResponseId } from '../../storage/responses/ids';
import { DEFAULT_SETTINGS } from '../settings';
import { ChatWriter, type ClientWriter, MessagesWriter, type ReplyHead, ResponsesWriter } from './client-writers';
import { ChatReader } from './from-chat';
import { MessagesReader } from './from-messages';
import { refused } from './refused';
import { type OutgoingCall, toChatBody } from './to-chat';
import { toMessagesBody } from './to-messages';
import { UpstreamFormatError, type UpstreamReader, type UpstreamUsage } from './upstream-reader';

export type Interface = 'chat' | 'responses' | 'messages';

export interface ConversionOptions {
  /** The interface of the client's request. */
  from: Interface;
  /** The interface of the other server. */
  to: 'chat' | 'messages';
  /** The name of the model there. */
  model: string;
  /** The name of the model in the response. */
  shownModel: string;
  /** The other server knows `max_completion_tokens`, which replaces `max_tokens` in chat completions. */
  isModern: boolean;
  requestId: string;
  signal: AbortSignal;
  log: Pick<Log, 'info'>;
}

/** A request for another server, and how its response becomes one for the client. */
export interface Converted {
  body: Buffer;
  isStream: boolean;
  response: ConvertedResponse;
}

/** The last event of some interfaces repeats the whole response, so its text is held. 128k tokens take about 40 MiB. */
const MAX_STREAM_BYTES = 64 * 1024 * 1024;
/** About what a writer holds for an event besides its text, and for an item of the response, such as a tool call. */
const EVENT_BYTES = 64;
const ITEM_BYTES = 1024;
const CHAR_BYTES = 2;
/** Limits of the engine do not hold elsewhere. */
const NO_LIMITS = { vocabSize: Number.MAX_SAFE_INTEGER, maxModelLen: Number.MAX_SAFE_INTEGER };

/** Converts a request between interfaces. Throws ApiError for an invalid one, and for what the other cannot express. */
export async function convertRequest(request: HttpRequest, options: ConversionOptions): Promise<Converted> {
  const { from, to, model, shownModel, requestId, isModern } = options;
  const head: ReplyHead = { model: shownModel, requestId, created: Math.floor(Date.now() / 1000) };
  const { call, writer } = await readRequest(request, head, options);
  const outgoing: OutgoingCall = {
    model,
    messages: call.messages,
    options: call.options,
    isStream: call.isStream,
    client: from,
  };
  const body =
    to === 'chat' ? toChatBody(outgoing, isModern ? 'max_completion_tokens' : 'max_tokens') : toMessagesBody(outgoing);
  const reader = to === 'chat' ? new ChatReader() : new MessagesReader();
  return {
    // A server with chat completions alone may refuse the field.
    body: jsonOf(
      to === 'chat' && isModern ? { ...body, store: false } : body,
      to === 'chat' ? call.options.seed : undefined,
    ),
    isStream: call.isStream,
    response: new ConvertedResponse(reader, writer),
  };
}

/** Writes every digit of the seed. */
function jsonOf(body: object, seed: bigint | number | undefined): Buffer {
  const text = JSON.stringify(body);
  return Buffer.from(seed === undefined ? text : `{"seed":${seed},${text.slice(1)}`);
}

type Incoming = Pick<OutgoingCall, 'options' | 'isStream'> & { messages: readonly ChatMessage[] };

async function readRequest(
  request: HttpRequest,
  head: ReplyHead,
  { from, log, requestId, signal }: ConversionOptions,
): Promise<{ call: Incoming; writer: ClientWriter }> {
  const context = { settings: DEFAULT_SETTINGS, engine: { info: NO_LIMITS }, signal };
  if (from === 'chat') {
    const call = await readCall('chat', request, context);
    return { call: { ...call, messages: listOf(call.messages) }, writer: new ChatWriter(head, call) };
  }
  if (from === 'messages') {
    const call = await readCall('messages', request, context);
    logDroppedTools(log as Log, requestId, call.droppedTypes);
    return { call: { ...call, messages: listOf(call.messages) }, writer: new MessagesWriter(head, call) };
  }
  const call = await readCall('responses', request, context);
  logDroppedTools(log as Log, requestId, call.droppedTypes);
  if (call.messages === undefined)
    throw refused(
      call.previousResponseId === undefined ? 'input' : 'previous_response_id',
      'the whole conversation in input',
      'a reference to a stored response',
    );
  return {
    call: { ...call, messages: listOf(call.messages) },
    writer: new ResponsesWriter(head, newResponseId(), call),
  };
}

/** A thread returns messages as JSON. */
function listOf(messages: Messages): readonly ChatMessage[] {
  if (!('json' in messages)) return messages;
  const { json } = messages;
  return JSON.parse(typeof json === 'string' ? json : Buffer.from(json).toString()) as ChatMessage[];
}

function textOf(event: ChatEvent): string {
  if (event.type === 'toolCall') return event.argumentsDelta;
  return event.type === 'finish' ? '' : event.textDelta;
}

/** Converts one response, whole or as a stream. */
export class ConvertedResponse {
  readonly #reader: UpstreamReader;
  readonly #writer: ClientWriter;
  readonly #splitter = new SseSplitter();
  #hasBegun = false;
  #isOver = false;
  #numBytes = 0;
  /** Events that have not been returned yet. */
  #text = '';
  #numHeldBytes = 0;
  /** The item that the last event belongs to. */
  #item: number | string | undefined;
  /** Why the stream was ended early. */
  failure: string | undefined;

  constructor(reader: UpstreamReader, writer: ClientWriter) {
    this.#reader = reader;
    this.#writer = writer;
  }

  /** What the other server has reported so far. */
  get usage(): UpstreamUsage | undefined {
    return this.#reader.usage;
  }

  /** About the bytes of memory that a stream takes. */
  get numHeldBytes(): number {
    return this.#numHeldBytes + CHAR_BYTES * this.#splitter.numChars;
  }

  /** Ends a stream early. Returns its last events. */
  fail(error: ApiError): string {
    return this.#guarded(() => {
      throw error;
    });
  }

  /** Takes a piece of a stream. Returns the events for the client. An error becomes the last event. */
  take(piece: Buffer): string {
    return this.#guarded(() => {
      this.#numBytes += piece.length;
      if (this.#numBytes > MAX_STREAM_BYTES)
        throw new UpstreamFormatError(`the stream is longer than ${MAX_STREAM_BYTES} bytes`);
      for (const event of this.#splitter.take(piece)) this.#takeEvent(event);
    });
  }

  /** Returns the last events of a stream that has ended. */
  finish(): string {
    return this.#guarded(() => {
      this.#takeEvent(this.#splitter.rest());
      const { outcome } = this.#reader;
      if (outcome === undefined) throw new UpstreamFormatError('the stream ended too early');
      this.#begin();
      this.#text += this.#writer.end(outcome);
      this.#isOver = true;
    });
  }

  /** Converts a whole response. Throws UpstreamFormatError. */
  whole(body: unknown): object {
    for (const event of this.#reader.takeWhole(body)) this.#writer.take(event);
    const { outcome } = this.#reader;
    if (outcome === undefined) throw new UpstreamFormatError('the response does not say why it ended');
    return this.#writer.whole(outcome);
  }

  #takeEvent(event: string): void {
    const data = sseData(event);
    if (data === undefined) return;
    const taken = this.#reader.takeEvent(data);
    this.#begin();
    for (const one of taken) {
      this.#count(one);
      this.#text += this.#writer.take(one);
    }
  }

  #count(event: ChatEvent): void {
    const item = event.type === 'toolCall' ? event.callIndex : event.type;
    if (item !== this.#item) this.#numHeldBytes += ITEM_BYTES;
    this.#item = item;
    this.#numHeldBytes += EVENT_BYTES + CHAR_BYTES * textOf(event).length;
  }

  #begin(): void {
    if (this.#hasBegun) return;
    this.#hasBegun = true;
    this.#text += this.#writer.begin();
  }

  /** Returns what `run` has written, also before an error. */
  #guarded(run: () => void): string {
    if (this.#isOver) return '';
    try {
      run();
    } catch (error) {
      this.#isOver = true;
      this.failure = (error as Error).message;
      this.#begin();
      const own = error instanceof ApiError ? error : undefined;
      this.#text += this.#writer.fail(
        own ?? new ApiError('upstream_unavailable', `The upstream failed: ${this.failure}`),
      );
    }
    const text = this.#text;
    this.#text = '';
    return text;
  }
}
