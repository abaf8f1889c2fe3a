/** What a change of keys may be refused for. `stale`: somebody else changed the object first. */
export type AccessErrorCode = 'invalid_argument' | 'not_found' | 'conflict' | 'stale' | 'forbidden' | 'database_error';

/** Thrown by the store and its commands. The message is for the person who asked and never holds a secret. */
export class AccessError extends Error {
  override readonly name = 'AccessError';
  readonly code: AccessErrorCode;

  constructor(code: AccessErrorCode, message: string, options: { cause?: unknown } = {}) {
    super(message, options);
    this.code = code;
  }
}
