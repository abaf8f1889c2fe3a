import { ApiError } from '../../base/errors';
import { RESPONSES_PATH } from '../../base/error-styles';
import { type ClientIdentity, pathParameter, type Route } from '../../http/routes';
import type { HttpReply, HttpRequest } from '../../http/transport';
import { sendJson } from '../../http/send-json';
import { show } from '../../base/json/validate';
import { History } from './history';
import type { ResponseStore, StoredItem } from './store';

const RESPONSE_PATH = `${RESPONSES_PATH}/{response_id}`;
const INPUT_ITEMS_PATH = `${RESPONSE_PATH}/input_items`;

export interface StoreContext {
  /** Undefined: the server keeps no responses. */
  readonly responses: ResponseStore | undefined;
  readonly identity: Pick<ClientIdentity, 'ownerId'>;
}

/** GET /v1/responses/{response_id} */
async function getResponse(context: StoreContext, request: HttpRequest, reply: HttpReply): Promise<void> {
  if (new URLSearchParams(request.query).get('stream') === 'true')
    throw new ApiError('unsupported_value', 'stream: expected false, because stored responses are complete', {
      param: 'stream',
    });
  const { response } = await new History(context.responses, context.identity).demand(
    pathParameter(RESPONSE_PATH, request.path),
  );
  sendJson(reply, response);
}

/** DELETE /v1/responses/{response_id} */
async function deleteResponse(context: StoreContext, request: HttpRequest, reply: HttpReply): Promise<void> {
  const id = pathParameter(RESPONSE_PATH, request.path);
  await new History(context.responses, context.identity).delete(id);
  sendJson(reply, { id, object: 'response', deleted: true });
}

const DEFAULT_LIMIT = 20;
const MAX_LIMIT = 100;

/** GET /v1/responses/{response_id}/input_items: the input of that request, without earlier turns. */
async function listInputItems(context: StoreContext, request: HttpRequest, reply: HttpReply): Promise<void> {
  const id = pathParameter(INPUT_ITEMS_PATH, request.path);
  const query = new URLSearchParams(request.query);
  const limit = readLimit(query.get('limit'));
  const isAscending = readOrder(query.get('order')) === 'asc';
  const { input } = await new History(context.responses, context.identity).demand(id);
  const { length } = input;
  const after = query.get('after');
  const found = after === null ? undefined : indexOfItem(input, id, after, isAscending);
  if (found === -1)
    throw new ApiError('invalid_value', `after: expected the id of an item, got ${show(after)}`, { param: 'after' });
  let start = 0;
  if (found !== undefined) start = isAscending ? found + 1 : length - found;
  // Only the items of the page are copied, because there may be very many.
  const from = isAscending ? start : Math.max(length - start - limit, 0);
  const data = input.slice(from, isAscending ? start + limit : length - start).map((item, i) => ({
    ...item,
    type: item.type ?? 'message',
    id: item.id ?? inputItemId(id, from + i),
  }));
  if (!isAscending) data.reverse();
  sendJson(reply, {
    object: 'list',
    data,
    first_id: data[0]?.id ?? null,
    last_id: data.at(-1)?.id ?? null,
    has_more: start + limit < length,
  });
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

function readLimit(text: string | null): number {
  if (text === null) return DEFAULT_LIMIT;
  const limit = Number(text);
  if (/^\d{1,3}$/.test(text) && limit >= 1 && limit <= MAX_LIMIT) return limit;
  throw new ApiError('invalid_value', `limit: expected an integer from 1 to ${MAX_LIMIT}, got ${show(text)}`, {
    param: 'limit',
  });
}

function readOrder(text: string | null): 'asc' | 'desc' {
  if (text === null || text === 'desc' || text === 'asc') return text ?? 'desc';
  throw new ApiError('invalid_value', `order: expected asc or desc, got ${show(text)}`, { param: 'order' });
}

/** The routes of stored responses. */
export const STORED_RESPONSE_ROUTES = [
  { method: 'GET', path: RESPONSE_PATH, handle: getResponse, summary: 'Get a stored response' },
  { method: 'DELETE', path: RESPONSE_PATH, handle: deleteResponse, summary: 'Delete a stored response' },
  {
    method: 'GET',
    path: INPUT_ITEMS_PATH,
    handle: listInputItems,
    summary: 'List the input of a stored response',
  },
] as const satisfies readonly (Route<StoreContext> & { summary: string })[];
