import { UsageError } from '../flag-values';
import { createTransport } from '../http/create-transport';
import type { StreamHandler, Transport } from '../http/transport';
import type { UpOptions } from './options';

/** What was opened, to be closed in the opposite order. */
export type Closers = (() => Promise<void> | void)[];

export interface Listener {
  transport: Transport;
  port: number;
}

const MAX_BODY_BYTES = 64 * 2 ** 20;
const BODY_TIMEOUT_MS = 60_000;

/** Listens, and closes with the rest. @throws Error that says what is wrong with the port. */
export async function listenAt(
  host: string,
  port: number,
  {
    handler,
    streamsBodies,
    tls: { keyFile, certFile, passphrase },
    transport: wish,
  }: Pick<UpOptions, 'tls' | 'transport'> & { handler: StreamHandler; streamsBodies: boolean },
  closers: Closers,
): Promise<Listener> {
  const tls =
    keyFile !== undefined && certFile !== undefined
      ? { tls: { keyFile, certFile, ...(passphrase === undefined ? {} : { passphrase }) } }
      : {};
  const transport = await createTransport(wish, {
    handler,
    streamsBodies,
    maxBodyBytes: MAX_BODY_BYTES,
    bodyTimeoutMs: BODY_TIMEOUT_MS,
    ...tls,
  }).catch((error: Error) => {
    throw new UsageError(error.message);
  });
  closers.push(() => transport.close());
  try {
    return { transport, port: await transport.listen(host, port) };
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    const reason =
      code === 'EACCES'
        ? 'not allowed'
        : code === 'EADDRINUSE'
          ? "the port is taken or the address is not this machine's"
          : message;
    throw Object.assign(new Error(`cannot listen on ${host}:${port}: ${reason}`), { code: code ?? 'listen' });
  }
}
