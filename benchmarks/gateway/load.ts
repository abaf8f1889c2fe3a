/** An HTTP/1.1 client that costs little, so that load and upstream fit on one core. */
import { connect, type Socket } from 'node:net';

export interface Route {
  port: number;
  /** The header lines after the request line, without Content-Length. */
  headers: readonly string[];
  path: string;
}

export interface Answer {
  /** From the call until the first byte of the body. */
  firstByteMs: number;
  numBytes: number;
}

const HEAD_END = Buffer.from('\r\n\r\n');
const LAST_CHUNK = Buffer.from('0\r\n\r\n');
const TIMEOUT_MS = 60_000;

/** One response on a socket. */
class Reading {
  readonly #startedMs = performance.now();
  #head = Buffer.alloc(0);
  /** Bytes of the body that are left. Infinity: chunks follow. Undefined: the head is not complete. */
  #numLeft: number | undefined;
  #tail = Buffer.alloc(0);
  readonly answer: Answer = { firstByteMs: 0, numBytes: 0 };

  /** Returns whether the response is complete. @throws Error for a status other than 200 */
  add(bytes: Buffer): boolean {
    if (this.#numLeft !== undefined) return this.#addBody(bytes);
    this.#head = Buffer.concat([this.#head, bytes]);
    const end = this.#head.indexOf(HEAD_END);
    if (end < 0) return false;
    const head = this.#head.toString('latin1', 0, end);
    if (!head.startsWith('HTTP/1.1 200'))
      throw new Error(`expected status 200, got ${this.#head.toString('latin1').slice(0, 600)}`);
    this.#numLeft = Number(/\r\ncontent-length: *(\d+)/i.exec(head)?.[1] ?? Infinity);
    const rest = this.#head.subarray(end + HEAD_END.length);
    return rest.length > 0 && this.#addBody(rest);
  }

  #addBody(bytes: Buffer): boolean {
    if (this.answer.numBytes === 0) this.answer.firstByteMs = performance.now() - this.#startedMs;
    this.answer.numBytes += bytes.length;
    this.#numLeft = this.#numLeft! - bytes.length;
    if (this.#numLeft !== Infinity) return this.#numLeft <= 0;
    // The last chunk may arrive in two parts.
    this.#tail = bytes.length >= LAST_CHUNK.length ? bytes : Buffer.concat([this.#tail, bytes]);
    return this.#tail.subarray(-LAST_CHUNK.length).equals(LAST_CHUNK);
  }
}

/** Sends requests with one body over connections that stay open. */
export class Client {
  readonly #route: Route;
  readonly #request: Buffer;
  readonly #idle: Socket[] = [];
  numOpen = 0;

  constructor(route: Route, body: object) {
    this.#route = route;
    const text = Buffer.from(JSON.stringify(body));
    const lines = [
      `POST ${route.path} HTTP/1.1`,
      `Host: 127.0.0.1:${route.port}`,
      'Content-Type: application/json',
      ...route.headers,
      `Content-Length: ${text.length}`,
    ];
    this.#request = Buffer.concat([Buffer.from(`${lines.join('\r\n')}\r\n\r\n`), text]);
  }

  /** `onBytes` receives the length of each part of a body. */
  send(onBytes?: (numBytes: number) => void): Promise<Answer> {
    const socket = this.#idle.pop() ?? connect({ port: this.#route.port, host: '127.0.0.1', noDelay: true });
    this.numOpen++;
    return new Promise((resolve, reject) => {
      const reading = new Reading();
      const end = (error?: Error) => {
        socket.removeAllListeners();
        socket.on('error', () => {});
        socket.setTimeout(0);
        this.numOpen--;
        if (error === undefined) {
          this.#idle.push(socket);
          socket.once('close', () => this.#forget(socket));
          return resolve(reading.answer);
        }
        socket.destroy();
        reject(error);
      };
      socket.on('data', (bytes: Buffer) => {
        try {
          const before = reading.answer.numBytes;
          const isComplete = reading.add(bytes);
          onBytes?.(reading.answer.numBytes - before);
          if (isComplete) end();
        } catch (error) {
          end(error as Error);
        }
      });
      socket.on('error', end);
      socket.on('close', () => end(new Error('the connection was closed before the end of the response')));
      socket.setTimeout(TIMEOUT_MS, () => end(new Error(`no bytes for ${TIMEOUT_MS / 1000} s`)));
      socket.removeAllListeners('end');
      socket.write(this.#request);
    });
  }

  close(): void {
    for (const socket of this.#idle.splice(0)) socket.destroy();
  }

  #forget(socket: Socket): void {
    const at = this.#idle.indexOf(socket);
    if (at >= 0) this.#idle.splice(at, 1);
  }
}

const sleep = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

export interface Rated {
  firstByteMs: number[];
  /** Responses per second of the time from the first request until the last response. */
  reached: number;
  numRefused: number;
}

/**
 * Sends requests at a fixed rate, whether earlier ones have ended or not. More than `maxOpen` open requests are not
 * sent: a gateway that cannot hold the rate shows its time with a queue of that length.
 */
export async function atRate(client: Client, perSecond: number, seconds: number, maxOpen: number): Promise<Rated> {
  const result: Rated = { firstByteMs: [], reached: 0, numRefused: 0 };
  const sent: Promise<void>[] = [];
  const startMs = performance.now();
  const total = Math.round(perSecond * seconds);
  for (let i = 0; i < total; i++) {
    const dueMs = startMs + (i / perSecond) * 1000;
    while (performance.now() < dueMs) await sleep(Math.max(dueMs - performance.now(), 0.5));
    if (client.numOpen >= maxOpen) {
      result.numRefused++;
      continue;
    }
    sent.push(client.send().then(({ firstByteMs }) => void result.firstByteMs.push(firstByteMs)));
  }
  await Promise.all(sent);
  result.reached = (result.firstByteMs.length / (performance.now() - startMs)) * 1000;
  return result;
}

/** Keeps streams open for a time. Returns the bytes per second of their bodies within that time. */
export async function streamBytes(client: Client, numStreams: number, seconds: number): Promise<number> {
  const [startMs, endMs] = [performance.now(), performance.now() + seconds * 1000];
  let numBytes = 0;
  const count = (length: number) => {
    if (performance.now() < endMs) numBytes += length;
  };
  const keep = async () => {
    while (performance.now() < endMs) await client.send(count);
  };
  await Promise.all(Array.from({ length: numStreams }, keep));
  return (numBytes / (endMs - startMs)) * 1000;
}
