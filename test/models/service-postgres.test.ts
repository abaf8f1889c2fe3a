/** The service on PostgreSQL, configured by DATABASE_URL. Skipped without it. */
import { copyFileSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import type { Client } from '../../server/platform/api/client';
import { BACKENDS } from '../server/access/support';
import { freePort } from '../fakes/free-port';
import { killAll, start } from '../fakes/server-process';
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

const postgres = BACKENDS.find(({ name }) => name === 'PostgreSQL')!;

(postgres.isHere ? describe : describe.skip)('capstan up on PostgreSQL', () => {
  let folder: ReturnType<typeof makeDataDir>;
  let service: RunningService;
  let client: Client;

  beforeAll(async () => {
    folder = makeDataDir();
    const location = await postgres.make();
    process.env.DATABASE_URL = location.kind === 'postgres' ? location.url : '';
  });
  afterAll(async () => {
    await discardAll(client).catch(() => {});
    killAll();
    await service.exited;
    delete process.env.DATABASE_URL;
    await postgres.dispose();
    folder.remove();
  });

  test('deploys, accepts keys, and keeps everything after kill -9', async () => {
    const ports = ['--port', String(await freePort()), '--serving-port', String(await freePort())];
    service = await startService(folder.dataDir, [
      ...ports,
      '--bootstrap-email',
      ADMIN.email,
      '--bootstrap-password-file',
      folder.passwordFile,
    ]);
    expect(service.output().stdout).toContain('database PostgreSQL at ');
    client = await clientOf(service, folder.dataDir);
    const { id } = await client.deployments.create({
      name: 'chat',
      compute: { cpu_millis: 500, memory_mb: 2_048 },
      access_control: true,
    });
    const {
      deployment: { url },
      version,
    } = await until(client, id, 'running');
    const { secret } = await client.request<{ secret: string }>('POST', '/keys', { body: { name: 'k' } });
    const ask = async (headers: Record<string, string> = {}) => (await fetch(`${url}/v1/models`, { headers })).status;
    const withKey = { Authorization: `Bearer ${secret}` };
    expect([await ask(), await ask(withKey)]).toEqual([401, 200]);

    service.process.kill('SIGKILL');
    await service.exited;
    service = await startService(folder.dataDir, ports);
    const after = await until(client, id, 'running');
    expect(after.version.replicas.map((replica) => [replica.id, replica.started_at])).toEqual(
      version.replicas.map((replica) => [replica.id, replica.started_at]),
    );
    expect([await ask(), await ask(withKey)]).toEqual([401, 200]);
  });

  test('has a standby that serves only its health, locks out no command, and takes over', async () => {
    const other = makeDataDir();
    mkdirSync(other.dataDir, { mode: 0o700 });
    copyFileSync(join(folder.dataDir, 'secret.key'), join(other.dataDir, 'secret.key'));
    const port = await freePort();
    const args = ['--port', String(port), '--serving-port', String(await freePort())];
    const standby = start(['up', '--data-dir', other.dataDir, ...args], {});
    const ask = async (path: string) => {
      const { status, text } = await fetch(`http://127.0.0.1:${port}${path}`).then(
        async (response) => ({ status: response.status, text: await response.text() }),
        () => ({ status: 0, text: '' }),
      );
      return [status, text];
    };
    const isStandby = async () => (await ask('/readyz'))[1] === '{"status":"standby"}';
    try {
      await eventually(isStandby);
      expect(await ask('/readyz')).toEqual([503, '{"status":"standby"}']);
      expect((await ask('/healthz'))[0]).toBe(200);
      for (const path of ['/', '/api/v1/me']) expect((await ask(path))[0]).toBe(503);
      const { code } = await capstan(['keys', 'create', '--name', 'late', '--keys-db', process.env.DATABASE_URL ?? '']);
      expect(code).toBe(0);
      expect(await isStandby()).toBe(true);

      const { data } = await client.request<{ data: { id: string }[] }>('GET', '/deployments');
      // The first service stops for good: its deployments stop with it, and it releases the lease.
      await client.request('POST', `/deployments/${data[0].id}/stop`, { body: {} });
      service.process.kill('SIGTERM');
      await service.exited;
      // It restarts before its lease has run out, so the standby goes on waiting.
      service = await startService(folder.dataDir, ['--stop-deployments']);
      expect(await isStandby()).toBe(true);
      service.process.kill('SIGTERM');
      await service.exited;
      await standby.until('\nIsolation: ');
      expect((await ask('/readyz'))[0]).toBe(200);
      service = { ...standby, url: `http://127.0.0.1:${port}`, servingUrl: '' };
      client = await clientOf(service, other.dataDir);
      await client.request('POST', `/deployments/${data[0].id}/start`, { body: {} });
      await until(client, data[0].id, 'running');
      await discardAll(client);
    } finally {
      standby.process.kill('SIGTERM');
      await standby.exited;
      other.remove();
    }
    // Starts three services one after another, which takes more than a minute beside busy neighbors.
  }, 180_000);
});
