/** A server that answers as a test says, piece by piece. */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

export interface Seen {
  path: string;
  headers: IncomingMessage['headers'];
  body: any;
}

export interface ScriptedServer {
  url: string;
  seen: Seen[];
  mostOpen: () => number;
  close: () => Promise<void>;
}

export type Script = (request: Seen, response: ServerResponse, index: number) => void | Promise<void>;

/** Answers /v1/models itself, without counting it. */
export async function startScripted(
  script: Script,
  models: object = { data: [{ id: 'scripted', meta: { n_vocab: 500 } }] },
): Promise<ScriptedServer> {
  const seen: Seen[] = [];
  let numOpen = 0;
  let mostOpen = 0;
  const server: Server = createServer((message, response) => {
    void (async () => {
      if (message.url === '/v1/models')
        return void response.setHeader('Content-Type', 'application/json').end(JSON.stringify(models));
      mostOpen = Math.max(mostOpen, ++numOpen);
      response.on('close', () => {
        numOpen--;
      });
      let text = '';
      for await (const piece of message) text += piece;
      seen.push({ path: message.url!, headers: message.headers, body: JSON.parse(text) });
      await script(seen.at(-1)!, response, seen.length - 1);
    })().catch(() => response.destroy());
  });
  await new Promise<void>((resolve) => {
    server.listen(0, '127.0.0.1', resolve);
  });
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    seen,
    mostOpen: () => mostOpen,
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

/** A whole good stream of completions. */
export function answer(response: ServerResponse, ...texts: string[]): void {
  response.writeHead(200, { 'Content-Type': 'text/event-stream' });
  response.end(texts.map(text).join('') + usage(7, texts.length) + event('[DONE]'));
}
