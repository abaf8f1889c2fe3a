import { createParser } from 'eventsource-parser';

/** One server-sent event (`text/event-stream`). */
export interface SseEvent {
  /** The last id received so far. It may come from an earlier event, and is empty if there was none. */
  id: string;
  event: string;
  data: string;
}

/** Splits the text of a stream into events. A stream may be cut at any character. */
export class SseParser {
  #id = '';
  #events: SseEvent[] = [];
  readonly #parser = createParser({
    onEvent: ({ id, event, data }) => {
      this.#id = id ?? this.#id;
      this.#events.push({ id: this.#id, event: event ?? 'message', data });
    },
  });

  /** Returns the events that this text completes. */
  push(text: string): SseEvent[] {
    this.#events = [];
    this.#parser.feed(text);
    return this.#events;
  }
}

/** Reads the events of a response body until it ends. */
export async function* readEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<SseEvent> {
  const parser = new SseParser();
  const decoder = new TextDecoder();
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.push(decoder.decode(value, { stream: true }));
    }
  } finally {
    // Cancelling a stream that has already failed rejects. There is nothing left to clean up then.
    void reader.cancel().catch(() => undefined);
  }
}
