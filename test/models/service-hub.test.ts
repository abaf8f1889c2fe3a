/** Models of a local hub in the deployment service, with the real addon: a service that is killed, and a full disk. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Client } from '../../server/platform/api/client';
import type { DataSource } from '../../server/platform/api/objects';
import { freePort } from '../fakes/free-port';
import { HubServer, TOKEN } from '../fakes/hub-server';
import { killAll } from '../fakes/server-process';
import {
  ADMIN,
  capstan,
  clientOf,
  discardAll,
  eventually,
  makeDataDir,
  type RunningService,
  startService,
  until,
} from './service-process';
import { mountSmallDisk } from './small-disk';

const demo = join(__dirname, '../../models/demo');
const FILES = Object.fromEntries(
  readdirSync(demo)
    .filter((name) => /\.(json|jinja|safetensors)$/.test(name))
    .map((name) => [name, readFileSync(join(demo, name))]),
);
const HALF = FILES['model.safetensors'].length >> 1;
const compute = { cpu_millis: 1_000, memory_mb: 1_024 };

const { dataDir, passwordFile, remove } = makeDataDir();
const { dataDir: smallRoot, remove: removeSmall } = makeDataDir();
const disk = mountSmallDisk(smallRoot, 24);
let hub: HubServer;
let service: RunningService;
let client: Client;
let args: string[];

beforeAll(async () => {
  hub = new HubServer();
  await hub.start();
  hub.add('acme/demo', FILES);
  hub.add('acme/gated', FILES, { isGated: true });
  process.env.HF_ENDPOINT = hub.url;
  args = ['--port', String(await freePort()), '--serving-port', String(await freePort())];
  const first = ['--bootstrap-email', ADMIN.email, '--bootstrap-password-file', passwordFile];
  service = await startService(dataDir, [...args, ...first]);
  client = await clientOf(service, dataDir);
});
afterAll(async () => {
  await discardAll(client).catch(() => {});
  killAll();
  await hub.close();
  delete process.env.HF_ENDPOINT;
  disk?.remove();
  remove();
  removeSmall();
  expect(hub.violations).toEqual([]);
});

const sourceOf = async (model: string): Promise<DataSource | undefined> =>
  (await client.dataSources.list()).find(({ pull }) => pull?.model === model);
/** A download that sends half of the weights, and the rest after `release`. */
const holdWeights = () => {
  let release = () => {};
  hub.fail('model.safetensors', { hold: new Promise((done) => (release = done)) });
  return () => release();
};
const halfIsThere = (model: string) => eventually(async () => ((await sourceOf(model))?.pull?.done_bytes ?? 0) >= HALF);

test('a deployment of a name on the hub survives kill -9 in the middle of the download, and serves', async () => {
  const release = holdWeights();
  const { id } = await client.deployments.create({ name: 'chat', compute, runtime: { model: 'acme/demo' } });
  await halfIsThere('acme/demo');
  const version = await client.versions.get(id, 1);
  expect([version.state, version.reason?.code]).toEqual(['queued', 'downloading_model']);
  service.process.kill('SIGKILL');
  await service.exited;
  release();
  service = await startService(dataDir, args);
  const { deployment } = await until(client, id, 'running');
  expect(hub.requests.some(({ range }) => Number(/\d+/.exec(range ?? '')?.[0] ?? 0) >= HALF)).toBe(true);
  const response = await fetch(`${deployment.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ model: 'acme/demo', messages: [{ role: 'user', content: 'Hello' }], max_tokens: 4 }),
  });
  expect([response.status, await response.json()]).toEqual([200, expect.objectContaining({ model: 'acme/demo' })]);
});

test('the token is in no process list, no log and no file in clear text', async () => {
  const release = holdWeights();
  const env = { CAPSTAN_URL: service.url, CAPSTAN_TOKEN: await tokenOf(), MY_TOKEN: TOKEN };
  const { code, stdout, stderr } = await capstan(
    ['data', 'pull', 'gated', 'acme/gated', '--token-secret', 'MY_TOKEN'],
    env,
  );
  expect([code, stdout]).toEqual([0, expect.stringMatching(/^gated \(src_/)]);
  await halfIsThere('acme/gated');
  for (const pid of readdirSync('/proc').filter((name) => /^\d+$/.test(name)))
    expect(read(`/proc/${pid}/cmdline`)).not.toContain(TOKEN);
  release();
  await eventually(async () => (await sourceOf('acme/gated'))?.pull?.state === 'done');
  const files = readdirSync(dataDir, { recursive: true, withFileTypes: true });
  for (const file of files.filter((entry) => entry.isFile()))
    expect([file.name, read(join(file.parentPath, file.name)).includes(TOKEN)]).toEqual([file.name, false]);
  expect(service.output().stdout + service.output().stderr + stdout + stderr).not.toContain(TOKEN);
});

(disk === undefined ? test.skip : test)('a disk that fills up is reported, and the next pull continues', async () => {
  const other = makeDataDir();
  const first = ['--bootstrap-email', ADMIN.email, '--bootstrap-password-file', other.passwordFile];
  const small = await startService(other.dataDir, ['--data-root', smallRoot, ...first]);
  const admin = await clientOf(small, other.dataDir);
  const release = holdWeights();
  const { id } = await admin.request<DataSource>('POST', '/data-pulls', { body: { name: 'full', model: 'acme/demo' } });
  const pull = async () => (await admin.request<DataSource>('GET', `/data-sources/${id}`)).pull!;
  await eventually(async () => (await pull()).done_bytes >= HALF);
  disk!.fill();
  release();
  await eventually(async () => (await pull()).state === 'failed');
  expect((await pull()).error).toMatchObject({
    code: 'io_error',
    message: expect.stringMatching(/the disk is full\. It needs \d+ more bytes\. Free space/) as string,
  });
  disk!.empty();
  const from = hub.requests.length;
  await admin.request('POST', `/data-sources/${id}/pull`);
  await eventually(async () => (await pull()).state === 'done');
  expect(hub.requests.slice(from).some(({ range }) => range !== undefined)).toBe(true);
  small.process.kill('SIGTERM');
  await small.exited;
  other.remove();
});

function read(path: string): string {
  try {
    return readFileSync(path, 'latin1');
  } catch {
    // The process or the file is gone.
    return '';
  }
}

async function tokenOf(): Promise<string> {
  const line = ['tokens', 'create', '--data-dir', dataDir, '--email', ADMIN.email, '--name', 'pull'];
  return (await capstan(line)).stdout.trim();
}
