import { namedEvent } from 'capstan/internal';
import { dataOf, isObject, type Json, type ReplyRewriter } from './kept-reply';

/** The events that have the response object, by their first bytes. */
const WITH_RESPONSE =
  /^event: ?response\.[a-z_]+\r?$|"type": ?"response\.(?:created|queued|in_progress|completed|incomplete|failed)"/m;
const HEAD_BYTES = 256;

/** A response object of the interface `/v1/responses`. */
export type WireResponse = Json;

/** What becomes of the response objects that pass. */
export interface ResponseChanges {
  /** Returns the object as the client gets it before the response has ended, or without keeping it. */
  shown(response: WireResponse): WireResponse;
  /** Keeps a response that has ended, and returns it as the client gets it. Does not reject. */
  kept(response: WireResponse): Promise<WireResponse>;
}

/** Changes the response objects of `/v1/responses`, up to the first event that ends the response. */
export class ResponseRewriter implements ReplyRewriter {
  readonly #changes: ResponseChanges;
  #hasEnded = false;

  constructor(changes: ResponseChanges) {
    this.#changes = changes;
  }

  whole(value: Json): Promise<Json> | undefined {
    return isResponse(value) ? this.#changes.kept(value) : undefined;
  }

  event(event: Buffer): string | Promise<string> | undefined {
    if (this.#hasEnded || !WITH_RESPONSE.test(event.toString('latin1', 0, HEAD_BYTES))) return undefined;
    const data = dataOf(event.toString());
    if (typeof data?.type !== 'string' || !isResponse(data.response)) return undefined;
    const { type, response } = data;
    const text = (changed: WireResponse): string => namedEvent(type, { ...data, response: changed });
    if (type !== 'response.completed' && type !== 'response.incomplete') return text(this.#changes.shown(response));
    this.#hasEnded = true;
    return this.#changes.kept(response).then(text);
  }
}

function isResponse(value: unknown): value is WireResponse {
  return isObject(value) && value.object === 'response' && typeof value.id === 'string' && Array.isArray(value.output);
}
