import { CapstanError, type CapstanErrorCode } from './errors';

/** The fields of a CapstanError, which can be sent to another thread. */
export interface ThreadError {
  code: CapstanErrorCode;
  message: string;
  param?: string | undefined;
  expected?: string | undefined;
  received?: string | undefined;
  stack?: string | undefined;
}

export function toThreadError(error: unknown): ThreadError {
  const { code, message, param, expected, received, stack } = CapstanError.from(error);
  return { code, message, param, expected, received, ...(code === 'internal_error' ? { stack } : {}) };
}

export function reviveError({ code, message, stack, ...details }: ThreadError): CapstanError {
  const error = new CapstanError(code, message, details);
  if (stack !== undefined) error.stack = stack;
  return error;
}
