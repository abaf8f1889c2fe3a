import { StringDecoder } from 'node:string_decoder';

/** A longer event is refused. */
const MAX_EVENT_CHARS = 8 * 1024 * 1024;

/** Splits a stream of server-sent events that arrives in pieces. Takes linear time, however small the pieces are. */
export class SseSplitter {
  readonly #decoder = new StringDecoder('utf8');
  /** The lines of the event that arrives. */
  #lines: string[] = [];
  /** Pieces of the line that arrives. */
  #line: string[] = [];
  #numChars = 0;

  /** The characters of the event that arrives. */
  get numChars(): number {
    return this.#numChars;
  }

  /** Returns the texts of the complete events, without the empty line at their end. Throws for an overlong event. */
  take(piece: Buffer): string[] {
    const events: string[] = [];
    const text = this.#decoder.write(piece);
    let start = 0;
    for (let end = text.indexOf('\n'); end >= 0; end = text.indexOf('\n', start)) {
      this.#hold(text.slice(start, end));
      start = end + 1;
      const event = this.#endLine();
      if (event !== undefined) events.push(event);
    }
    this.#hold(text.slice(start));
    return events;
  }

  /** Returns the text after the last complete event. */
  rest(): string {
    this.#hold(this.#decoder.end());
    this.#endLine();
    return this.#endEvent();
  }

  #hold(text: string): void {
    this.#numChars += text.length;
    if (this.#numChars > MAX_EVENT_CHARS)
      throw new Error(`an event of the stream is longer than ${MAX_EVENT_CHARS} characters`);
    if (text !== '') this.#line.push(text);
  }

  /** Returns the event that an empty line ends. */
  #endLine(): string | undefined {
    const line = this.#line.join('').replace(/\r$/, '');
    this.#line = [];
    if (line !== '') {
      this.#lines.push(line);
      return undefined;
    }
    const event = this.#endEvent();
    return event === '' ? undefined : event;
  }

  #endEvent(): string {
    const event = this.#lines.join('\n');
    this.#lines = [];
    this.#numChars = 0;
    return event;
  }
}

/** Returns the data of an event. Undefined for an event without data, such as a comment. */
export function sseData(event: string): string | undefined {
  const lines = event.split('\n').flatMap((line) => {
    if (!line.startsWith('data:')) return [];
    return [line.slice(line.startsWith('data: ') ? 6 : 5)];
  });
  return lines.length === 0 ? undefined : lines.join('\n');
}
