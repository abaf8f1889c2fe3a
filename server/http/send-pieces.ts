import type { ReplyStream } from './transport';

export interface SendPiecesOptions {
  /** Aborts when the client disconnects or may no longer read. */
  signal: AbortSignal;
  /** A client that reads nothing for this long is disconnected. Default: 60 s. */
  slowClientTimeoutMs?: number | undefined;
}

const SLOW_CLIENT_TIMEOUT_MS = 60_000;

/** Sends pieces as fast as the client reads them, and ends the stream. Breaks it off when the signal aborts. */
export async function sendPieces(
  stream: ReplyStream,
  pieces: AsyncIterable<Buffer>,
  { signal, slowClientTimeoutMs = SLOW_CLIENT_TIMEOUT_MS }: SendPiecesOptions,
): Promise<void> {
  let isOpen = true;
  const breakOff = (): void => {
    isOpen = false;
    stream.destroy();
  };
  signal.addEventListener('abort', breakOff);
  try {
    for await (const piece of pieces) {
      if (signal.aborted) breakOff();
      if (!isOpen) return;
      if (stream.write(piece)) continue;
      const timer = setTimeout(breakOff, slowClientTimeoutMs);
      await stream.drained();
      clearTimeout(timer);
    }
    stream.end();
  } catch (error) {
    stream.destroy();
    throw error;
  } finally {
    signal.removeEventListener('abort', breakOff);
  }
}
