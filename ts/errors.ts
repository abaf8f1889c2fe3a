/** Every code that a {@link CapstanError} can have. */
export const ERROR_CODES = [
  // Faults of the caller.
  'invalid_argument',
  'context_length_exceeded',
  'template_error',
  'unsupported_task',
  // Faults of the generated text.
  'invalid_output',
  // Faults of the model's files.
  'invalid_model',
  'unsupported_model',
  // Faults of a download.
  'model_not_found',
  'access_denied',
  'download_failed',
  // Resources and life cycle.
  'io_error',
  'out_of_memory',
  'queue_full',
  'engine_closed',
  'aborted',
  'addon_not_found',
  // Faults of the engine or the device.
  'numeric_error',
  'device_lost',
  'internal_error',
] as const;

/**
 * Code of a {@link CapstanError}:
 *
 * | code | meaning |
 * |---|---|
 * | `invalid_argument` | An option, parameter or prompt is invalid; `param` names it. |
 * | `context_length_exceeded` | The prompt, or prompt and completion together, exceed the context length. |
 * | `template_error` | The chat template is missing or cannot render the messages. |
 * | `unsupported_task` | The task of the engine does not support this call, such as `embed` with a text generator. |
 * | `invalid_output` | The generated text is incomplete, or not what the schema asks for; the message says why. |
 * | `invalid_model` | A file of the model is missing or malformed. |
 * | `unsupported_model` | The architecture, data type or tokenizer is not supported. |
 * | `model_not_found` | There is neither a path nor a model from the hub with that name, revision or file. |
 * | `access_denied` | The hub does not let this token, or a request without a token, read the model. |
 * | `download_failed` | The model cannot be downloaded; the message says why. What was received is kept. |
 * | `io_error` | A file cannot be read or written. |
 * | `out_of_memory` | The weights or the KV cache do not fit, or the system has no thread left. |
 * | `queue_full` | Too many requests or prompt tokens are waiting, or too many grammars are in use; retry later. |
 * | `engine_closed` | The engine was closed. |
 * | `aborted` | The caller aborted the load or the call. |
 * | `addon_not_found` | The native addon does not load on this platform. |
 * | `numeric_error` | The model computed NaN or infinity for this request. |
 * | `device_lost` | The GPU failed or stopped responding. Restart the process. |
 * | `internal_error` | A bug in the library. |
 */
export type CapstanErrorCode = (typeof ERROR_CODES)[number];

/** Fields of a {@link CapstanError} besides its code and message. */
export interface CapstanErrorDetails {
  /** The invalid option, field or file, in the library's spelling (`maxTokens`, `messages[0].content`). */
  param?: string;
  /** The expected value, in words. */
  expected?: string;
  /** The received value, in at most one line. */
  received?: string;
  /** The error that caused this one. */
  cause?: unknown;
}

/** The only error class of the library. The message says what was expected and what was received. */
export class CapstanError extends Error {
  /** Always `'CapstanError'`. */
  override readonly name = 'CapstanError';
  /** The kind of the error. */
  readonly code: CapstanErrorCode;
  /** The invalid option, field or file, if there is one. */
  readonly param?: string;
  /** The expected value in words, if a value is wrong. */
  readonly expected?: string;
  /** The received value in at most one line, if a value is wrong. */
  readonly received?: string;

  /** Creates an error. The factories below write its message. */
  constructor(code: CapstanErrorCode, message: string, details: CapstanErrorDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.code = code;
    this.param = details.param;
    this.expected = details.expected;
    this.received = details.received;
  }

  /** Creates an error for an invalid argument: `temperature: expected a number of 0 or more, got "hot"`. */
  static argument(param: string, expected: string, received: unknown): CapstanError {
    return CapstanError.mismatch('invalid_argument', param, expected, received);
  }

  /** Creates an error `where: expected …, got …` that shows the received value. */
  static mismatch(code: CapstanErrorCode, where: string, expected: string, received: unknown): CapstanError {
    return CapstanError.unexpected(code, where, expected, showValue(received));
  }

  /** Creates an error `where: expected …, got …` with `received` in words. */
  static unexpected(code: CapstanErrorCode, where: string, expected: string, received: string): CapstanError {
    return new CapstanError(code, `${where}: expected ${expected}, got ${received}`, {
      param: where,
      expected,
      received,
    });
  }

  /** Converts any thrown value. Errors of the addon have one of our codes; anything else becomes `internal_error`. */
  static from(error: unknown): CapstanError {
    if (error instanceof CapstanError) return error;
    const { code, message } = (error ?? {}) as { code?: unknown; message?: unknown };
    const known = ERROR_CODES.find((candidate) => candidate === code) ?? 'internal_error';
    return new CapstanError(known, typeof message === 'string' ? message : String(error), { cause: error });
  }
}

/** Returns the error of a call to an engine that is closed. */
export function closedError(): CapstanError {
  return new CapstanError('engine_closed', 'The engine is closed: load a new one');
}

const MAX_SHOWN = 120;

/** Formats a value for an error message: bounded, on one line, without calling any of the value's methods. */
export function showValue(value: unknown): string {
  if (typeof value === 'string') return escapeControls(JSON.stringify(cut(value, MAX_SHOWN)));
  if (Array.isArray(value)) return `an array of ${value.length}`;
  if (ArrayBuffer.isView(value)) return `a ${value.constructor.name}`;
  if (typeof value === 'function') return 'a function';
  if (typeof value === 'object' && value !== null) return 'an object';
  return String(value);
}

/** A file name of 255 characters and the start of a name in the file. */
const MAX_SHOWN_PLACE = 400;

/** Formats a name that a file of the model contains, for an error message: bounded, on one line, without quotes. */
export function showPlace(name: string): string {
  return escapeControls(cut(name, MAX_SHOWN_PLACE));
}

function cut(text: string, maxLength: number): string {
  return text.length > maxLength ? `${text.slice(0, maxLength)}…` : text;
}

/** A terminal would obey control characters, and characters that change the direction hide what follows. */
export function escapeControls(text: string): string {
  return text.replace(
    /[\p{Cc}\p{Cs}\p{Zl}\p{Zp}\p{Bidi_Control}]/gu,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}
