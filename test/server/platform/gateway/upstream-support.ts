/** Gateways in front of upstreams: servers elsewhere, many of them hostile. */
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http';
import type { Target, TargetReplica, UpstreamSettings } from '../../../../server/platform/gateway/targets';
import { type Running, startGateway, startReplica, target } from './support';

export const SECRET = 'sk-upstream-0123456789';
export const usage = { prompt_tokens: 7, completion_tokens: 3, total_tokens: 10 };

export interface Fields extends Partial<UpstreamSettings> {
  secret?: string;
}

export function upstream(url: string, { secret = SECRET, ...fields }: Fields = {}): TargetReplica {
  const settings = { url, model: null, interfaces: ['chat'] as const, ...fields };
  return { id: `upstream ${url}`, address: { type: 'url', url }, secret, isBuiltin: false, upstream: settings };
}

export interface Upstreams extends Running {
  base: string;
}

/** Starts a gateway with the deployment `up`, whose upstream responds as `listener` does. */
export async function startUpstream(
  listener: RequestListener,
  {
    path = '/v1',
    options = {},
    target: targetFields = {},
    ...fields
  }: Fields & { path?: string; options?: Parameters<typeof startGateway>[0]; target?: Partial<Target> } = {},
): Promise<Upstreams> {
  const running = await startGateway({ allowsPrivateUpstreams: true, ...options });
  const base = await listen(listener, path);
  running.targets.set(target('up', [upstream(base, fields)], targetFields));
  return { ...running, base };
}

/** Returns the base URL of a new server. */
export async function listen(listener: RequestListener, path = '/v1'): Promise<string> {
  const { address } = await startReplica(listener);
  return `http://localhost:${address.type === 'tcp' ? address.port : 0}${path}`;
}

export const post = (
  url: string,
  body: object,
  path = '/v1/chat/completions',
  init: RequestInit = {},
): Promise<Response> =>
  fetch(`${url}/d/up${path}`, {
    method: 'POST',
    body: JSON.stringify(body),
    ...init,
    headers: { 'Content-Type': 'application/json', ...init.headers },
  });

/** Responds after the body has arrived. */
export const withBody =
  (respond: (body: Record<string, unknown>, response: ServerResponse) => void): RequestListener =>
  (request, response) =>
    void bodyOf(request).then((body) => respond(body, response));

export async function bodyOf(request: IncomingMessage): Promise<Record<string, unknown>> {
  const pieces: Buffer[] = [];
  for await (const piece of request) pieces.push(piece as Buffer);
  return JSON.parse(Buffer.concat(pieces).toString()) as Record<string, unknown>;
}

export function sendJson(response: ServerResponse, value: object, status = 200): void {
  response.writeHead(status, { 'Content-Type': 'application/json' });
  response.end(JSON.stringify(value));
}

export function sendEvents(response: ServerResponse, ...events: (object | string)[]): void {
  if (!response.headersSent) response.writeHead(200, { 'Content-Type': 'text/event-stream' });
  for (const event of events) response.write(typeof event === 'string' ? event : `data: ${JSON.stringify(event)}\n\n`);
}

export const chunk = (delta: object, fields: object = {}) => ({
  id: 'chatcmpl-1',
  object: 'chat.completion.chunk',
  model: 'large-2026-01-01',
  choices: [{ index: 0, delta, finish_reason: null, ...fields }],
});
export const DONE = 'data: [DONE]\n\n';
