/** The API maps each code to a status. `stale`: the object has changed since the caller read it. */
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
  | 'sign_in_refused'
  | 'too_many_attempts'
  | 'quota_exceeded'
  | 'busy'
  | 'lease_lost';

/** An error whose message is shown to the user. It must not contain secrets. */
export class ServiceError extends Error {
  override readonly name = 'ServiceError';
  readonly code: ServiceErrorCode;

  constructor(code: ServiceErrorCode, message: string) {
    super(message);
    this.code = code;
  }
}
