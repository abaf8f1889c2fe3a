/** Failures of deployments and of the service: they are explained and survived. */
import type { Client } from '../../server/platform/api/client';
import type { MadeKey } from '../../server/platform/api/objects';
import { freePort } from '../fakes/free-port';
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

const { dataDir, passwordFile, remove } = makeDataDir();
const compute = { cpu_millis: 250, memory_mb: 512 };
let service: RunningService;
let client: Client;
let isL2: boolean;
let ports: string[];

beforeAll(async () => {
  ports = ['--port', String(await freePort()), '--serving-port', String(await freePort())];
  service = await startService(dataDir, [
    ...ports,
    '--bootstrap-email',
    ADMIN.email,
    '--bootstrap-password-file',
    passwordFile,
    '--allow-unisolated',
  ]);
  client = await clientOf(service, dataDir);
  isL2 = (await client.compute()).isolation.level === 'L2';
});
afterAll(async () => {
  await discardAll(client).catch(() => {});
  killAll();
  remove();
});

const SERVE = (port: string, host = '0.0.0.0') =>
  `exec ${process.execPath} -e 'require("http").createServer((q, s) => s.end("ok")).listen(${port}, "${host}")'`;

describe('the reason is reported', () => {
  let wrongPort: string;
  let loopback: string;
  let waitingDeploy: ReturnType<typeof capstan>;

  // These three end at their start deadline, so they wait for it together, beside the other tests.
  beforeAll(async () => {
    const create = (name: string, startCommand: string) =>
      client.deployments.create({ name, compute, start_command: startCommand, start_deadline_s: 10 });
    wrongPort = (await create('wrong-port', SERVE('8080'))).id;
    loopback = (await create('loopback', SERVE('process.env.PLATFORM_SERVING_PORT || 80', '127.0.0.1'))).id;
    const limits = ['--start-deadline', '10s', '--memory', '512M', '--cpus', '0.25'];
    waitingDeploy = capstan(['deploy', 'explained', '--start', SERVE('8080'), ...limits, '--wait'], {
      CAPSTAN_URL: service.url,
      CAPSTAN_TOKEN: await token(),
    });
  });

  test('for a crash loop, with the end of the log', async () => {
    const { id } = await client.deployments.create({
      name: 'crash',
      compute,
      start_command: 'echo "cannot find the weights" >&2; exit 3',
    });
    await eventually(
      async () =>
        (await client.versions.get(id, 1)).replicas.some(({ restarts }) => restarts >= 1) ||
        (await client.versions.get(id, 1)).state === 'backoff',
    );
    const { stdout } = await capstan(['logs', 'crash', '-n', 'all'], {
      CAPSTAN_URL: service.url,
      CAPSTAN_TOKEN: await token(),
    });
    expect(stdout).toContain('cannot find the weights');
    await client.deployments.command(id, 'stop');
  });

  test('for missing data', async () => {
    const { mkdirSync, rmSync } = await import('node:fs');
    const folder = `${dataDir}/data/weights`;
    mkdirSync(folder);
    const source = await client.request<{ id: string }>('POST', '/data-sources', {
      body: { name: 'weights', type: 'model', path: folder },
    });
    rmSync(folder, { recursive: true });
    const { id } = await client.deployments.create({
      name: 'no-data',
      compute,
      bindings: [{ mount: 'input0', source_id: source.id }],
    });
    expect((await until(client, id, 'failed')).version.reason).toMatchObject({ code: 'data_binding_missing' });
  });

  test("for a script that listens on the container's port", async () => {
    const { version } = await until(client, wrongPort, 'failed');
    expect(version).toMatchObject({
      state: 'error',
      reason: { code: 'wrong_port', message: expect.stringContaining('8080') },
    });
  });

  test('for a script that listens on loopback only', async () => {
    if (!isL2) return;
    expect((await until(client, loopback, 'failed')).version.reason).toMatchObject({ code: 'bound_to_loopback' });
  });

  test('by capstan deploy --wait, which then exits 1', async () => {
    const { code, stderr, stdout } = await waitingDeploy;
    expect([code, stdout]).toEqual([1, '']);
    expect(stderr).toMatch(/ s {2}pending[^]*error: explained: wrong_port: /);
  });
});

test('two deployments that listen on port 80 of all addresses run side by side', async () => {
  if (!isL2) return console.log('skipped: this machine has no level L2');
  const deployments = await Promise.all(
    ['one', 'two'].map((name) =>
      client.deployments.create({ name, compute, health_path: '/', start_command: SERVE('80') }),
    ),
  );
  for (const { id } of deployments) {
    const { deployment } = await until(client, id, 'running');
    expect(await (await fetch(`${deployment.url}/`)).text()).toBe('ok');
  }
});

describe('a crash of the service under load', () => {
  test('deployments keep serving, are adopted, and nothing acknowledged is lost', async () => {
    const { id } = await client.deployments.create({
      name: 'survivor',
      compute: { cpu_millis: 1000, memory_mb: 2048 },
    });
    const { deployment, version } = await until(client, id, 'running');
    const pids = version.replicas.map((replica) => [replica.id, replica.started_at]);
    const acknowledged: string[] = [];
    let isDown = false;
    const load = Promise.all(
      Array.from({ length: 4 }, async (_unused, index) => {
        for (let i = 0; !isDown; i++) {
          const name = `load-${index}-${i}`;
          await client.request<{ id: string }>('POST', '/keys', { body: { name } }).then(
            () => acknowledged.push(name),
            () => {
              isDown = true;
            },
          );
          await fetch(`${deployment.url}/v1/models`).catch(() => undefined);
        }
      }),
    );
    await eventually(() => Promise.resolve(acknowledged.length >= 10));
    service.process.kill('SIGKILL');
    await load;
    await service.exited;

    service = await startService(dataDir, [...ports, '--allow-unisolated']);
    const after = await until(client, id, 'running');
    expect(after.version.replicas.map((replica) => [replica.id, replica.started_at])).toEqual(pids);
    expect(after.version.replicas[0].restarts).toBe(0);
    expect((await fetch(`${deployment.url}/v1/models`)).status).toBe(200);
    const kept = new Set((await client.all<{ name: string }>('/keys', { scope: 'user' })).map(({ name }) => name));
    expect(acknowledged.filter((name) => !kept.has(name))).toEqual([]);
    // Propagation does not wait for the killed process.
    expect((await client.request<MadeKey>('POST', '/keys', { body: { name: 'after' } })).propagation).toMatchObject({
      applied: 1,
      total: 1,
    });
  });

  test('a graceful shutdown keeps deployments; --stop-deployments stops them until the next start', async () => {
    const { id, url } = (await client.deployments.list({ q: 'survivor' }))[0];
    const args = [...ports, '--allow-unisolated'];
    const {
      replicas: [before],
    } = await client.versions.get(id, 1);
    service.process.kill('SIGTERM');
    expect(await service.exited).toEqual([0, null]);
    service = await startService(dataDir, [...args, '--stop-deployments']);
    expect((await until(client, id, 'running')).version.replicas[0]).toMatchObject({
      id: before.id,
      started_at: before.started_at,
    });
    service.process.kill('SIGTERM');
    expect(await service.exited).toEqual([0, null]);
    service = await startService(dataDir, args);
    await eventually(async () => {
      const {
        state,
        replicas: [replica],
      } = await client.versions.get(id, 1);
      return state === 'running' && replica !== undefined && replica.started_at !== before.started_at;
    });
    expect((await fetch(`${url}/v1/models`)).status).toBe(200);
  });
});

async function token(): Promise<string> {
  return (
    await capstan(['tokens', 'create', '--data-dir', dataDir, '--email', ADMIN.email, '--name', 'cli'])
  ).stdout.trim();
}
