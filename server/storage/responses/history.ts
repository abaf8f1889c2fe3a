import { ApiError } from '../../base/errors';
import { show } from '../../base/json/validate';
import { mayCall, type Reach } from '../../base/reach';
import type { ClientIdentity } from '../../http/routes';
import { isResponseId, responseIdOf } from './ids';
import type { ResponseStore, StoredItem, StoredResponse } from './store';

/** Limit of the stored text that one conversation may read. */
const MAX_HISTORY_BYTES = 32 * 2 ** 20;
/** The type of an item that names an output item of a stored response. */
export const REFERENCE = 'item_reference';

/** The owner of stored texts, and the deployments whose texts the client may read. Absent: all. */
export interface StoreReader extends Pick<ClientIdentity, 'ownerId'> {
  readonly reach?: Reach;
}

/** Returns whether a client may read texts that a deployment created. Undefined: the deployment is not known. */
export function maySee({ reach = null }: StoreReader, deploymentId: string | undefined): boolean {
  return deploymentId === undefined || mayCall(reach, deploymentId);
}

/** Returns the owner of a client's stored objects. Without access control, all clients share one owner. */
export function ownerOf({ ownerId = 'anyone' }: Pick<ClientIdentity, 'ownerId'>): string {
  return ownerId;
}

/** The stored responses of one owner that a client may read. */
export class History {
  readonly #store: ResponseStore | undefined;
  readonly #reader: StoreReader;
  readonly #owner: string;
  readonly #maxBytes: number;
  #numBytes = 0;

  constructor(store: ResponseStore | undefined, reader: StoreReader, maxBytes = MAX_HISTORY_BYTES) {
    this.#store = store;
    this.#reader = reader;
    this.#owner = ownerOf(reader);
    this.#maxBytes = maxBytes;
  }

  /** Throws ApiError `response_not_found`, also for a response that the client may not read. */
  async demand(id: string, param: string | null = null): Promise<StoredResponse> {
    return this.#parse(id, await this.#textOf(id, param), param);
  }

  async #textOf(id: string, param: string | null): Promise<string> {
    if (this.#store === undefined) throw notKept(param);
    const text = isResponseId(id) ? await this.#store.get(this.#owner, id) : undefined;
    if (text === undefined) throw notFound(id, param);
    return text;
  }

  /** As `demand`, within the limit of one conversation. */
  async #read(id: string, param: string): Promise<StoredResponse> {
    const text = await this.#textOf(id, param);
    this.#numBytes += text.length;
    if (this.#numBytes > this.#maxBytes)
      throw new ApiError(
        'context_length_exceeded',
        `${param}: expected a conversation of at most ${this.#maxBytes} bytes, got more`,
        { param },
      );
    return this.#parse(id, text, param);
  }

  /** Deletes a text that is not JSON, such as half a file after a power failure. */
  async #parse(id: string, text: string, param: string | null): Promise<StoredResponse> {
    let found: StoredResponse;
    try {
      found = JSON.parse(text) as StoredResponse;
    } catch {
      await this.#store?.delete(this.#owner, id);
      throw notFound(id, param);
    }
    if (!maySee(this.#reader, found.deployment_id)) throw notFound(id, param);
    return found;
  }

  async delete(id: string): Promise<void> {
    if (this.#store === undefined) throw notKept(null);
    await this.demand(id);
    if (!(await this.#store.delete(this.#owner, id))) throw notFound(id, null);
  }

  /**
   * Stores a response, and returns whether it is stored. A response with the id of another one is not stored: a server
   * behind the gateway could replace the other one, or create a response that continues itself.
   */
  async put(record: StoredResponse): Promise<boolean> {
    if ((await this.#store?.peek(this.#owner, record.response.id)) !== undefined) return false;
    return (await this.#store?.put(this.#owner, record.response.id, JSON.stringify(record))) ?? false;
  }

  /** Returns a response and all responses before it, the oldest first. */
  async turnsUpTo(id: string): Promise<StoredResponse[]> {
    const turns: StoredResponse[] = [];
    for (let next: string | null = id; next !== null;) {
      const turn: StoredResponse = await this.#read(next, 'previous_response_id');
      turns.push(turn);
      next = turn.response.previous_response_id;
    }
    return turns.reverse();
  }

  /** Returns the items, with each reference replaced by the output item that it names. */
  async withoutReferences<Item extends StoredItem>(items: readonly Item[]): Promise<Item[]> {
    const resolved: Item[] = [];
    for (const [i, item] of items.entries())
      resolved.push(
        item.type === REFERENCE ? ((await this.#referenced(item.id ?? '', `input[${i}].id`)) as Item) : item,
      );
    return resolved;
  }

  async #referenced(itemId: string, param: string): Promise<StoredItem> {
    const { response } = await this.#read(responseIdOf(itemId) ?? itemId, param);
    const found = response.output.find(({ id }) => id === itemId);
    if (found === undefined) throw notFound(itemId, param);
    return found;
  }
}

function notFound(id: string, param: string | null): ApiError {
  const start = param === null ? '' : `${param}: `;
  return new ApiError('response_not_found', `${start}expected the id of a stored response, got ${show(id)}`, { param });
}

function notKept(param: string | null): ApiError {
  if (param === null) return new ApiError('response_not_found', 'This server stores no responses');
  const message =
    `${param}: this server stores no responses for this client. ` +
    'Send the whole conversation in input, with "store": false. ' +
    'A server without keys keeps none for web pages and public host names, unless --allowed-origins lists them.';
  return new ApiError('unsupported_value', message, { param });
}
