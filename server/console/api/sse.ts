/** One event of a stream (`text/event-stream`). */
export interface SseEvent {
  /** The last id that was sent, also by an earlier event. */
  id: string;
  event: string;
  data: string;
}

/** Takes the text of a stream as it comes and gives the events that are complete. */
export class SseParser {
  #rest = '';
  #data: string[] = [];
  #event = '';
  #id = '';

  push(text: string): SseEvent[] {
    const events: SseEvent[] = [];
    // A carriage return at the end may be half of a line's end.
    const held = (this.#rest + text).endsWith('\r') ? '\r' : '';
    const whole = (this.#rest + text).slice(0, held === '' ? undefined : -1);
    const lines = whole.split(/\r\n|\n|\r/);
    this.#rest = (lines.pop() as string) + held;
    for (const line of lines) {
      const event = this.#takeLine(line);
      if (event !== undefined) events.push(event);
    }
    return events;
  }

  #takeLine(line: string): SseEvent | undefined {
    if (line === '') return this.#dispatch();
    const colon = line.indexOf(':');
    if (colon === 0) return undefined;
    const field = colon === -1 ? line : line.slice(0, colon);
    const value = colon === -1 ? '' : line.slice(colon + 1).replace(/^ /, '');
    if (field === 'data') this.#data.push(value);
    else if (field === 'event') this.#event = value;
    else if (field === 'id' && !value.includes('\0')) this.#id = value;
    return undefined;
  }

  #dispatch(): SseEvent | undefined {
    const data = this.#data;
    const event = this.#event === '' ? 'message' : this.#event;
    this.#data = [];
    this.#event = '';
    return data.length === 0 ? undefined : { id: this.#id, event, data: data.join('\n') };
  }
}

/** The events of an answer's body, to its end. */
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
    // The stream may be broken already: then there is nothing left to cancel.
    void reader.cancel().catch(() => undefined);
  }
}
