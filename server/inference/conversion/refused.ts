import { ApiError } from '../../base/errors';

/** Returns the error for what the interface of the other server cannot express. */
export function refused(param: string, expected: string, received: string): ApiError {
  return new ApiError(
    'unsupported_value',
    `${param}: expected ${expected}, because the upstream of this deployment has no other interface, got ${received}`,
    { param },
  );
}
