import { createServer } from 'node:net';

/**
 * Rejects with an Error whose `code` is `EADDRINUSE` or `EACCES` if this process cannot listen on the port. Connections
 * that an earlier server left behind do not count.
 */
export function demandFreePort(host: string, port: number): Promise<void> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once('error', ({ code: cause }: NodeJS.ErrnoException) => {
      const code = cause === 'EACCES' ? cause : 'EADDRINUSE';
      reject(Object.assign(new Error(`cannot listen on ${host}:${port}`), { code }));
    });
    server.listen({ host, port, exclusive: true }, () => server.close(() => resolve()));
  });
}
