import { createServer } from 'node:net';

/**
 * Rejects with an Error with a `code` such as `EADDRINUSE` if this process cannot listen on the port. Connections that
 * an earlier server left behind do not count.
 */
export function demandFreePort(host: string, port: number): Promise<void> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once('error', ({ code: cause }: NodeJS.ErrnoException) => {
      const code = cause ?? 'EADDRINUSE';
      reject(Object.assign(new Error(`cannot listen on ${host}:${port}`), { code }));
    });
    server.listen({ host, port, exclusive: true }, () => server.close(() => resolve()));
  });
}

/** Says why a listen failed and what to do. @param flag The flag that chooses the port. */
export function listenProblem({ code, message }: NodeJS.ErrnoException, flag: string): string {
  switch (code) {
    case 'EADDRINUSE':
      return `the port is in use. Choose another one with ${flag}, or stop the process that uses it`;
    case 'EACCES':
      return `permission denied. Choose a port of 1024 or more with ${flag}, or run with the capability CAP_NET_BIND_SERVICE`;
    case 'EADDRNOTAVAIL':
      return 'the address does not belong to this machine';
    default:
      return message;
  }
}
