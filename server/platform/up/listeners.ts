import {
  type Closers,
  createTransport,
  listenProblem,
  type StreamHandler,
  type Transport,
  UsageError,
} from 'capstan/internal';
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
  portFlag: string,
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
    const { code = 'listen' } = error as NodeJS.ErrnoException;
    throw Object.assign(new Error(`cannot listen on ${host}:${port}: ${listenProblem(error as Error, portFlag)}`), {
      code,
    });
  }
}
