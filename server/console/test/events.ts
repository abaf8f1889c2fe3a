import { SseParser } from '../api/sse';

/** What the answer of the test tool streams, one of these per event. */
export type TestEvent =
  | { type: 'head'; status: number; headers: [name: string, value: string][]; at_ms: number }
  | { type: 'chunk'; text?: string; base64?: string; at_ms: number }
  | { type: 'end'; at_ms: number; connect_ms: number; first_byte_ms: number; bytes: number; truncated: boolean }
  | { type: 'error'; code: string; message: string; at_ms: number };

/** One piece of the answer, as it came. */
export interface Piece {
  atMs: number;
  /** Since the piece before, or since the sending. */
  gapMs: number;
  text: string;
}

export interface TestAnswer {
  status: number | null;
  headers: readonly [name: string, value: string][];
  body: string;
  /** Of an event stream its events, else the chunks as they came. */
  pieces: readonly Piece[];
  isEventStream: boolean;
  firstEventMs: number | null;
  end: Extract<TestEvent, { type: 'end' }> | null;
  error: { code: string; message: string } | null;
}

export const NO_ANSWER: TestAnswer = {
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

/** Puts an answer together out of what is streamed. */
export class AnswerReader {
  answer: TestAnswer = NO_ANSWER;
  readonly #parser = new SseParser();
  #lastMs = 0;

  take(event: TestEvent): TestAnswer {
    switch (event.type) {
      case 'head': {
        const type = event.headers.find(([name]) => name.toLowerCase() === 'content-type')?.[1] ?? '';
        this.answer = {
          ...this.answer,
          status: event.status,
          headers: event.headers,
          isEventStream: type.startsWith('text/event-stream'),
        };
        break;
      }
      case 'chunk':
        this.#takeChunk(event.text ?? `[base64] ${event.base64 ?? ''}`, event.at_ms);
        break;
      case 'end':
        this.answer = { ...this.answer, end: event };
        break;
      case 'error':
        this.answer = { ...this.answer, error: { code: event.code, message: event.message } };
        break;
    }
    return this.answer;
  }

  #takeChunk(text: string, atMs: number): void {
    const { body, pieces, isEventStream, firstEventMs } = this.answer;
    const texts = isEventStream
      ? this.#parser.push(text).map(({ event, data }) => (event === 'message' ? data : `${event}: ${data}`))
      : [text];
    const added = texts.map((piece, i) => ({ atMs, gapMs: i === 0 ? atMs - this.#lastMs : 0, text: piece }));
    if (texts.length > 0) this.#lastMs = atMs;
    this.answer = {
      ...this.answer,
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

/** What one event of a chat stream adds, where it is one. */
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

/** JSON with its parts on lines of their own; other text as it is. */
export function prettyBody(body: string): string {
  const text = body.trim();
  if (!text.startsWith('{') && !text.startsWith('[')) return body;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return body;
  }
}
