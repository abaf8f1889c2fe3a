import { chmodSync, lstatSync, unlinkSync } from 'node:fs';
import { connect } from 'node:net';

const MODE = 0o660;
/** Size of `sun_path` on Linux, without its final NUL. */
const MAX_PATH_BYTES = 107;

/** Removes the socket file of a server that died. Throws an Error with a `code` if anything else is at the path. */
export async function clearSocketPath(path: string): Promise<void> {
  if (Buffer.byteLength(path) > MAX_PATH_BYTES)
    throw errorWithCode(
      `the path of a Unix socket: expected at most ${MAX_PATH_BYTES} bytes, got ${Buffer.byteLength(path)}`,
      'ENAMETOOLONG',
    );
  const found = lstatSync(path, { throwIfNoEntry: false });
  if (found === undefined) return;
  if (!found.isSocket()) throw errorWithCode(`${path} exists and is not a socket`, 'EEXIST');
  if (await hasListener(path)) throw errorWithCode(`another process listens on ${path}`, 'EADDRINUSE');
  unlinkSync(path);
}

/** Runs `bind` so that at no time anyone except the user and group can open the socket. */
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
    // The file is gone already.
  }
}

function hasListener(path: string): Promise<boolean> {
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

function errorWithCode(message: string, code: string): Error {
  return Object.assign(new Error(message), { code });
}
