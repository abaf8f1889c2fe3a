/** How a replica can fail: no connection; broken off before it answered; no answer in time; broken off, or silent, after it had begun. */
export const UPSTREAM_FAILURES = ['unreachable', 'reset', 'timeout', 'cut'] as const;
export type UpstreamFailure = (typeof UPSTREAM_FAILURES)[number];

/** No answer came, or not all of it. `wasReached`: the replica may have begun to work on the request; `wasReused`: over a connection that served before. */
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
