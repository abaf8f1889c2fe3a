import { CHAT_PATH } from '../../base/error-styles';
import { ApiError } from '../../base/errors';
import { parseJsonText } from '../../base/json/json-text';
import { object, type Schema } from '../../base/json/schema-types';
import { show } from '../../base/json/validate';
import { checkJson } from '../../http/check-json';
import { pathParameter, type Route } from '../../http/routes';
import { sendJson } from '../../http/send-json';
import type { HttpReply, HttpRequest } from '../../http/transport';
import { type CompletionFilter, Completions, readMetadata } from './completions';
import { METADATA } from './metadata';
import { listOf, pageOf, readPage } from './page';
import type { StoreContext } from './stored-responses';

const COMPLETION_PATH = `${CHAT_PATH}/{completion_id}`;
const MESSAGES_PATH = `${COMPLETION_PATH}/messages`;

function completionsOf({ responses, identity, reach = null }: StoreContext): Completions {
  return new Completions(responses, { ownerId: identity.ownerId, reach });
}

/** GET /v1/chat/completions */
async function listCompletions(context: StoreContext, request: HttpRequest, reply: HttpReply): Promise<void> {
  const query = new URLSearchParams(request.query);
  const filter = await readFilter(query);
  const { data, hasMore } = await completionsOf(context).list(readPage(query, 'asc'), filter, context.signal);
  sendJson(reply, listOf(data, hasMore));
}

/** Throws ApiError for metadata that no completion can have. */
async function readFilter(query: URLSearchParams): Promise<CompletionFilter> {
  const metadata = [...query].flatMap(([name, value]) => {
    const [, key] = /^metadata\[(.*)\]$/s.exec(name) ?? [];
    return key === undefined ? [] : [[key, value] as const];
  });
  return {
    model: query.get('model') ?? undefined,
    metadata: await readMetadata({ metadata: Object.fromEntries(metadata) }),
  };
}

/** GET /v1/chat/completions/{completion_id} */
async function getCompletion(context: StoreContext, request: HttpRequest, reply: HttpReply): Promise<void> {
  const { completion } = await completionsOf(context).demand(pathParameter(COMPLETION_PATH, request.path));
  sendJson(reply, completion);
}

/** POST /v1/chat/completions/{completion_id}: replaces the metadata. */
async function updateCompletion(context: StoreContext, request: HttpRequest, reply: HttpReply): Promise<void> {
  const id = pathParameter(COMPLETION_PATH, request.path);
  checkJson(request);
  const { value } = parseJsonText(await request.readBody());
  const { metadata: sent } = { ...(value as object) } as { metadata?: unknown };
  if (sent === undefined)
    throw new ApiError('missing_required_parameter', 'metadata: expected a value, but it is missing', {
      param: 'metadata',
    });
  const metadata = await readMetadata(value);
  const changed = await completionsOf(context).update(id, metadata);
  if (changed === undefined)
    throw new ApiError(
      'invalid_value',
      `metadata: expected less, because ${show(id)} would be too large to be stored`,
      {
        param: 'metadata',
      },
    );
  sendJson(reply, changed);
}

/** DELETE /v1/chat/completions/{completion_id} */
async function deleteCompletion(context: StoreContext, request: HttpRequest, reply: HttpReply): Promise<void> {
  const id = pathParameter(COMPLETION_PATH, request.path);
  await completionsOf(context).delete(id);
  sendJson(reply, { id, object: 'chat.completion.deleted', deleted: true });
}

/** GET /v1/chat/completions/{completion_id}/messages: the messages of that request. */
async function listMessages(context: StoreContext, request: HttpRequest, reply: HttpReply): Promise<void> {
  const id = pathParameter(MESSAGES_PATH, request.path);
  const query = readPage(new URLSearchParams(request.query), 'asc');
  const { messages } = await completionsOf(context).demand(id);
  const idAt = (index: number): string => `${id}-${index}`;
  const items = {
    length: messages.length,
    indexOf: (messageId: string) => messages.findIndex((_, i) => idAt(i) === messageId),
    at: (i: number) => {
      const { content = null, name = null, ...message } = messages[i];
      const isParts = Array.isArray(content);
      return {
        ...message,
        id: idAt(i),
        content: isParts ? null : content,
        content_parts: isParts ? (content as unknown[]) : null,
        name,
      };
    },
  };
  sendJson(reply, pageOf(items, query));
}

/** The body of an update. Null removes the metadata. */
const UPDATE_REQUEST = object({ metadata: METADATA });

/** The routes of stored chat completions. */
export const STORED_COMPLETION_ROUTES = [
  { method: 'GET', path: CHAT_PATH, handle: listCompletions, summary: 'List stored chat completions' },
  { method: 'GET', path: COMPLETION_PATH, handle: getCompletion, summary: 'Get a stored chat completion' },
  {
    method: 'POST',
    path: COMPLETION_PATH,
    handle: updateCompletion,
    summary: 'Replace the metadata of a stored chat completion',
    requestSchema: UPDATE_REQUEST,
  },
  { method: 'DELETE', path: COMPLETION_PATH, handle: deleteCompletion, summary: 'Delete a stored chat completion' },
  {
    method: 'GET',
    path: MESSAGES_PATH,
    handle: listMessages,
    summary: 'List the messages of a stored chat completion',
  },
] as const satisfies readonly (Route<StoreContext> & { summary: string; requestSchema?: Schema })[];
