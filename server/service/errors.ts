/** What the service refuses something for; the interface gives each its status. `stale`: somebody else changed the object first. */
export type ServiceErrorCode =
  | 'invalid_argument'
  | 'not_found'
  | 'conflict'
  | 'stale'
  | 'forbidden'
  | 'wrong_state'
  | 'gone'
  | 'bad_credentials'
  | 'otp_required'
  | 'too_many_attempts'
  | 'quota_exceeded'
  | 'busy';

/** The message is for the person who asked, says what was expected, and never holds a secret. */
export class ServiceError extends Error {
  override readonly name = 'ServiceError';
  readonly code: ServiceErrorCode;

  constructor(code: ServiceErrorCode, message: string) {
    super(message);
    this.code = code;
  }
}
