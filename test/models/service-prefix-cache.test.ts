/** Deployments keep their prefix cache on the disk over restarts, roll-outs and scaling to zero, apart from others. */
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import OpenAI from 'openai';
import type { Client } from '../../server/platform/api/client';
import type { Deployment, NewDeployment } from '../../server/platform/api/objects';
import { killAll } from '../fakes/server-process';
import {
  ADMIN,
  clientOf,
  discardAll,
  eventually,
  makeDataDir,
  type RunningService,
  startService,
  until,
} from './service-process';

const { dataDir, passwordFile, remove } = makeDataDir();
const caches = join(dataDir, 'prefix-caches');
const FACTS = Array.from({ length: 60 }, (_, i) => `Room ${i} is on floor ${i % 7}.`).join(' ');
const COMPUTE = { cpu_millis: 500, memory_mb: 1024 };
const RUNTIME = { prefix_cache_disk_mb: 64, max_model_len: 2048 };
let service: RunningService;
let client: Client;

async function open(): Promise<void> {
  service = await startService(dataDir, ['--bootstrap-email', ADMIN.email, '--bootstrap-password-file', passwordFile]);
  client = await clientOf(service, dataDir);
}

beforeAll(open);
afterAll(async () => {
  await discardAll(client).catch(() => {});
  killAll();
  remove();
});

async function deploy(name: string, more: Partial<NewDeployment> = {}): Promise<Deployment> {
  const { id } = await client.deployments.create({ name, compute: COMPUTE, runtime: RUNTIME, ...more });
  return (await until(client, id, 'running')).deployment;
}

/** Asks one question. Waits while the deployment wakes. */
async function ask({ url }: Deployment, question = 'What is Capstan?') {
  const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 5 });
  const { choices, usage } = await openai.chat.completions.create({
    model: 'demo',
    messages: [{ role: 'user', content: `${FACTS} ${question}` }],
    max_tokens: 12,
    temperature: 0,
    logprobs: true,
    top_logprobs: 3,
  });
  return { choice: choices[0], cached: usage!.prompt_tokens_details!.cached_tokens!, prompt: usage!.prompt_tokens };
}

const blocksOf = ({ id }: Deployment): number =>
  existsSync(join(caches, id))
    ? readdirSync(join(caches, id), { recursive: true }).filter((name) => String(name).endsWith('.0')).length
    : 0;

/** The whole blocks of a prompt, without that of its last token. */
const wholeBlocks = (prompt: number): number => Math.floor((prompt - 1) / 16);

async function replicasOf({ id }: Deployment): Promise<string[]> {
  const { active_version: number } = await client.deployments.get(id);
  return (await client.versions.get(id, number!)).replicas.map((replica) => replica.id).sort();
}

async function restart(deployment: Deployment): Promise<void> {
  const before = await replicasOf(deployment);
  await client.deployments.command(deployment.id, 'restart');
  await eventually(async () => {
    const { ready_replicas: ready, state } = await client.deployments.get(deployment.id);
    const now = await replicasOf(deployment);
    return state === 'running' && ready === before.length && now.every((id) => !before.includes(id));
  });
}

async function rollOut({ id }: Deployment, runtime: object): Promise<void> {
  const { number } = await client.versions.create(id, { runtime });
  await eventually(async () => {
    const { active_version: active, target_version: target, state } = await client.deployments.get(id);
    return active === number && target === null && state === 'running';
  });
}

test('blocks survive a restart, a roll-out, scaling to zero and the service itself, and change no token', async () => {
  const chat = await deploy('chat', { min_replicas: 0 });
  const cold = await ask(chat);
  expect(cold.cached).toBe(0);
  const warm = { ...cold, cached: wholeBlocks(cold.prompt) * 16 };
  await eventually(() => Promise.resolve(blocksOf(chat) >= wholeBlocks(cold.prompt)));

  await restart(chat);
  expect(await ask(chat)).toEqual(warm);

  // Another version of the same model.
  await rollOut(chat, { max_num_seqs: 3 });
  expect(await ask(chat)).toEqual(warm);

  await client.deployments.command(chat.id, 'scale-to-zero');
  await until(client, chat.id, 'scaled_to_zero');
  expect(await ask(chat)).toEqual(warm);

  service.process.kill('SIGTERM');
  await service.exited;
  await open();
  await restart(chat);
  expect(await ask(await client.deployments.get(chat.id))).toEqual(warm);

  // Another quantization has other bits. The blocks of before stay.
  const deployment = await client.deployments.get(chat.id);
  await rollOut(chat, { quantization: 'int8' });
  expect((await ask(deployment)).cached).toBe(0);
  await rollOut(chat, { quantization: null });
  expect(await ask(deployment)).toEqual(warm);
});

test('another deployment of the same model computes the prompt itself, and deletion removes its folder alone', async () => {
  const [chat] = await client.deployments.list({ q: 'chat' });
  const other = await deploy('other');
  const answer = await ask(other);
  expect(answer.cached).toBe(0);
  await eventually(() => Promise.resolve(blocksOf(other) >= wholeBlocks(answer.prompt)));
  await client.deployments.remove(other.id, 'other');
  await eventually(() => Promise.resolve(!existsSync(join(caches, other.id))));
  expect(blocksOf(chat)).toBeGreaterThan(wholeBlocks(answer.prompt));
});

test('two replicas share the folder', async () => {
  const pair = await deploy('pair', { min_replicas: 2, max_replicas: 2 });
  await eventually(async () => (await client.deployments.get(pair.id)).ready_replicas === 2);
  const cold = await ask(pair);
  await eventually(() => Promise.resolve(blocksOf(pair) >= wholeBlocks(cold.prompt)));
  await restart(pair);
  await eventually(async () => (await client.deployments.get(pair.id)).ready_replicas === 2);
  // Requests that are open together go to both.
  const questions = Array.from({ length: 6 }, (_, i) => ask(pair, `What is ${i}?`));
  for (const { cached } of await Promise.all(questions)) expect(cached).toBeGreaterThan(wholeBlocks(cold.prompt) * 8);
  expect(await ask(pair)).toMatchObject({ choice: cold.choice });
  await client.deployments.remove(pair.id, 'pair');
});

test('a version without the cache on the disk removes the folder', async () => {
  const [chat] = await client.deployments.list({ q: 'chat' });
  expect(blocksOf(chat)).toBeGreaterThan(0);
  await rollOut(chat, { prefix_cache_disk_mb: null });
  await eventually(() => Promise.resolve(!existsSync(join(caches, chat.id))));
  expect((await ask(chat)).prompt).toBeGreaterThan(0);
});
