import { ApiError } from 'capstan/internal';

/**
 * Failures of a replica. `unreachable`: no connection. `reset`: the connection broke before the response.
 * `timeout`: no response in time. `cut`: the response broke off or stalled.
 */
export const UPSTREAM_FAILURES = ['unreachable', 'reset', 'timeout', 'cut'] as const;
export type UpstreamFailure = (typeof UPSTREAM_FAILURES)[number];

/**
 * No response, or an incomplete one. `wasReached`: the replica may have started work on the request.
 * `wasReused`: the connection had served requests before.
 */
export class UpstreamError extends Error {
  override readonly name = 'UpstreamError';

  constructor(
    readonly reason: Exclude<UpstreamFailure, 'cut'>,
    readonly wasReached: boolean,
    readonly wasReused: boolean,
    message: string,
  ) {
    super(message);
  }
}

/** Returns the error for the client. undefined: no replica can be tried. */
export function asApiError(error: UpstreamError | undefined): ApiError {
  if (error?.reason === 'timeout')
    return new ApiError('upstream_timeout', 'The deployment did not respond in time', { cause: error });
  return new ApiError(
    'upstream_unavailable',
    error?.wasReached === true
      ? 'The deployment closed the connection before it responded'
      : 'The deployment cannot be reached',
    { cause: error },
  );
}
