/** Every code that a {@link CapstanError} carries. */
export const ERROR_CODES = [
  // The caller's fault.
  'invalid_argument',
  'context_length_exceeded',
  'template_error',
  // The model directory's.
  'invalid_model',
  'unsupported_model',
  // Resources and life cycle.
  'io_error',
  'out_of_memory',
  'queue_full',
  'engine_closed',
  'aborted',
  'addon_not_found',
  // The engine's own.
  'numeric_error',
  'device_lost',
  'internal_error',
] as const;

export type CapstanErrorCode = (typeof ERROR_CODES)[number];

/** What a {@link CapstanError} says beyond its code and message. */
export interface CapstanErrorDetails {
  /** The option, field or file that was wrong, in the library's spelling (`maxTokens`, `messages[0].content`). */
  param?: string;
  /** What was expected, in words. */
  expected?: string;
  /** What came instead, shown in at most a line. */
  received?: string;
  cause?: unknown;
}

/** The one error class of the library: `code` is from a closed list, the message says what was expected and what came. */
export class CapstanError extends Error {
  override readonly name = 'CapstanError';
  readonly code: CapstanErrorCode;
  readonly param?: string;
  readonly expected?: string;
  readonly received?: string;

  constructor(code: CapstanErrorCode, message: string, details: CapstanErrorDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.code = code;
    this.param = details.param;
    this.expected = details.expected;
    this.received = details.received;
  }

  /** An argument that is not what it should be: `temperature: expected a number of 0 or more, got "hot"`. */
  static argument(param: string, expected: string, received: unknown): CapstanError {
    return CapstanError.mismatch('invalid_argument', param, expected, received);
  }

  /** The same form for any code: `where: expected …, got …`. */
  static mismatch(code: CapstanErrorCode, where: string, expected: string, received: unknown): CapstanError {
    const shown = showValue(received);
    return new CapstanError(code, `${where}: expected ${expected}, got ${shown}`, {
      param: where,
      expected,
      received: shown,
    });
  }

  /** Errors of the addon carry one of our codes; anything else is an internal error. */
  static from(error: unknown): CapstanError {
    if (error instanceof CapstanError) return error;
    const { code, message } = (error ?? {}) as { code?: unknown; message?: unknown };
    const known = ERROR_CODES.find((candidate) => candidate === code) ?? 'internal_error';
    return new CapstanError(known, typeof message === 'string' ? message : String(error), { cause: error });
  }
}

const MAX_SHOWN = 120;

/** A value as an error message shows it: bounded, on one line, without running any code of it. */
export function showValue(value: unknown): string {
  if (typeof value === 'string')
    return JSON.stringify(value.length > MAX_SHOWN ? `${value.slice(0, MAX_SHOWN)}…` : value);
  if (typeof value === 'bigint') return `${value}n`;
  if (Array.isArray(value)) return `an array of ${value.length}`;
  if (ArrayBuffer.isView(value)) return `a ${value.constructor.name}`;
  if (typeof value === 'function') return 'a function';
  if (typeof value === 'object' && value !== null) return 'an object';
  return String(value);
}
