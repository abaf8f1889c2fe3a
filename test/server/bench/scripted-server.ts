/** A server whose responses a test scripts chunk by chunk. */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

/** A request that the server received. */
export interface ReceivedRequest {
  path: string;
  headers: IncomingMessage['headers'];
  body: any;
}

export interface ScriptedServer {
  url: string;
  received: ReceivedRequest[];
  peakConcurrency: () => number;
  close: () => Promise<void>;
}

export type Script = (request: ReceivedRequest, response: ServerResponse, index: number) => void | Promise<void>;

/** Starts the server. It serves /v1/models without the script and without recording it. */
export async function startScripted(
  script: Script,
  models: object = { data: [{ id: 'scripted', meta: { n_vocab: 500 } }] },
): Promise<ScriptedServer> {
  const received: ReceivedRequest[] = [];
  let numOpen = 0;
  let peakConcurrency = 0;
  const server: Server = createServer((message, response) => {
    void (async () => {
      if (message.url === '/v1/models')
        return void response.setHeader('Content-Type', 'application/json').end(JSON.stringify(models));
      peakConcurrency = Math.max(peakConcurrency, ++numOpen);
      response.on('close', () => {
        numOpen--;
      });
      let text = '';
      for await (const piece of message) text += piece;
      received.push({ path: message.url!, headers: message.headers, body: JSON.parse(text) });
      await script(received.at(-1)!, response, received.length - 1);
    })().catch(() => response.destroy());
  });
  await new Promise<void>((resolve) => {
    server.listen(0, '127.0.0.1', resolve);
  });
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    received,
    peakConcurrency: () => peakConcurrency,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

export function event(value: unknown): string {
  return `data: ${typeof value === 'string' ? value : JSON.stringify(value)}\n\n`;
}

export const text = (value: string) => event({ choices: [{ index: 0, text: value }] });
export const usage = (promptTokens: number, completionTokens: number, cachedTokens = 0) =>
  event({
    choices: [],
    usage: {
      prompt_tokens: promptTokens,
      completion_tokens: completionTokens,
      prompt_tokens_details: { cached_tokens: cachedTokens },
    },
  });

/** Sends a complete stream of completions. */
export function sendCompletion(response: ServerResponse, ...texts: string[]): void {
  response.writeHead(200, { 'Content-Type': 'text/event-stream' });
  response.end(texts.map(text).join('') + usage(7, texts.length) + event('[DONE]'));
}
