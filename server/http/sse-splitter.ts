import { StringDecoder } from 'node:string_decoder';

/** A longer event is refused. */
const MAX_EVENT_CHARS = 8 * 1024 * 1024;

/** Splits a stream of server-sent events that arrives in pieces. */
export class SseSplitter {
  readonly #decoder = new StringDecoder('utf8');
  #held = '';

  /** Returns the texts of the complete events, without the empty line at their end. Throws for an overlong event. */
  take(piece: Buffer): string[] {
    const text = this.#held + this.#decoder.write(piece);
    // A carriage return at the end may belong to a line end that arrives with the next piece.
    const isSplit = text.endsWith('\r');
    const blocks = text
      .slice(0, isSplit ? -1 : undefined)
      .replace(/\r\n?/g, '\n')
      .split('\n\n');
    this.#held = (blocks.pop() as string) + (isSplit ? '\r' : '');
    if (this.#held.length > MAX_EVENT_CHARS)
      throw new Error(`an event of the stream is longer than ${MAX_EVENT_CHARS} characters`);
    return blocks.filter((block) => block !== '');
  }

  /** Returns the text after the last complete event. */
  rest(): string {
    const rest = this.#held + this.#decoder.end();
    this.#held = '';
    return rest.trimEnd();
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
