import { createServer } from 'node:net';

/** Rejects with an Error that has `code` where somebody listens there, or may not be listened; connections of a server that is gone do not count. */
export function demandFreePort(host: string, port: number): Promise<void> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once('error', ({ code }: NodeJS.ErrnoException) =>
      reject(
        Object.assign(new Error(`cannot listen on ${host}:${port}`), { code: code === 'EACCES' ? code : 'EADDRINUSE' }),
      ),
    );
    server.listen({ host, port, exclusive: true }, () => server.close(() => resolve()));
  });
}
