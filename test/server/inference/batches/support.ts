/** A server with files and batches, and official clients of it. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import OpenAI, { toFile } from 'openai';
import type { Engine } from '../../../../ts';
import { createTransport } from '../../../../server/http/create-transport';
import { App } from '../../../../server/inference/app';
import { openBatches } from '../../../../server/inference/batches/open-batches';
import { defaultServeOptions, type ServeOptions } from '../../../../server/inference/serve-options';
import { MemoryResponseStore } from '../../../../server/storage/responses/store';
import { temporaryFolder } from '../../../fakes/temporary-folder';

export type Outcome = { ok: true; keyId: string; ownerId: string; done: () => void } | { ok: false; code: string };

export interface Setup {
  engine: Engine;
  dataDir?: string | undefined;
  options?: Partial<ServeOptions>;
  transport?: 'uws' | 'node';
  /** Keys are the names of their owners. */
  hasAccess?: boolean;
  /** Origins of web pages that may have what is stored without keys. */
  allowedOrigins?: readonly string[];
  /** What the key of a line gets. */
  resume?: (keyId: string) => Outcome;
}

export async function openServer(setup: Setup) {
  const { engine, dataDir = temporaryFolder('batches'), options = {}, transport: name = 'node', hasAccess } = setup;
  const log = { debug: jest.fn(), info: jest.fn(), warn: jest.fn(), error: jest.fn() };
  const used: [string, number][] = [];
  const grant = (key: string): Outcome & { ok: true } => ({
    ok: true,
    keyId: key,
    ownerId: key,
    done: (tokens = 0) => void used.push([key, tokens]),
  });
  const access = {
    check: ({ headers }: { headers: readonly (readonly [string, string])[] }) =>
      grant(headers.find(([header]) => header === 'authorization')![1].slice('Bearer '.length)),
    resume: setup.resume ?? grant,
  };
  const part = hasAccess === true ? (access as never) : undefined;
  const serveOptions = { ...defaultServeOptions({}), dataDir, ...options };
  const batches = await openBatches(serveOptions, part, log as never);
  const app = new App({
    servedNames: ['tiny'],
    healthStallTimeoutMs: 1000,
    sse: { pingIntervalMs: 1000, slowClientTimeoutMs: 60_000 },
    log: log as never,
    routes: batches.routes,
    responses: new MemoryResponseStore({ maxBytes: 10_000_000, ttlMs: 60_000 }),
    ...(setup.allowedOrigins === undefined ? {} : { allowedOrigins: setup.allowedOrigins }),
    ...(part === undefined ? {} : { access: part }),
  });
  app.serve(engine);
  batches.serve(app, () => [{ engine }]);
  const transport = await createTransport(name, {
    handler: (request, reply) => app.handle(request, reply),
    maxBodyBytes: 32 << 20,
    bodyTimeoutMs: 60_000,
  });
  const port = await transport.listen('127.0.0.1', 0);
  const url = `http://127.0.0.1:${port}`;
  return {
    dataDir,
    log,
    used,
    url,
    client: (apiKey = 'alice') => new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 }),
    close: async () => {
      await batches.close();
      await transport.close();
    },
  };
}

export interface Line {
  custom_id: string;
  method: string;
  url: string;
  body: Record<string, unknown>;
}

export function chatLine(id: string, content = 'Hi', body: Record<string, unknown> = {}): Line {
  return {
    custom_id: id,
    method: 'POST',
    url: '/v1/chat/completions',
    body: { model: 'tiny', messages: [{ role: 'user', content }], ...body },
  };
}

export function upload(client: OpenAI, lines: readonly (Line | string)[], name = 'requests.jsonl') {
  const text = lines.map((line) => (typeof line === 'string' ? line : JSON.stringify(line))).join('\n');
  return toFile(Buffer.from(text), name).then((file) => client.files.create({ file, purpose: 'batch' }));
}

export async function startBatch(
  client: OpenAI,
  lines: readonly (Line | string)[],
  options: Partial<OpenAI.BatchCreateParams> = {},
): Promise<OpenAI.Batch> {
  const { id } = await upload(client, lines);
  return client.batches.create({
    input_file_id: id,
    endpoint: '/v1/chat/completions',
    completion_window: '24h',
    ...options,
  });
}

/** Asks until the batch has a status. */
export async function until(client: OpenAI, { id }: OpenAI.Batch, ...statuses: string[]): Promise<OpenAI.Batch> {
  for (;;) {
    const batch = await client.batches.retrieve(id);
    if (statuses.includes(batch.status)) return batch;
    if (['failed', 'completed', 'expired', 'cancelled'].includes(batch.status))
      throw new Error(`expected ${statuses.join(' or ')}: ${JSON.stringify(batch)}`);
  }
}

export async function readResults(client: OpenAI, fileId: string | null | undefined): Promise<any[]> {
  if (fileId === null || fileId === undefined) return [];
  const text = await (await client.files.content(fileId)).text();
  return text
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line));
}

export function ids(results: readonly { custom_id: string }[]): string[] {
  return results.map((result) => result.custom_id).sort();
}

/** An answer that lasts until the returned function is called. */
export function gate(): { text: string; open: () => void } {
  const file = join(temporaryFolder('gate'), 'open');
  return { text: `until ${file} exists`, open: () => writeFileSync(file, '') };
}
