import { realpath } from 'node:fs/promises';
import { join, resolve, sep } from 'node:path';
import { CapstanError } from '../../ts';
import { ApiError } from '../base/errors';
import type { Route } from '../http/routes';
import type { HttpReply, HttpRequest } from '../http/transport';
import type { ModelEntry, ServedModels } from './models/served-models';
import type { ServerContext } from './openai/context';
import { parseJsonText } from '../base/json/json-text';
import { checkJson } from '../http/check-json';
import { boolean, object, text } from '../base/json/schema-types';
import { unsupportedValue } from './openai/unsupported';
import { show, validate } from '../base/json/validate';

const nonEmptyText = text({ minLength: 1 });
/** `model` is the model of the adapter. A server with one model does not need it. */
const LOAD_REQUEST = object(
  { lora_name: nonEmptyText, lora_path: nonEmptyText, load_inplace: boolean, model: nonEmptyText },
  ['lora_name', 'lora_path'],
);
const UNLOAD_REQUEST = object({ lora_name: nonEmptyText }, ['lora_name']);
/** The files of an adapter that are read. */
const FILES = ['adapter_config.json', 'adapter_model.safetensors'];

/**
 * The routes that load and unload adapters while the server runs, with the requests and responses of vLLM. Only the
 * admin listener has them.
 * @param loraDir The folder that adapters are loaded from. undefined: the routes refuse all requests.
 */
export function adapterRoutes(loraDir: string | undefined): Route<ServerContext>[] {
  return [
    {
      method: 'POST',
      path: '/v1/load_lora_adapter',
      handle: async ({ models, signal }, request, reply) => {
        const dir = demandFolder(loraDir);
        const { value } = parseJsonText(await readBody(request));
        const {
          lora_name: name,
          lora_path: path,
          load_inplace: isInPlace,
          model,
        } = await validate(LOAD_REQUEST, value);
        if (isInPlace === true) throw unsupportedValue('load_inplace', true, 'false or no value');
        const entry = models.find(model);
        const endReservation = models.reserve(name);
        if (endReservation === undefined)
          throw new ApiError('invalid_value', `lora_name: expected a name that is not in use, got ${show(name)}`, {
            param: 'lora_name',
          });
        try {
          await load(models, entry, { name, folder: await findFolder(dir, path), signal });
        } finally {
          endReservation();
        }
        sendText(reply, `Success: LoRA adapter '${name}' added successfully.`);
      },
    },
    {
      method: 'POST',
      path: '/v1/unload_lora_adapter',
      handle: async ({ models }, request, reply) => {
        demandFolder(loraDir);
        const { value } = parseJsonText(await readBody(request));
        const { lora_name: name } = await validate(UNLOAD_REQUEST, value);
        const entry = models.entries.find(({ served }) => served.adapterOf(name) !== undefined);
        if (entry === undefined)
          throw new ApiError('model_not_found', `lora_name: expected a loaded adapter, got ${show(name)}`, {
            param: 'lora_name',
          });
        entry.served.unloadAdapter(name);
        sendText(reply, `Success: LoRA adapter '${name}' removed successfully.`);
      },
    },
  ];
}

async function load(
  models: ServedModels,
  entry: ModelEntry,
  { name, folder, signal }: { name: string; folder: string; signal: AbortSignal },
): Promise<void> {
  const { engine, release } = await models.acquire(entry, signal);
  try {
    await engine.loadAdapter(name, folder);
  } catch (error) {
    throw toAdapterError(error);
  } finally {
    release();
  }
}

function demandFolder(loraDir: string | undefined): string {
  if (loraDir === undefined)
    throw new ApiError('permission_denied', 'Adapters can be loaded at run time only with --lora-dir');
  return loraDir;
}

async function readBody(request: HttpRequest): Promise<Buffer> {
  checkJson(request);
  const body = await request.readBody();
  return Buffer.from(body.buffer, body.byteOffset, body.byteLength);
}

/** Returns the folder of an adapter. It and its files must be below `loraDir`, after all symbolic links. */
async function findFolder(loraDir: string, path: string): Promise<string> {
  const refuse = () =>
    new ApiError('invalid_value', `lora_path: expected the folder of an adapter in --lora-dir, got ${show(path)}`, {
      param: 'lora_path',
    });
  if (path.includes('\0')) throw refuse();
  try {
    const root = await realpath(loraDir);
    const folder = await realpath(resolve(root, path));
    const files = await Promise.all(FILES.map((file) => realpath(join(folder, file))));
    if ([folder, ...files].every((real) => real.startsWith(root.endsWith(sep) ? root : root + sep))) return folder;
  } catch {
    // A path that does not exist gets the same answer, which says nothing about other folders.
  }
  throw refuse();
}

/** Errors of the adapter's files are faults of the request here. */
function toAdapterError(error: unknown): unknown {
  if (!(error instanceof CapstanError)) return error;
  const { code, message, param } = error;
  if (param === 'maxLoras' || param === 'enableLora' || message.startsWith('maxLoras'))
    return new ApiError('invalid_value', message, { cause: error });
  if (['invalid_model', 'unsupported_model', 'out_of_memory', 'io_error', 'invalid_argument'].includes(code))
    return new ApiError('invalid_value', message, {
      param: param === 'name' ? 'lora_name' : 'lora_path',
      cause: error,
    });
  return error;
}

function sendText(reply: HttpReply, message: string): void {
  reply.send(200, { 'Content-Type': 'text/plain; charset=utf-8' }, message);
}
