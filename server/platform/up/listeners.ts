import { type Closers, createTransport, type StreamHandler, type Transport, UsageError } from 'capstan/internal';
import type { UpOptions } from './options';

export interface Listener {
  transport: Transport;
  port: number;
}

const MAX_BODY_BYTES = 64 * 2 ** 20;
const BODY_TIMEOUT_MS = 60_000;

/**
 * Listens, and registers the close function in `closers`. Throws Error with the reason when the port cannot be used.
 */
export async function listenAt(
  host: string,
  port: number,
  {
    handler,
    streamsBodies,
    tls: { keyFile, certFile, passphrase },
    transport: transportName,
    keepAliveTimeoutMs,
  }: Pick<UpOptions, 'tls' | 'transport' | 'keepAliveTimeoutMs'> & { handler: StreamHandler; streamsBodies: boolean },
  closers: Closers,
): Promise<Listener> {
  const tls =
    keyFile !== undefined && certFile !== undefined
      ? { tls: { keyFile, certFile, ...(passphrase === undefined ? {} : { passphrase }) } }
      : {};
  const transport = await createTransport(transportName, {
    handler,
    streamsBodies,
    maxBodyBytes: MAX_BODY_BYTES,
    bodyTimeoutMs: BODY_TIMEOUT_MS,
    keepAliveTimeoutMs,
    ...tls,
  }).catch((error: Error) => {
    throw new UsageError(error.message);
  });
  closers.push(() => transport.close());
  try {
    return { transport, port: await transport.listen(host, port) };
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    const reason = LISTEN_ERRORS[code ?? ''] ?? message;
    throw Object.assign(new Error(`cannot listen on ${host}:${port}: ${reason}`), { code: code ?? 'listen' });
  }
}

const LISTEN_ERRORS: Readonly<Record<string, string>> = {
  EACCES: 'permission denied',
  EADDRINUSE: 'the port is in use, or the address does not belong to this machine',
};
