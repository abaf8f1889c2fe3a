/** One HTTP request on a new connection, and whether its response arrived completely. */
import { request } from 'node:http';

/** No response, and no end of it, may take longer. */
const LIMIT_MS = 150_000;

export interface Sent {
  method?: string;
  headers?: Record<string, string>;
  body?: unknown;
  /** Ends the connection. */
  signal?: AbortSignal;
  /** The local address of the connection: the service limits wrong secrets by address. */
  localAddress?: string;
}

export interface Received {
  /** 0: there was no response. */
  status: number;
  headers: Record<string, string | string[] | undefined>;
  text: string;
  /** The body as JSON, or undefined. */
  json: any;
  isComplete: boolean;
  error?: string;
}

/** Never rejects: a failure of the connection is a result. */
export function send(url: string, { method = 'GET', headers = {}, body, signal, localAddress }: Sent = {}) {
  return new Promise<Received>((resolve) => {
    const result: Received = { status: 0, headers: {}, text: '', json: undefined, isComplete: false };
    const finish = (error?: string): void => {
      clearTimeout(timer);
      if (error !== undefined) result.error ??= error;
      result.json = parse(result.text);
      resolve(result);
    };
    const bytes = body === undefined ? undefined : JSON.stringify(body);
    const sent = request(url, {
      method,
      agent: false,
      headers: { ...(bytes === undefined ? {} : { 'Content-Type': 'application/json' }), ...headers },
      ...(signal === undefined ? {} : { signal }),
      ...(localAddress === undefined ? {} : { localAddress }),
    });
    const timer = setTimeout(() => {
      result.error = `no end of the response within ${LIMIT_MS / 1000} s`;
      sent.destroy();
    }, LIMIT_MS);
    sent.on('response', (response) => {
      result.status = response.statusCode!;
      result.headers = response.headers;
      response.setEncoding('utf8');
      response.on('data', (text: string) => (result.text += text));
      response.on('error', (error) => finish(error.message));
      response.on('close', () => {
        result.isComplete = response.complete;
        finish(response.complete ? undefined : 'the connection broke');
      });
    });
    sent.on('error', (error) => finish(error.message));
    sent.end(bytes);
  });
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

export const bearer = (secret: string): Record<string, string> => ({ Authorization: `Bearer ${secret}` });

export const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));
