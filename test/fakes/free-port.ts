import { randomInt } from 'node:crypto';
import { createServer } from 'node:net';

/**
 * Returns a free port above the kernel's ephemeral range, where no other program gets it meanwhile, even
 * while a server restarts.
 */
export function freePort(): Promise<number> {
  const port = randomInt(61_000, 65_536);
  return new Promise((resolve) => {
    const server = createServer();
    server.once('error', () => resolve(freePort()));
    server.listen(port, '127.0.0.1', () => server.close(() => resolve(port)));
  });
}
