/** The service on PostgreSQL, configured by DATABASE_URL. Skipped without it. */
import type { Client } from '../../server/platform/api/client';
import { BACKENDS } from '../server/access/support';
import { killAll } from '../fakes/server-process';
import {
  ADMIN,
  clientOf,
  discardAll,
  freePort,
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
});
