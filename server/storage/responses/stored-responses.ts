import { ApiError } from '../../base/errors';
import { RESPONSES_PATH } from '../../base/error-styles';
import type { Reach } from '../../base/reach';
import { type ClientIdentity, pathParameter, type Route } from '../../http/routes';
import type { HttpReply, HttpRequest } from '../../http/transport';
import { sendJson } from '../../http/send-json';
import { History } from './history';
import { type PagedItems, pageOf, readPage } from './page';
import type { ResponseStore, StoredItem } from './store';

const RESPONSE_PATH = `${RESPONSES_PATH}/{response_id}`;
const CANCEL_PATH = `${RESPONSE_PATH}/cancel`;
const INPUT_ITEMS_PATH = `${RESPONSE_PATH}/input_items`;

export interface StoreContext {
  /** Undefined: the server stores no responses. */
  readonly responses: ResponseStore | undefined;
  readonly identity: Pick<ClientIdentity, 'ownerId'>;
  /** The deployments whose objects the client may have. Absent: all. */
  readonly reach?: Reach;
  /** Aborted when the client disconnects. */
  readonly signal: AbortSignal;
}

function historyOf({ responses, identity, reach = null }: StoreContext): History {
  return new History(responses, { ownerId: identity.ownerId, reach });
}

/** GET /v1/responses/{response_id} */
async function getResponse(context: StoreContext, request: HttpRequest, reply: HttpReply): Promise<void> {
  if (new URLSearchParams(request.query).get('stream') === 'true')
    throw new ApiError('unsupported_value', 'stream: expected false, because stored responses are complete', {
      param: 'stream',
    });
  const { response } = await historyOf(context).demand(pathParameter(RESPONSE_PATH, request.path));
  sendJson(reply, response);
}

/** DELETE /v1/responses/{response_id} */
async function deleteResponse(context: StoreContext, request: HttpRequest, reply: HttpReply): Promise<void> {
  const id = pathParameter(RESPONSE_PATH, request.path);
  await historyOf(context).delete(id);
  sendJson(reply, { id, object: 'response', deleted: true });
}

/** POST /v1/responses/{response_id}/cancel: a stored response has ended, because none is made in the background. */
async function cancelResponse(context: StoreContext, request: HttpRequest): Promise<void> {
  const id = pathParameter(CANCEL_PATH, request.path);
  await historyOf(context).demand(id);
  throw new ApiError('invalid_value', `Cannot cancel ${id}: expected a response that was made with "background": true`);
}

/** GET /v1/responses/{response_id}/input_items: the input of that request, without earlier turns. */
async function listInputItems(context: StoreContext, request: HttpRequest, reply: HttpReply): Promise<void> {
  const id = pathParameter(INPUT_ITEMS_PATH, request.path);
  const query = readPage(new URLSearchParams(request.query), 'desc');
  const { input } = await historyOf(context).demand(id);
  const items: PagedItems = {
    length: input.length,
    indexOf: (itemId, isAscending) => indexOfItem(input, id, itemId, isAscending),
    at: (i) => listedItem(input[i], inputItemId(id, i)),
  };
  sendJson(reply, pageOf(items, query));
}

/** Returns an item of a list. Requests may shorten messages; the list has the whole form. */
function listedItem({ type = 'message', id, ...item }: StoredItem, defaultId: string): StoredItem & { id: string } {
  const { role, status = 'completed', content } = item;
  const whole = { ...item, type, id: id ?? defaultId };
  if (type !== 'message') return whole;
  if (typeof content !== 'string') return { ...whole, status };
  const part = role === 'assistant' ? { type: 'output_text', annotations: [] } : { type: 'input_text' };
  return { ...whole, status, content: [{ ...part, text: content }] };
}

/** Returns the index of the first item with an id in the order of the list, or -1. */
function indexOfItem(input: readonly StoredItem[], responseId: string, itemId: string, isAscending: boolean): number {
  const index = Number.parseInt(itemId.slice(`item_${hexOf(responseId)}`.length), 16);
  const isByIndex = index < input.length && itemId === inputItemId(responseId, index);
  if (isByIndex && (input[index].id ?? null) === null) return index;
  const isNamed = ({ id }: StoredItem): boolean => id === itemId;
  return isAscending ? input.findIndex(isNamed) : input.findLastIndex(isNamed);
}

function inputItemId(responseId: string, index: number): string {
  return `item_${hexOf(responseId)}${index.toString(16).padStart(4, '0')}`;
}

function hexOf(responseId: string): string {
  return responseId.slice('resp_'.length);
}

/** The routes of stored responses. */
export const STORED_RESPONSE_ROUTES = [
  { method: 'GET', path: RESPONSE_PATH, handle: getResponse, summary: 'Get a stored response' },
  { method: 'DELETE', path: RESPONSE_PATH, handle: deleteResponse, summary: 'Delete a stored response' },
  {
    method: 'POST',
    path: CANCEL_PATH,
    handle: cancelResponse,
    summary: 'Refuse to cancel a stored response, because it has ended',
  },
  {
    method: 'GET',
    path: INPUT_ITEMS_PATH,
    handle: listInputItems,
    summary: 'List the input of a stored response',
  },
] as const satisfies readonly (Route<StoreContext> & { summary: string })[];
