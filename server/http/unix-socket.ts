import { chmodSync, lstatSync, unlinkSync } from 'node:fs';
import { connect } from 'node:net';

const MODE = 0o660;
/** Of `sun_path`, its end included; Linux cuts nothing off but refuses. */
const MAX_PATH_BYTES = 107;

/** Makes room for a socket: what a server that died left behind is removed, anything else stays and is an error. */
export async function clearSocketPath(path: string): Promise<void> {
  if (Buffer.byteLength(path) > MAX_PATH_BYTES)
    throw coded(
      `the path of a Unix socket: expected at most ${MAX_PATH_BYTES} bytes, got ${Buffer.byteLength(path)}`,
      'ENAMETOOLONG',
    );
  const found = lstatSync(path, { throwIfNoEntry: false });
  if (found === undefined) return;
  if (!found.isSocket()) throw coded(`${path} is there already and is no socket`, 'EEXIST');
  if (await isAnswered(path)) throw coded(`another process listens on ${path}`, 'EADDRINUSE');
  unlinkSync(path);
}

/** Runs what makes the socket, so that at no time it is open to others than its user and group. */
export function withSocketMode<T>(path: string, bind: () => T): T {
  const before = process.umask(0o777 & ~MODE);
  try {
    const bound = bind();
    if (lstatSync(path, { throwIfNoEntry: false })?.isSocket()) chmodSync(path, MODE);
    return bound;
  } finally {
    process.umask(before);
  }
}

export function removeSocket(path: string): void {
  try {
    if (lstatSync(path).isSocket()) unlinkSync(path);
  } catch {
    // Gone already.
  }
}

function isAnswered(path: string): Promise<boolean> {
  return new Promise((resolve, reject) => {
    const socket = connect(path);
    socket.on('connect', () => {
      socket.destroy();
      resolve(true);
    });
    socket.on('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'ECONNREFUSED' || error.code === 'ENOENT') resolve(false);
      else reject(error);
    });
  });
}

function coded(message: string, code: string): Error {
  return Object.assign(new Error(message), { code });
}
