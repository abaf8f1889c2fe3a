import type { Socket } from 'node:net';
import type { UpstreamRequest } from './request-head';

/** Bodies up to this size are copied behind the head, so that both are sent in one write. */
const COPIED_BYTES = 16 * 1024;

/**
 * Sends a request. Calls `done` when everything is written, or with the error of the body. Not called if the connection
 * ends first.
 */
export function sendBody(
  socket: Socket,
  head: string,
  body: UpstreamRequest['body'],
  done: (error?: Error) => void,
): void {
  const sent = (error?: Error | null): void => {
    if (error === undefined || error === null) done();
  };
  if (body === undefined) {
    socket.write(head, 'latin1', sent);
  } else if (!Buffer.isBuffer(body)) {
    sendPieces(socket, head, body).then((isComplete) => {
      if (isComplete) done();
    }, done);
  } else if (body.length <= COPIED_BYTES) {
    socket.write(Buffer.concat([Buffer.from(head, 'latin1'), body]), sent);
  } else {
    socket.cork();
    socket.write(head, 'latin1');
    socket.write(body, sent);
    socket.uncork();
  }
}

/** Sends a chunked body at the speed of the replica. Returns whether all of it was sent. */
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
  const canContinue = socket.write('\r\n', 'latin1');
  socket.uncork();
  return canContinue;
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
