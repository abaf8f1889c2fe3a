/** Returns a signal that aborts when the client disconnects or its key is revoked. */
export function eitherOf(gone: AbortSignal, revoked: AbortSignal | undefined): AbortSignal {
  return revoked === undefined ? gone : AbortSignal.any([gone, revoked]);
}
