import { ApiError } from '../../base/errors';
import type { HttpReply, HttpRequest } from '../../http/transport';
import { pathParameter, type RequestContext, type Route } from '../../http/routes';
import type { Reach } from '../../base/reach';
import { parseJsonText } from '../../base/json/json-text';
import { checkJson } from '../../http/check-json';
import type { Schema } from '../../base/json/schema-types';
import { object, text, unsafe } from '../../base/json/schema-types';
import { sendJson } from '../../http/send-json';
import { sendPieces } from '../../http/send-pieces';
import { show, validate } from '../../base/json/validate';
import type { BatchService } from './batch-service';
import { MAX_WINDOW_S } from './limits';
import { readForm } from './multipart';
import { batchObject, fileObject, newOwned } from './records';

const FILES = '/v1/files';
const FILE = '/v1/files/{file_id}';
const CONTENT = '/v1/files/{file_id}/content';
const BATCHES = '/v1/batches';
const BATCH = '/v1/batches/{batch_id}';
const CANCEL = '/v1/batches/{batch_id}/cancel';

const MAX_FILENAME_LENGTH = 256;

const nonEmptyText = text({ minLength: 1 });
const BATCH_REQUEST = object(
  {
    input_file_id: nonEmptyText,
    endpoint: nonEmptyText,
    completion_window: text({ pattern: '^[1-9][0-9]{0,6}[smhd]$', description: 'a time such as 24h' }),
    metadata: unsafe<Record<string, string>>({
      type: 'object',
      additionalProperties: { type: 'string', maxLength: 512 },
      maxProperties: 16,
      description: 'an object of at most 16 strings of at most 512 characters',
    }),
  },
  ['input_file_id', 'endpoint', 'completion_window'],
);

interface BatchRoute<Context> extends Route<Context> {
  readonly summary: string;
  readonly requestSchema?: Schema;
}

/** What the routes need of a {@link BatchService}. */
export interface BatchDesk {
  service: Pick<BatchService, 'files' | 'batches' | 'cancel' | 'deleteFile' | 'create' | 'endpoints'>;
  /** The deployments that the client may call. Default: all. */
  reach?: Reach;
  /** The deployment whose URL got the request. Absent: the lines of a batch name their models themselves. */
  deploymentId?: string | undefined;
  /** A client that reads nothing of a file for this long is disconnected. */
  slowClientTimeoutMs?: number | undefined;
}

/**
 * The routes of files and batches.
 * @param find Returns the service, or throws an ApiError that says why there is none.
 */
export function batchRoutes<Context extends RequestContext>(
  find: (context: Context) => BatchDesk,
): BatchRoute<Context>[] {
  return [
    {
      method: 'POST',
      path: FILES,
      summary: 'Upload a file of requests',
      handle: async (context, request, reply) => {
        const { service, reach = null, deploymentId } = find(context);
        const { filename, content } = await readUpload(request);
        const owned = newOwned(ownerOf(context), reach, deploymentId);
        sendJson(reply, fileObject(await service.files.create(owned, filename, content)));
      },
    },
    {
      method: 'GET',
      path: FILES,
      summary: 'List the files',
      handle: (context, request, reply) => {
        const query = new URLSearchParams(request.query);
        const purpose = query.get('purpose');
        const { service, reach } = find(context);
        const all = service.files
          .list(ownerOf(context), reach)
          .filter((file) => purpose === null || file.purpose === purpose);
        sendPage(
          reply,
          page(order(query) === 'asc' ? all.reverse() : all, query, MAX_LISTED_FILES, MAX_LISTED_FILES),
          fileObject,
        );
      },
    },
    {
      method: 'GET',
      path: FILE,
      summary: 'Get a file',
      handle: (context, { path }, reply) => {
        const { service, reach } = find(context);
        sendJson(reply, fileObject(service.files.get(ownerOf(context), pathParameter(FILE, path), reach)));
      },
    },
    {
      method: 'GET',
      path: CONTENT,
      summary: 'Get the content of a file',
      handle: (context, { path }, reply) => {
        const { service, reach, slowClientTimeoutMs } = find(context);
        const { id } = service.files.get(ownerOf(context), pathParameter(CONTENT, path), reach);
        const stream = reply.stream(200, { 'Content-Type': 'application/octet-stream' });
        return sendPieces(stream, service.files.read(id), { signal: context.signal, slowClientTimeoutMs });
      },
    },
    {
      method: 'DELETE',
      path: FILE,
      summary: 'Delete a file',
      handle: async (context, { path }, reply) => {
        const { service, reach } = find(context);
        const file = service.files.get(ownerOf(context), pathParameter(FILE, path), reach);
        await service.deleteFile(file);
        sendJson(reply, { id: file.id, object: 'file', deleted: true });
      },
    },
    {
      method: 'POST',
      path: BATCHES,
      summary: 'Run a file of requests in idle slots',
      requestSchema: BATCH_REQUEST,
      handle: (context, request, reply) => createBatch(find(context), context, request, reply),
    },
    {
      method: 'GET',
      path: BATCHES,
      summary: 'List the batches',
      handle: (context, request, reply) => {
        const { service, reach } = find(context);
        const query = new URLSearchParams(request.query);
        sendPage(reply, page(service.batches.list(ownerOf(context), reach), query, 20, 100), batchObject);
      },
    },
    {
      method: 'GET',
      path: BATCH,
      summary: 'Get a batch',
      handle: (context, { path }, reply) => {
        const { service, reach } = find(context);
        sendJson(reply, batchObject(service.batches.get(ownerOf(context), pathParameter(BATCH, path), reach)));
      },
    },
    {
      method: 'POST',
      path: CANCEL,
      summary: 'Cancel a batch',
      handle: async (context, { path }, reply) => {
        const { service, reach } = find(context);
        const batch = service.batches.get(ownerOf(context), pathParameter(CANCEL, path), reach);
        await service.cancel(batch);
        sendJson(reply, batchObject(batch));
      },
    },
  ];
}

function ownerOf({ identity }: RequestContext): string {
  return identity.ownerId ?? '';
}

async function createBatch(
  { service, reach = null, deploymentId }: BatchDesk,
  { identity }: RequestContext,
  request: HttpRequest,
  reply: HttpReply,
): Promise<void> {
  checkJson(request);
  const { value } = parseJsonText(await request.readBody());
  const order = await validate(BATCH_REQUEST, value);
  refuse(value, 'output_expires_after');
  const { input_file_id: inputFileId, endpoint, completion_window: completionWindow, metadata = null } = order;
  const endpoints = service.endpoints();
  if (!endpoints.includes(endpoint))
    throw new ApiError('invalid_value', `endpoint: expected ${endpoints.join(', ')}, got ${show(endpoint)}`, {
      param: 'endpoint',
    });
  const batch = await service.create({
    endpoint,
    inputFileId,
    completionWindow,
    windowS: toSeconds(completionWindow),
    metadata,
    identity,
    address: request.remoteAddress,
    reach,
    ...(deploymentId === undefined ? {} : { deploymentId }),
  });
  sendJson(reply, batchObject(batch));
}

function refuse(body: unknown, field: string): void {
  const value = (body as Readonly<Record<string, unknown>>)[field];
  if (value !== undefined && value !== null) throw notSupported(field);
}

function notSupported(param: string): ApiError {
  return new ApiError('unsupported_value', `${param} is not supported in this version of the server`, { param });
}

const UNITS_S: Readonly<Record<string, number>> = { s: 1, m: 60, h: 3600, d: 86_400 };

function toSeconds(window: string): number {
  const seconds = Number(window.slice(0, -1)) * UNITS_S[window.at(-1)!];
  if (seconds > MAX_WINDOW_S)
    throw new ApiError(
      'invalid_value',
      `completion_window: expected at most ${MAX_WINDOW_S / 86_400}d, got ${window}`,
      {
        param: 'completion_window',
      },
    );
  return seconds;
}

async function readUpload(request: HttpRequest): Promise<{ filename: string; content: Uint8Array }> {
  const form = await readForm(request);
  const purpose = form.get('purpose');
  const file = form.get('file');
  if (purpose === null) throw missing('purpose');
  if (purpose !== 'batch')
    throw new ApiError('unsupported_value', `purpose: expected batch, got ${show(purpose)}`, { param: 'purpose' });
  if ([...form.keys()].some((name) => name.startsWith('expires_after'))) throw notSupported('expires_after');
  if (file === null) throw missing('file');
  if (typeof file === 'string')
    throw new ApiError('invalid_type', 'file: expected a part with a filename, got a field', { param: 'file' });
  return { filename: file.name.slice(0, MAX_FILENAME_LENGTH), content: new Uint8Array(await file.arrayBuffer()) };
}

function missing(param: string): ApiError {
  return new ApiError('missing_required_parameter', `${param}: expected a value, but it is missing`, { param });
}

/** As at OpenAI. */
const MAX_LISTED_FILES = 10_000;

interface Page<T> {
  items: T[];
  hasMore: boolean;
}

function page<T extends { id: string }>(
  all: readonly T[],
  query: URLSearchParams,
  usual: number,
  max: number,
): Page<T> {
  const limit = query.get('limit');
  const count = limit === null ? usual : Number(limit);
  if (limit !== null && (!/^\d+$/.test(limit) || count < 1 || count > max))
    throw new ApiError('invalid_value', `limit: expected a whole number from 1 to ${max}, got ${show(limit)}`, {
      param: 'limit',
    });
  const after = query.get('after');
  const start = after === null ? 0 : all.findIndex(({ id }) => id === after) + 1;
  if (after !== null && start === 0)
    throw new ApiError('invalid_value', `after: expected the id of an item in the list, got ${show(after)}`, {
      param: 'after',
    });
  return { items: all.slice(start, start + count), hasMore: start + count < all.length };
}

function order(query: URLSearchParams): string {
  const value = query.get('order') ?? 'desc';
  if (value !== 'asc' && value !== 'desc')
    throw new ApiError('invalid_value', `order: expected asc or desc, got ${show(value)}`, { param: 'order' });
  return value;
}

function sendPage<T extends { id: string }>(
  reply: HttpReply,
  { items, hasMore }: Page<T>,
  describe: (item: T) => object,
): void {
  const ids = { first_id: items[0]?.id ?? null, last_id: items.at(-1)?.id ?? null };
  sendJson(reply, { object: 'list', data: items.map(describe), ...ids, has_more: hasMore });
}
