import type { ChatMessage, Messages } from '../../../ts';
import { ApiError } from '../../base/errors';
import type { ClientIdentity } from '../../http/routes';
import { checkNotEmpty, withSystemFirst } from '../conversation/system-message';
import { show } from '../openai/validate';
import { isResponseId, responseIdOf } from './ids';
import { REFERENCE, toMessages } from './input-items';
import type { ResponsesCall } from './request';
import type { InputItem } from './schema';
import type { ResponseStore, StoredResponse } from './store';

/** Limit of the stored text that one conversation may read. */
const MAX_HISTORY_BYTES = 32 * 2 ** 20;

/** Returns the owner under which the responses of a client are stored. Without access control there is one. */
function ownerOf({ ownerId = 'anyone' }: Pick<ClientIdentity, 'ownerId'>): string {
  return ownerId;
}

/** The stored responses of one owner. */
export class History {
  readonly #store: ResponseStore | undefined;
  readonly #owner: string;
  #numBytes = 0;

  constructor(store: ResponseStore | undefined, identity: Pick<ClientIdentity, 'ownerId'>) {
    this.#store = store;
    this.#owner = ownerOf(identity);
  }

  /** Throws ApiError `response_not_found`, also for another owner's response. */
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
    if (this.#numBytes > MAX_HISTORY_BYTES)
      throw new ApiError(
        'context_length_exceeded',
        `${param}: expected a conversation of at most ${MAX_HISTORY_BYTES} bytes, got more`,
        { param },
      );
    return this.#parse(id, text, param);
  }

  /** A text that is no JSON, such as half a file after a power failure, is deleted. */
  async #parse(id: string, text: string, param: string | null): Promise<StoredResponse> {
    try {
      return JSON.parse(text) as StoredResponse;
    } catch {
      await this.#store?.delete(this.#owner, id);
      throw notFound(id, param);
    }
  }

  async delete(id: string): Promise<void> {
    if (this.#store === undefined) throw notKept(null);
    const isDeleted = isResponseId(id) && (await this.#store.delete(this.#owner, id));
    if (!isDeleted) throw notFound(id, null);
  }

  /** Returns whether the response is now stored. */
  async put(record: StoredResponse): Promise<boolean> {
    return (await this.#store?.put(this.#owner, record.response.id, JSON.stringify(record))) ?? false;
  }

  /** Returns the messages of a response and of all responses before it, without their instructions. */
  async #messagesUpTo(id: string): Promise<ChatMessage[]> {
    const turns: (readonly ChatMessage[])[] = [];
    for (let next: string | null = id; next !== null;) {
      const { response, messages }: StoredResponse = await this.#read(next, 'previous_response_id');
      turns.push(messages);
      next = response.previous_response_id;
    }
    return turns.reverse().flat();
  }

  /** Returns the items with the output items that references name. */
  async #withoutReferences(items: readonly InputItem[]): Promise<InputItem[]> {
    const resolved: InputItem[] = [];
    for (const [i, item] of items.entries())
      resolved.push(item.type === REFERENCE ? await this.#referenced(item.id ?? '', `input[${i}].id`) : item);
    return resolved;
  }

  async #referenced(itemId: string, param: string): Promise<InputItem> {
    const { response } = await this.#read(responseIdOf(itemId) ?? itemId, param);
    const found = response.output.find(({ id }) => id === itemId);
    if (found === undefined) throw notFound(itemId, param);
    return found;
  }

  /** Returns the conversation of a request, and the messages that this request adds to it. */
  async conversationOf(call: ResponsesCall): Promise<{ messages: Messages; own: () => readonly ChatMessage[] }> {
    const { messages, instructions, items, previousResponseId } = call;
    if (messages !== undefined) return { messages, own: () => toMessages(items) };
    const own = toMessages(await this.#withoutReferences(items));
    const earlier = previousResponseId === undefined ? [] : await this.#messagesUpTo(previousResponseId);
    const all = withSystemFirst(instructions, [...earlier, ...own]);
    checkNotEmpty(all, 'input');
    return { messages: all, own: () => own };
  }
}

function notFound(id: string, param: string | null): ApiError {
  const start = param === null ? '' : `${param}: `;
  return new ApiError('response_not_found', `${start}expected the id of a stored response, got ${show(id)}`, { param });
}

function notKept(param: string | null): ApiError {
  if (param === null) return new ApiError('response_not_found', 'This server keeps no responses');
  const message = `${param}: this server keeps no responses. Send the whole conversation in input, with "store": false.`;
  return new ApiError('unsupported_value', message, { param });
}
