/** Gateways over real sockets, in front of fake replicas. */
import { createServer, type IncomingMessage, type RequestListener, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Gateway, type GatewayOptions, type GatewayRecord } from '../../../../server/platform/gateway/gateway';
import {
  type GatewayControl,
  type Target,
  type TargetReplica,
  Targets,
} from '../../../../server/platform/gateway/targets';
import { createTransport } from '../../../../server/http/create-transport';
import type { Transport } from '../../../../server/http/transport';

const closers: (() => Promise<void> | void)[] = [];

export async function closeAll(): Promise<void> {
  for (const close of closers.splice(0).reverse()) await close();
}

export interface Replica extends TargetReplica {
  server: Server;
  /** Number of connections accepted so far. */
  numConnections: () => number;
  stop: () => Promise<void>;
}

let numReplicas = 0;

export async function startReplica(
  listener: RequestListener,
  options: { isUnix?: boolean; isBuiltin?: boolean; port?: number } = {},
): Promise<Replica> {
  const server = createServer({ keepAliveTimeout: 10_000 }, listener);
  let numConnections = 0;
  server.on('connection', () => {
    numConnections++;
  });
  const folder = options.isUnix === true ? mkdtempSync(join(tmpdir(), 'capstan-gw-')) : undefined;
  const path = folder === undefined ? undefined : join(folder, 's');
  await new Promise<void>((resolve) => {
    if (path === undefined) server.listen(options.port ?? 0, '127.0.0.1', resolve);
    else server.listen(path, resolve);
  });
  const stop = async () => {
    server.closeAllConnections();
    await new Promise<void>((resolve) => {
      server.close(() => resolve());
    });
    if (folder !== undefined) rmSync(folder, { recursive: true, force: true });
  };
  closers.push(() => (server.listening ? stop() : undefined));
  return {
    id: `rep_${++numReplicas}`,
    secret: `secret-of-${numReplicas}`,
    isBuiltin: options.isBuiltin ?? false,
    address:
      path === undefined
        ? { type: 'tcp', host: '127.0.0.1', port: (server.address() as AddressInfo).port }
        : { type: 'unix', path },
    server,
    numConnections: () => numConnections,
    stop,
  };
}

/** Responds with the request it received. */
export const echo: RequestListener = (request: IncomingMessage, response: ServerResponse) => {
  const pieces: Buffer[] = [];
  request.on('data', (piece: Buffer) => pieces.push(piece));
  request.on('end', () => {
    const body = Buffer.concat(pieces).toString();
    const headers: [string, string][] = [];
    for (let i = 0; i < request.rawHeaders.length; i += 2)
      headers.push([request.rawHeaders[i].toLowerCase(), request.rawHeaders[i + 1]]);
    response.setHeader('Content-Type', 'application/json');
    response.end(JSON.stringify({ method: request.method, url: request.url, headers, body }));
  });
};

export interface Echo {
  method: string;
  url: string;
  headers: [string, string][];
  body: string;
}

export function target(slug: string, replicas: readonly TargetReplica[], fields: Partial<Target> = {}): Target {
  return {
    deploymentId: `dep_${slug}`,
    slug,
    name: slug,
    aliases: [],
    fallbacks: [],
    fallbackAfterMs: null,
    createdMs: 1_700_000_000_000,
    ownerId: 'own_1',
    accessControl: false,
    state: 'running',
    replicas,
    coldStartWaitMs: 60_000,
    cacheScope: 'deployment',
    ...fields,
  };
}

export interface Running {
  url: string;
  port: number;
  gateway: Gateway;
  targets: Targets;
  transport: Transport;
  records: GatewayRecord[];
  log: Record<'debug' | 'info' | 'warn' | 'error', jest.Mock>;
  /** Last reported number of open requests, by replica. */
  open: Map<string, number>;
  woken: string[];
}

export async function startGateway(
  options: Partial<GatewayOptions> & {
    transport?: 'uws' | 'node';
    onWake?: (deploymentId: string) => void;
    maxBodyBytes?: number;
  } = {},
): Promise<Running> {
  const targets = new Targets();
  const open = new Map<string, number>();
  const woken: string[] = [];
  const control: GatewayControl = {
    wake: (deploymentId) => {
      woken.push(deploymentId);
      options.onWake?.(deploymentId);
    },
    onOpenRequests: (_deploymentId, replicaId, numOpen) => open.set(replicaId, numOpen),
  };
  const log = { debug: jest.fn(), info: jest.fn(), warn: jest.fn(), error: jest.fn() };
  const records: GatewayRecord[] = [];
  const refuse = () => {
    throw new Error('no key should be checked while access control is off');
  };
  const access = { check: refuse, identify: refuse };
  const gateway = new Gateway({
    targets,
    control,
    access,
    log: log as never,
    onEnd: (record) => records.push(record),
    ...options,
  });
  const transport = await createTransport(options.transport ?? 'uws', {
    handler: gateway.handle,
    maxBodyBytes: options.maxBodyBytes ?? 50_000_000,
    bodyTimeoutMs: 20_000,
    streamsBodies: true,
  });
  const port = await transport.listen('127.0.0.1', 0);
  closers.push(async () => {
    gateway.close();
    await transport.close();
  });
  return { url: `http://127.0.0.1:${port}`, port, gateway, targets, transport, records, log, open, woken };
}

/** Breaks a response off after what was written. */
export function breakOff(response: ServerResponse): void {
  response.write('', () => response.destroy());
}

export async function until(isTrue: () => boolean, what = 'the condition'): Promise<void> {
  for (const startedMs = performance.now(); performance.now() - startedMs < 60_000;) {
    if (isTrue()) return;
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  throw new Error(`timed out waiting for ${what}`);
}

export const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

export function errorOf(text: string): { code: string; type: string } {
  const { error } = JSON.parse(text) as {
    error: { message: string; type: string; param: string | null; code: string };
  };
  expect(Object.keys(error)).toEqual(['message', 'type', 'param', 'code']);
  return { code: error.code, type: error.type };
}
