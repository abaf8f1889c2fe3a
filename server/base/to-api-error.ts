import { CapstanError, type CapstanErrorCode } from '../../ts';
import { ApiError, type ApiErrorCode } from './errors';

const ENGINE_ERRORS: Readonly<Record<CapstanErrorCode, ApiErrorCode>> = {
  invalid_argument: 'invalid_value',
  context_length_exceeded: 'context_length_exceeded',
  template_error: 'unsupported_value',
  unsupported_task: 'unsupported_task',
  queue_full: 'queue_full',
  engine_closed: 'shutting_down',
  device_lost: 'engine_dead',
  invalid_output: 'internal_error',
  aborted: 'internal_error',
  numeric_error: 'internal_error',
  out_of_memory: 'internal_error',
  io_error: 'internal_error',
  invalid_model: 'internal_error',
  unsupported_model: 'internal_error',
  model_not_found: 'internal_error',
  access_denied: 'internal_error',
  download_failed: 'internal_error',
  addon_not_found: 'internal_error',
  internal_error: 'internal_error',
};

/** Messages of server-side errors. They reveal nothing about the cause. */
const SERVER_ERROR_MESSAGES: Partial<Record<ApiErrorCode, string>> = {
  internal_error: 'The server could not finish this request',
  engine_dead: 'The engine has stopped',
  shutting_down: 'The server is shutting down',
};

/** Converts any thrown value to an ApiError. `cause` keeps the original for the log. */
export function toApiError(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  // The server aborted the generation, and the cause says why.
  if (error instanceof CapstanError && error.code === 'aborted' && error.cause instanceof ApiError) return error.cause;
  if (!(error instanceof CapstanError))
    return new ApiError('internal_error', SERVER_ERROR_MESSAGES.internal_error!, { cause: error });
  // The adapter was unloaded after the name was checked.
  if (error.code === 'invalid_argument' && error.param === 'adapter')
    return new ApiError('model_not_found', `model: ${error.message.replace(/^adapter: /, '')}`, {
      param: 'model',
      cause: error,
    });
  const code = ENGINE_ERRORS[error.code];
  const serverMessage = SERVER_ERROR_MESSAGES[code];
  if (serverMessage !== undefined) return new ApiError(code, serverMessage, { cause: error });
  const name = error.param === undefined ? null : toSnakeCase(error.param);
  const namesParam = name !== null && error.message.startsWith(`${error.param}:`);
  const message = namesParam ? name + error.message.slice(error.param!.length) : error.message;
  // For lists of plain values, the parameter is the list and not the item.
  const param = name === null || /^(messages|tools)\b/.test(name) ? name : name.replace(/[[.].*/, '');
  return new ApiError(code, message, { param, cause: error });
}

/** Converts a name of the library to the wire: `messages[0].toolCallId` becomes `messages[0].tool_call_id`. */
export function toSnakeCase(param: string): string {
  return param.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}
