/**
 * A full disk: serving continues, refused changes give the reason, nothing acknowledged is lost, and everything
 * recovers.
 */
import type { Client } from '../../server/platform/api/client';
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
import { mountSmallDisk } from './small-disk';

const { dataDir, passwordFile, remove } = makeDataDir();
const disk = mountSmallDisk(dataDir, 48);
const compute = { cpu_millis: 250, memory_mb: 256 };
/** Prints all the time. Exits on request. */
const script = `exec ${process.execPath} -e 'let n = 0; setInterval(() => console.log("line", n++), 50); require("http").createServer((q, s) => { if (q.url === "/end") process.exit(3); s.end("ok"); }).listen(process.env.PLATFORM_SERVING_PORT, process.env.PLATFORM_SERVING_HOST)'`;

if (disk === undefined) {
  afterAll(remove);
  describe.skip('a full disk: this user may not mount one', () => test('', () => {}));
} else {
  describe('a full disk', () => {
    let service: RunningService;
    let client: Client;
    const acknowledged: string[] = [];
    const urls = new Map<string, string>();
    const ids = new Map<string, string>();
    const statusOf = (name: string, path = '/'): Promise<number> =>
      fetch(`${urls.get(name)}${path}`).then(({ status }) => status);
    const reasonOf = async (name: string) => (await client.deployments.get(ids.get(name)!)).reason;

    beforeAll(async () => {
      service = await startService(dataDir, [
        '--bootstrap-email',
        ADMIN.email,
        '--bootstrap-password-file',
        passwordFile,
        '--allow-unisolated',
      ]);
      client = await clientOf(service, dataDir);
      for (const name of ['steady', 'ending', 'unwanted']) {
        const { id } = await client.deployments.create({ name, compute, health_path: '/', start_command: script });
        ids.set(name, id);
        urls.set(name, (await until(client, id, 'running')).deployment.url);
      }
      disk.fill();
    });
    afterAll(async () => {
      disk.empty();
      await discardAll(client).catch(() => {});
      killAll();
      disk.remove();
      remove();
    });

    test('deployments keep serving, and the service responds', async () => {
      expect([
        await statusOf('steady'),
        (await fetch(`${service.url}/readyz`)).status,
        (await client.deployments.list()).length,
      ]).toEqual([200, 200, 3]);
    });

    test('a change is made completely, or refused with its reason', async () => {
      for (let i = 0; i < 20; i++) {
        const name = `key-${i}`;
        await client.request('POST', '/keys', { body: { name } }).then(
          () => acknowledged.push(name),
          (error: unknown) => expect(error).toMatchObject({ code: 'storage_full' }),
        );
      }
      expect(acknowledged.length).toBeGreaterThan(0);
    });

    test('an exit is reported with its code, and the failed restart with its reason', async () => {
      await statusOf('ending', '/end').catch(() => 0);
      await eventually(async () => (await reasonOf('ending')) !== null, 120_000);
      expect(await reasonOf('ending')).toMatchObject({ exit_code: 3 });
      await eventually(
        async () =>
          (await reasonOf('ending'))?.code === 'disk_full' &&
          (await reasonOf('ending'))!.message.includes('did not start'),
        120_000,
      );
    });

    test('a new deployment fails with the same reason', async () => {
      const { id } = await client.deployments.create({ name: 'late', compute, start_command: script });
      expect((await until(client, id, 'failed')).deployment.reason).toMatchObject({ code: 'disk_full' });
    });

    test('deployments can be stopped and deleted', async () => {
      const id = ids.get('unwanted')!;
      await client.deployments.remove(id, 'unwanted');
      await eventually(
        async () => !(await client.deployments.list()).some((deployment) => deployment.id === id),
        120_000,
      );
    });

    test('everything recovers once the disk has space, and nothing acknowledged is lost', async () => {
      const [before] = (await client.versions.get(ids.get('steady')!, 1)).replicas;
      disk.empty();
      await until(client, ids.get('ending')!, 'running', 240_000);
      expect(await statusOf('ending')).toBe(200);
      expect((await client.versions.get(ids.get('steady')!, 1)).replicas).toMatchObject([
        { id: before.id, started_at: before.started_at },
      ]);
      const kept = new Set((await client.all<{ name: string }>('/keys', { scope: 'user' })).map(({ name }) => name));
      expect(acknowledged.filter((name) => !kept.has(name))).toEqual([]);
      expect(
        (await client.deployments.create({ name: 'after', compute, health_path: '/', start_command: script })).name,
      ).toBe('after');
    });

    test('logs continue and note the gap', async () => {
      await eventually(async () => {
        const { data } = await client.request<{ data: { text: string }[] }>(
          'GET',
          `/deployments/${ids.get('steady')!}/versions/1/logs`,
          { query: { q: 'log', limit: 100 } },
        );
        return data.some(({ text }) => /log lines were lost: No space left on device/.test(text));
      });
    });
  });
}
