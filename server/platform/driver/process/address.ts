import { createHash } from 'node:crypto';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ReplicaAddress, ReplicaSpec } from '../driver';
import { CONTAINER_PORT, type Level, PRODUCTION_PORT } from './replica-layout';

/** Longest path of a Unix socket, including the terminating NUL. */
const MAX_SOCKET_PATH = 107;
const MAX_TRIES = 64;

/** Chooses the address of a replica. @param sockets Folder for Unix sockets. */
export async function chooseAddress(
  level: Level,
  { id, isProduction }: Pick<ReplicaSpec, 'id' | 'isProduction'>,
  sockets: string,
): Promise<ReplicaAddress> {
  if (level === 'L2') return { type: 'unix', path: join(sockets, `${id}.sock`) };
  if (level === 'L0') return { type: 'tcp', host: '127.0.0.1', port: await freePort() };
  const port = isProduction ? PRODUCTION_PORT : CONTAINER_PORT;
  return { type: 'tcp', host: await freeLoopbackAddress(id, port), port };
}

/** Returns `run` in the data directory, or a folder in /tmp if that path would be too long for a socket. */
export function socketFolder(dataDir: string, longestName: number): string {
  const folder = join(dataDir, 'run');
  if (Buffer.byteLength(folder) + 1 + longestName <= MAX_SOCKET_PATH) return folder;
  return join(tmpdir(), `capstan-${createHash('sha256').update(dataDir).digest('hex').slice(0, 16)}`);
}

/** Returns a free address of 127.0.0.0/8. A replica gets the same address each time if it is free. */
async function freeLoopbackAddress(id: string, port: number): Promise<string> {
  for (let attempt = 0; attempt < MAX_TRIES; attempt++) {
    const [a, b, c] = createHash('sha256').update(`${id}/${attempt}`).digest();
    const host = `127.${64 + (a % 64)}.${b}.${1 + (c % 254)}`;
    if (await canListen(host, port)) return host;
  }
  throw new Error(`no loopback address is free on port ${port}`);
}

export function canListen(host: string, port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once('error', () => resolve(false));
    server.listen({ host, port, exclusive: true }, () => server.close(() => resolve(true)));
  });
}

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once('error', reject);
    server.listen({ host: '127.0.0.1', port: 0 }, () => {
      const address = server.address();
      server.close(() =>
        typeof address === 'object' && address !== null ? resolve(address.port) : reject(new Error('no port')),
      );
    });
  });
}
