import type { Socket } from 'node:net';
import type { UpstreamRequest } from './request-head';

/** Up to here a body is copied behind its head, so that both go out in one call. */
const COPIED_BYTES = 16 * 1024;

/** Sends a request. `done`: once it is on its way, or with what its body failed with; not where the connection has ended. */
export function sendBody(
  socket: Socket,
  head: string,
  body: UpstreamRequest['body'],
  done: (error?: Error) => void,
): void {
  const sent = (error?: Error | null): void => {
    if (error === undefined || error === null) done();
  };
  if (body === undefined) socket.write(head, 'latin1', sent);
  else if (!Buffer.isBuffer(body))
    sendPieces(socket, head, body).then((isWhole) => {
      if (isWhole) done();
    }, done);
  else if (body.length <= COPIED_BYTES) socket.write(Buffer.concat([Buffer.from(head, 'latin1'), body]), sent);
  else {
    socket.cork();
    socket.write(head, 'latin1');
    socket.write(body, sent);
    socket.uncork();
  }
}

/** In chunks, no faster than the replica takes them. @returns whether it was sent to its end. */
async function sendPieces(socket: Socket, head: string, body: AsyncIterable<Buffer>): Promise<boolean> {
  socket.write(head, 'latin1');
  for await (const piece of body) {
    if (socket.destroyed) return false;
    if (piece.length > 0 && !writeChunk(socket, piece)) await writable(socket);
  }
  if (socket.destroyed) return false;
  socket.write('0\r\n\r\n', 'latin1');
  return true;
}

function writeChunk(socket: Socket, piece: Buffer): boolean {
  socket.cork();
  socket.write(`${piece.length.toString(16)}\r\n`, 'latin1');
  socket.write(piece);
  const hasRoom = socket.write('\r\n', 'latin1');
  socket.uncork();
  return hasRoom;
}

function writable(socket: Socket): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      socket.off('drain', done);
      socket.off('close', done);
      resolve();
    };
    socket.on('drain', done);
    socket.on('close', done);
  });
}
