/** Why an access operation failed. `stale`: the object has changed since the revision the caller expected. */
export type AccessErrorCode = 'invalid_argument' | 'not_found' | 'conflict' | 'stale' | 'forbidden' | 'database_error';

/** The error of the key store and its commands. The message is for the user and never contains a secret. */
export class AccessError extends Error {
  override readonly name = 'AccessError';
  readonly code: AccessErrorCode;

  constructor(code: AccessErrorCode, message: string, options: { cause?: unknown } = {}) {
    super(message, options);
    this.code = code;
  }
}
