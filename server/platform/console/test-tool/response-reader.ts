import { SseParser } from '../api/sse';

/** One event of the stream in which the service reports the response. */
export type TestEvent =
  | { type: 'head'; status: number; headers: [name: string, value: string][]; at_ms: number }
  | { type: 'chunk'; text?: string; base64?: string; at_ms: number }
  | { type: 'end'; at_ms: number; connect_ms: number; first_byte_ms: number; bytes: number; truncated: boolean }
  | { type: 'error'; code: string; message: string; at_ms: number };

/** One event or chunk of the response. */
export interface Piece {
  atMs: number;
  /** Since the previous piece, or since the request was sent. */
  gapMs: number;
  text: string;
}

export interface TestResponse {
  status: number | null;
  headers: readonly [name: string, value: string][];
  body: string;
  /** The events of an event stream, or the chunks of any other body. */
  pieces: readonly Piece[];
  isEventStream: boolean;
  firstEventMs: number | null;
  end: Extract<TestEvent, { type: 'end' }> | null;
  error: { code: string; message: string } | null;
}

export const EMPTY_RESPONSE: TestResponse = {
  status: null,
  headers: [],
  body: '',
  pieces: [],
  isEventStream: false,
  firstEventMs: null,
  end: null,
  error: null,
};
const MAX_BODY = 2_000_000;
const MAX_PIECES = 5_000;

/** Assembles a response from its stream of events. */
export class ResponseReader {
  response: TestResponse = EMPTY_RESPONSE;
  readonly #parser = new SseParser();
  #lastMs = 0;

  add(event: TestEvent): TestResponse {
    switch (event.type) {
      case 'head': {
        const type = event.headers.find(([name]) => name.toLowerCase() === 'content-type')?.[1] ?? '';
        this.response = {
          ...this.response,
          status: event.status,
          headers: event.headers,
          isEventStream: type.startsWith('text/event-stream'),
        };
        break;
      }
      case 'chunk':
        this.#addChunk(event.text ?? `[base64] ${event.base64 ?? ''}`, event.at_ms);
        break;
      case 'end':
        this.response = { ...this.response, end: event };
        break;
      case 'error':
        this.response = { ...this.response, error: { code: event.code, message: event.message } };
        break;
    }
    return this.response;
  }

  #addChunk(text: string, atMs: number): void {
    const { body, pieces, isEventStream, firstEventMs } = this.response;
    const texts = isEventStream
      ? this.#parser.push(text).map(({ event, data }) => (event === 'message' ? data : `${event}: ${data}`))
      : [text];
    const added = texts.map((piece, i) => ({ atMs, gapMs: i === 0 ? atMs - this.#lastMs : 0, text: piece }));
    if (texts.length > 0) this.#lastMs = atMs;
    this.response = {
      ...this.response,
      body: body.length < MAX_BODY ? body + text : body,
      pieces: pieces.length < MAX_PIECES ? [...pieces, ...added] : pieces,
      firstEventMs: firstEventMs ?? (texts.length > 0 ? atMs : null),
    };
  }
}

export function parseTestEvent(data: string): TestEvent | undefined {
  try {
    const value = JSON.parse(data) as TestEvent;
    return ['head', 'chunk', 'end', 'error'].includes(value.type) ? value : undefined;
  } catch {
    return undefined;
  }
}

/** The text that an event of a chat completion stream adds. Other events add nothing. */
export function chatDelta(data: string): {
  text: string;
  reasoning: string;
  usage?: { completion_tokens?: number; prompt_tokens?: number };
  error?: string;
} {
  const nothing = { text: '', reasoning: '' };
  if (data === '[DONE]') return nothing;
  try {
    const chunk = JSON.parse(data) as {
      choices?: { delta?: { content?: string | null; reasoning_content?: string | null } }[];
      usage?: { completion_tokens?: number } | null;
      error?: { message?: string };
    };
    if (chunk.error !== undefined) return { ...nothing, error: chunk.error.message ?? data };
    const delta = chunk.choices?.[0]?.delta;
    return {
      text: delta?.content ?? '',
      reasoning: delta?.reasoning_content ?? '',
      ...(chunk.usage === undefined || chunk.usage === null ? {} : { usage: chunk.usage }),
    };
  } catch {
    return nothing;
  }
}

/** Indents JSON. Other text is returned unchanged. */
export function prettyBody(body: string): string {
  const text = body.trim();
  if (!text.startsWith('{') && !text.startsWith('[')) return body;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return body;
  }
}
