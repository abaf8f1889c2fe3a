/** Sends one fuzzed request over a separate socket, in its form of delivery, and checks the response. */
import { connect, type Socket } from 'node:net';
import { Random } from '../../server/bench/random';
import { type FuzzRequest, requestBytes } from './requests';
import { type FuzzResponse, readResponses } from './responses';
import { findFault } from './verdict';

const PROBE = 'GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n';

export interface Exchanged {
  /** The first fault. */
  fault?: string;
  /** Status of the response. 0 if none was awaited, or if the connection closed without one. */
  status: number;
}

export interface Target {
  port: number;
  transport: 'uws' | 'node';
  /** After this time without a response the server counts as hung. */
  timeoutMs: number;
}

export async function exchange(
  { port, transport, timeoutMs }: Target,
  request: FuzzRequest,
  seed: number,
): Promise<Exchanged> {
  const line = new Line(port);
  const random = new Random(seed ^ 0x5bd1e995);
  try {
    await line.opened;
    const bytes = requestBytes(request);
    switch (deliveryOver(transport, request)) {
      case 'whole':
        line.write(bytes);
        return await judge(line, [request], mayClose(request, transport), timeoutMs);
      case 'pieces':
        await writePieces(line, bytes, random);
        return await judge(line, [request], mayClose(request, transport), timeoutMs);
      case 'pipelined': {
        const copies = random.integer(2, 4);
        line.write(Buffer.concat(Array.from({ length: copies }, () => bytes)));
        return await judge(
          line,
          Array.from({ length: copies }, () => request),
          mayClose(request, transport),
          timeoutMs,
        );
      }
      case 'half-open':
        line.write(bytes.subarray(0, random.integer(0, bytes.length - 1)));
        await pause(random.integer(0, 200));
        return { status: 0 };
      case 'early-disconnect':
        line.write(bytes);
        await pause(random.integer(0, 60));
        return { status: 0 };
      case 'slow-reader':
        line.socket.pause();
        line.write(bytes);
        await pause(random.integer(0, 500));
        return { status: 0 };
    }
  } catch (error) {
    return { fault: (error as Error).message, status: 0 };
  } finally {
    line.socket.destroy();
  }
}

/**
 * NOTE: if a request that node:http cannot parse comes in pieces, the server cannot know that it is a HEAD request, and
 * sends a body.
 */
function deliveryOver(transport: Target['transport'], { method, delivery }: FuzzRequest): FuzzRequest['delivery'] {
  return transport === 'node' && method === 'HEAD' && delivery === 'pieces' ? 'whole' : delivery;
}

const PARSED_METHODS = ['GET', 'POST', 'PUT', 'DELETE', 'PATCH', 'OPTIONS', 'HEAD', 'TRACE', 'CONNECT'];
const MAX_UWS_HEAD = 4000;

/**
 * Whether closing the connection is correct: uWebSockets.js closes it for invalid requests, and for a request while
 * another is pending.
 */
function mayClose(request: FuzzRequest, transport: Target['transport']): boolean {
  if (!request.isWellFramed) return true;
  if (transport === 'node') return false;
  const headLength = requestBytes({ ...request, body: Buffer.alloc(0) }).length;
  return request.delivery === 'pipelined' || !PARSED_METHODS.includes(request.method) || headLength > MAX_UWS_HEAD;
}

/**
 * Checks that there is one correct response per request, and that the connection works afterwards. Fewer are correct if
 * a response closes the connection.
 */
async function judge(
  line: Line,
  requests: readonly FuzzRequest[],
  mayBeClosed: boolean,
  timeoutMs: number,
): Promise<Exchanged> {
  const [{ isWellFramed, method, headers }] = requests;
  const responses = await line.responses(requests.length, () => method === 'HEAD', timeoutMs);
  const last = responses.at(-1);
  if (last === undefined) {
    if (!line.isClosed) return { status: 0, fault: `no response within ${timeoutMs / 1000} s` };
    return { status: 0, fault: mayBeClosed ? undefined : 'closed without a response' };
  }
  const { status } = responses[0];
  for (const response of responses) {
    const fault = findFault(response, method);
    if (fault !== undefined) return { status, fault };
  }
  const closes = last.closes || headers.some(([name, value]) => /^connection$/i.test(name) && /close/i.test(value));
  if (responses.length < requests.length && !closes && !mayBeClosed)
    return { status, fault: `${responses.length} responses to ${requests.length} requests` };
  if (closes || line.isClosed || !isWellFramed) return { status };
  line.write(Buffer.from(PROBE));
  const probed = await line.responses(1, () => false, timeoutMs);
  return probed.length === 1 && probed[0].status === 200
    ? { status }
    : { status, fault: `the connection is out of step: ${probed[0]?.status ?? 'no response'} to the next request` };
}

async function writePieces(line: Line, bytes: Buffer, random: Random): Promise<void> {
  const numPieces = random.integer(2, 6);
  const cuts = Array.from({ length: numPieces - 1 }, () => random.integer(0, bytes.length)).sort((a, b) => a - b);
  let from = 0;
  for (const cut of [...cuts, bytes.length]) {
    line.write(bytes.subarray(from, cut));
    from = cut;
    await pause(random.integer(0, 15));
  }
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** One connection and the bytes it has received. */
class Line {
  readonly socket: Socket;
  readonly opened: Promise<void>;
  isClosed = false;
  #chunks: Buffer[] = [];
  #onChange: () => void = () => {};

  constructor(port: number) {
    this.socket = connect({ port, host: '127.0.0.1', noDelay: true });
    this.opened = new Promise((resolve, reject) => {
      this.socket.once('connect', resolve);
      this.socket.once('error', (error) => reject(new Error(`cannot connect: ${error.message}`)));
    });
    this.socket.on('error', () => {});
    this.socket.on('data', (chunk) => {
      this.#chunks.push(chunk);
      this.#onChange();
    });
    this.socket.on('close', () => {
      this.isClosed = true;
      this.#onChange();
    });
  }

  write(bytes: Buffer): void {
    if (!this.socket.destroyed && bytes.length > 0) this.socket.write(bytes);
  }

  /** Takes `count` complete responses from the received bytes. Returns fewer after a close or timeout. */
  async responses(count: number, isHead: (index: number) => boolean, timeoutMs: number): Promise<FuzzResponse[]> {
    const deadline = Date.now() + timeoutMs;
    for (;;) {
      const all = Buffer.concat(this.#chunks);
      const { responses, rest } = readResponses(all, isHead, this.isClosed);
      if (responses.length >= count || this.isClosed || Date.now() >= deadline) {
        this.#chunks = [rest];
        if (responses.length > count) throw new Error(`${responses.length} responses to ${count} requests`);
        if (responses.at(-1)?.closes === true && rest.length > 0)
          throw new Error(
            `bytes after a response that closes the connection: ${JSON.stringify(rest.subarray(0, 60).toString('latin1'))}`,
          );
        return responses;
      }
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, Math.max(1, deadline - Date.now()));
        this.#onChange = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
  }
}
