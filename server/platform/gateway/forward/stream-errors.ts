import { ApiError, errorStyleOf, isLightReply, type ReplyStream, toApiError } from 'capstan/internal';
import type { Call } from '../call';

/** The error has already been written to the response. */
export class ReportedError extends Error {}

/** What decides how a stream shows an error. */
type StyledCall = Pick<Call, 'address' | 'requestId'>;

interface StreamEnd {
  error: unknown;
  isEvents: boolean;
  isAtLineEnd: boolean;
  isClientGone: boolean;
  call: StyledCall;
}

/** Ends a stream that its upstream has left open. */
export function endOpenStream(
  stream: ReplyStream,
  { error, isEvents, isAtLineEnd, isClientGone, call }: StreamEnd,
): void {
  // A client that stopped reading would not read the error either.
  if (!isEvents || isClientGone || error === undefined) return stream.destroy();
  if (!isAtLineEnd) stream.write('\n\n');
  sendErrorEvent(stream, error, call);
}

/** Sends an error as the last event of a stream, and ends it. */
export function sendErrorEvent(stream: ReplyStream, error: unknown, { address, requestId }: StyledCall): void {
  stream.write(errorStyleOf(address.path).events(toApiError(error), requestId));
  stream.end();
}

/** Sends a plain JSON response as one event, because a stream has already been started. */
export function sendBodyAsEvent(stream: ReplyStream, status: number, body: Buffer, call: StyledCall): void {
  const value = asJson(body.toString());
  if (value === undefined) {
    const message = `Expected an event stream, but the deployment responded with status ${status}`;
    return sendErrorEvent(stream, new ApiError('upstream_unavailable', message), call);
  }
  stream.write(errorStyleOf(call.address.path).bodyEvents(value));
  stream.end();
}

function asJson(text: string): unknown {
  try {
    return isLightReply(text) ? (JSON.parse(text) ?? undefined) : undefined;
  } catch {
    return undefined;
  }
}
