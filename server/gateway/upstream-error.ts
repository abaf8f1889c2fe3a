/** No answer came, or not all of it. `wasReached`: the replica may have begun to work on the request; `wasReused`: over a connection that served before. */
export class UpstreamError extends Error {
  override readonly name = 'UpstreamError';

  constructor(readonly reason: 'unreachable' | 'reset' | 'timeout', readonly wasReached: boolean, readonly wasReused: boolean, message: string) {
    super(message);
  }
}
