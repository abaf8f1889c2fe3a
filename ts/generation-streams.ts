import { CapstanError, type CapstanErrorCode } from './errors';
import type { ChatEvent } from './events';

/**
 * What a stream of bytes holds:
 *
 * - `'text'`: the text of the first choice.
 * - `'sse'`: server-sent events. The data of each is an event of the call as JSON; the last is `[DONE]`.
 * - `'jsonl'`: an event of the call as JSON on each line.
 *
 * A call that fails ends `'sse'` and `'jsonl'` with `{ type: 'error', code, message }`. A stream of `'text'` fails.
 */
export type StreamFormat = 'text' | 'sse' | 'jsonl';

/** Options of {@link Generation.toResponse}. */
export interface ResponseOptions {
  /** Default: `'text'`. */
  format?: StreamFormat;
  /** Headers in addition to, or instead of, `content-type` and `cache-control`. */
  headers?: Readonly<Record<string, string>>;
}

const CONTENT_TYPES: Readonly<Record<StreamFormat, string>> = {
  text: 'text/plain; charset=utf-8',
  sse: 'text/event-stream; charset=utf-8',
  jsonl: 'application/jsonl; charset=utf-8',
};

/** HTTP status of a call that fails before it starts. Default: 500. */
const STATUS: Partial<Record<CapstanErrorCode, number>> = {
  invalid_argument: 400,
  context_length_exceeded: 400,
  template_error: 400,
  unsupported_task: 400,
  queue_full: 429,
  aborted: 499,
  engine_closed: 503,
};

/** Yields the text of the first choice. */
export async function* textOf(events: AsyncIterable<ChatEvent>): AsyncGenerator<string, void, undefined> {
  for await (const event of events)
    if (event.type === 'delta' && event.index === 0 && event.textDelta !== '') yield event.textDelta;
}

/** What a stream needs of a generation. */
interface Call extends AsyncIterable<ChatEvent> {
  readonly submitted: Promise<unknown>;
  abort(reason?: unknown): void;
}

/** Reads the events only when the consumer asks for bytes. Cancelling the stream aborts the call. */
export function byteStream(call: Call, format: StreamFormat): ReadableStream<Uint8Array> {
  if (!Object.hasOwn(CONTENT_TYPES, format)) throw CapstanError.argument('format', "'text', 'sse' or 'jsonl'", format);
  const pieces = format === 'text' ? textOf(call) : records(call, format);
  const encoder = new TextEncoder();
  return new ReadableStream<Uint8Array>({
    pull: async (controller) => {
      const { done, value } = await pieces.next();
      if (done === true) controller.close();
      else controller.enqueue(encoder.encode(value));
    },
    cancel: (reason) => call.abort(reason),
  });
}

async function* records(events: AsyncIterable<ChatEvent>, format: 'sse' | 'jsonl'): AsyncGenerator<string, void> {
  const write = (value: object): string =>
    format === 'sse' ? `data: ${JSON.stringify(value)}\n\n` : `${JSON.stringify(value)}\n`;
  try {
    for await (const event of events) yield write(event);
  } catch (error) {
    yield write({ type: 'error', ...publicError(error as CapstanError) });
  }
  if (format === 'sse') yield 'data: [DONE]\n\n';
}

export async function toResponse(call: Call, { format = 'text', headers = {} }: ResponseOptions): Promise<Response> {
  const body = byteStream(call, format);
  try {
    await call.submitted;
  } catch (error) {
    const { code } = error as CapstanError;
    return Response.json({ error: publicError(error as CapstanError) }, { status: STATUS[code] ?? 500 });
  }
  return new Response(body, {
    headers: { 'content-type': CONTENT_TYPES[format], 'cache-control': 'no-cache', ...headers },
  });
}

/** The fields of an error that a client may see: of a fault of the process, only that there is one. */
function publicError({ code, message }: CapstanError): { code: CapstanErrorCode; message: string } {
  return STATUS[code] === undefined ? { code: 'internal_error', message: 'The call failed' } : { code, message };
}
