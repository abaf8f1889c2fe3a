/** What the service keeps for owners of keys, with the real addon: a batch and responses through kill -9. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import OpenAI from 'openai';
import type { Client } from '../../server/platform/api/client';
import type { MadeKey } from '../../server/platform/api/objects';
import { freePort } from '../fakes/free-port';
import { killAll } from '../fakes/server-process';
import { ids, type Line, readResults, startBatch, until as untilBatch } from '../server/inference/batches/support';
import { ADMIN, clientOf, discardAll, makeDataDir, type RunningService, startService, until } from './service-process';

const NUM_LINES = 300;
const { dataDir, passwordFile, remove } = makeDataDir();
let service: RunningService;
let client: Client;
let ports: string[];

beforeAll(async () => {
  ports = ['--port', String(await freePort()), '--serving-port', String(await freePort()), '--allow-unisolated'];
  service = await startService(dataDir, [
    ...ports,
    '--bootstrap-email',
    ADMIN.email,
    '--bootstrap-password-file',
    passwordFile,
  ]);
  client = await clientOf(service, dataDir);
});
afterAll(async () => {
  await discardAll(client).catch(() => {});
  killAll();
  remove();
});

const line = (i: number): Line => ({
  custom_id: `line ${i}`,
  method: 'POST',
  url: '/v1/chat/completions',
  body: { model: 'chat', messages: [{ role: 'user', content: `Count to ${i}` }], max_tokens: 12 },
});

test('each custom_id has one result after kill -9, from a deployment that was at zero, and responses stay', async () => {
  const { id } = await client.deployments.create({
    name: 'chat',
    compute: { cpu_millis: 1000, memory_mb: 1024 },
    idle_timeout_s: 2,
  });
  await until(client, id, 'scaled_to_zero');
  const { secret } = await client.request<MadeKey>('POST', '/keys', { body: { name: 'key' } });
  const openai = () => new OpenAI({ baseURL: `${service.servingUrl}/v1`, apiKey: secret, maxRetries: 0 });
  const response = await openai().responses.create({ model: 'chat', input: 'Hi', max_output_tokens: 4 });
  expect(response).toMatchObject({ store: true });

  await until(client, id, 'scaled_to_zero');
  const started = await startBatch(
    openai(),
    Array.from({ length: NUM_LINES }, (_, i) => line(i)),
  );
  for (const share of [0.2, 0.6]) {
    let completed = 0;
    while (completed < share * NUM_LINES)
      completed = (await openai().batches.retrieve(started.id)).request_counts!.completed;
    service.process.kill('SIGKILL');
    await service.exited;
    service = await startService(dataDir, ports);
  }
  const batch = await untilBatch(openai(), started, 'completed');
  expect(batch.request_counts).toEqual({ total: NUM_LINES, completed: NUM_LINES, failed: 0 });
  const results = await readResults(openai(), batch.output_file_id);
  expect(ids(results)).toEqual(Array.from({ length: NUM_LINES }, (_, i) => `line ${i}`).sort());
  expect(service.output().stderr).toContain('continuing with batches');

  const next = await openai().responses.create({
    model: 'chat',
    input: 'And?',
    previous_response_id: response.id,
    max_output_tokens: 4,
  });
  expect(next.previous_response_id).toBe(response.id);
  const folder = join(dataDir, 'responses');
  const [owner] = readdirSync(folder);
  expect(readdirSync(join(folder, owner))).toHaveLength(2);
  expect(readFileSync(join(folder, owner, `${response.id}.json`), 'utf8')).toContain('"Hi"');
}, 400_000);
