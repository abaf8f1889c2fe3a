import { ApiError } from '../../base/errors';
import type { Route } from '../../http/routes';
import type { HttpRequest } from '../../http/transport';
import type { ServerContext } from '../openai/context';
import { parseJsonText } from '../../base/json/json-text';
import { listModels } from '../openai/models';
import { checkJson } from '../../http/check-json';
import { object, text } from '../../base/json/schema-types';
import { sendJson } from '../../http/send-json';
import { show, validate } from '../../base/json/validate';
import type { ModelEntry } from './served-models';

const MODEL_REQUEST = object({ model: text({ minLength: 1 }) }, ['model']);

/**
 * The routes that load and unload models, with the requests and responses of llama.cpp (`/models`) and vLLM (`/sleep`).
 * Only the admin listener has them.
 */
export const MODEL_ADMIN_ROUTES: readonly Route<ServerContext>[] = [
  { method: 'GET', path: '/models', handle: listModels },
  {
    method: 'POST',
    path: '/models/load',
    handle: async (context, request, reply) => {
      await load(context, [await readEntry(context, request)]);
      sendJson(reply, { success: true });
    },
  },
  {
    method: 'POST',
    path: '/models/unload',
    handle: async (context, request, reply) => {
      const entry = await readEntry(context, request);
      checkUnpinned(entry);
      await context.models.pool.unload(entry.slot, 'unloaded');
      sendJson(reply, { success: true });
    },
  },
  {
    method: 'POST',
    path: '/sleep',
    handle: async (context, request, reply) => {
      const named = entryOf(context, request);
      if (named !== undefined) checkUnpinned(named);
      const entries = named === undefined ? context.models.entries : [named];
      const unpinned = entries.filter(({ slot }) => !slot.model.isPinned);
      if (unpinned.length === 0) throw noneUnpinned();
      await Promise.all(unpinned.map(({ slot }) => context.models.pool.unload(slot, 'sleeping')));
      reply.send(200, {}, '');
    },
  },
  {
    method: 'POST',
    path: '/wake_up',
    handle: async (context, request, reply) => {
      const named = entryOf(context, request);
      const sleeping = context.models.entries.filter(({ slot }) => slot.state === 'sleeping');
      await load(context, named === undefined ? sleeping : [named]);
      reply.send(200, {}, '');
    },
  },
  {
    method: 'GET',
    path: '/is_sleeping',
    handle: (context, request, reply) => {
      const named = entryOf(context, request);
      const entries = named === undefined ? context.models.entries : [named];
      sendJson(reply, { is_sleeping: entries.every(({ slot }) => !slot.isInMemory) });
    },
  },
];

/** Loads one model after the other. The admin listener may say why one fails. */
async function load({ models, signal }: ServerContext, entries: readonly ModelEntry[]): Promise<void> {
  try {
    for (const { slot } of entries) await models.pool.load(slot, signal);
  } catch (error) {
    if (!(error instanceof ApiError && error.cause instanceof Error)) throw error;
    throw new ApiError(error.code, error.cause.message, { cause: error });
  }
}

async function readEntry({ models }: ServerContext, request: HttpRequest): Promise<ModelEntry> {
  checkJson(request);
  const body = await request.readBody();
  const { value } = parseJsonText(Buffer.from(body.buffer, body.byteOffset, body.byteLength));
  return models.find((await validate(MODEL_REQUEST, value)).model);
}

/** Returns the model that the query names, or undefined. */
function entryOf({ models }: ServerContext, { query }: HttpRequest): ModelEntry | undefined {
  const name = new URLSearchParams(query).get('model');
  return name === null ? undefined : models.find(name);
}

function checkUnpinned({ served, slot }: ModelEntry): void {
  if (!slot.model.isPinned) return;
  throw new ApiError('invalid_value', `model: expected a model that is not pinned, got ${show(served.names[0])}`, {
    param: 'model',
  });
}

function noneUnpinned(): ApiError {
  return new ApiError('invalid_value', 'model: expected a model that is not pinned, but all are', { param: 'model' });
}
