/** Access control at the gateway, with a real key table. */
import { Access } from '../../../../server/access';
import { ALICE, BOB, overSampleOfBackends } from '../../access/support';
import { closeAll, echo, type Echo, errorOf, startGateway, startReplica, target, until } from './support';

let access: Access;
const keys: Record<'user' | 'bound' | 'unbound' | 'bobs' | 'slow', string> = {} as never;
let deployment: { id: string; ownerId: string };

async function start(
  accessControl: boolean,
): Promise<Awaited<ReturnType<typeof startGateway>> & { numSeen: () => number }> {
  const running = await startGateway({ access });
  let numSeen = 0;
  const replica = await startReplica((request, response) => {
    numSeen++;
    echo(request, response);
  });
  running.targets.set(
    target('s', [replica], { deploymentId: deployment.id, ownerId: deployment.ownerId, accessControl }),
  );
  return { ...running, numSeen: () => numSeen };
}

const ask = (url: string, key: string | undefined, init: RequestInit = {}): Promise<Response> =>
  fetch(`${url}/d/s/v1/models`, {
    ...init,
    headers: { ...(key === undefined ? {} : { Authorization: `Bearer ${key}` }), ...init.headers },
  });

overSampleOfBackends((make) => {
  beforeAll(async () => {
    access = await Access.open({ location: await make() });
    deployment = await access.openDeployment(ALICE, 'mine');
    await access.openDeployment(ALICE, 'other');
    await access.openDeployment(BOB, 'his');
    const create = async (spec: Partial<Parameters<Access['createKey']>[0]>) =>
      (
        await access.createKey({ owner: ALICE, name: 'k', type: 'user-level', ...spec } as Parameters<
          Access['createKey']
        >[0])
      ).secret;
    keys.user = await create({ name: 'user' });
    keys.bound = await create({ name: 'bound', type: 'deployment-level', deployments: ['mine'] });
    keys.unbound = await create({ name: 'unbound', type: 'deployment-level', deployments: ['other'] });
    keys.bobs = await create({ name: 'bobs', owner: BOB });
    keys.slow = await create({ name: 'slow', limits: { rpm: 1, tpm: null, parallel: null } });
  });
  afterEach(closeAll);
  afterAll(() => access.close());

  describe('restricted', () => {
    test.each<[string, () => string | undefined, number, string]>([
      ['no key', () => undefined, 401, 'invalid_api_key'],
      ['a wrong key', () => `${keys.user.slice(0, -1)}${keys.user.endsWith('0') ? '1' : '0'}`, 401, 'invalid_api_key'],
      ['a key with an unknown prefix', () => 'sk-1234', 401, 'invalid_api_key'],
      ['a key that is not bound to the deployment', () => keys.unbound, 403, 'permission_denied'],
      ["another owner's key", () => keys.bobs, 403, 'permission_denied'],
    ])('%s: refused before a replica hears of it', async (_name, key, status, code) => {
      const { url, numSeen, records } = await start(true);
      const response = await ask(url, key(), { headers: { Origin: 'https://a.example' } });
      expect([response.status, errorOf(await response.text()).code]).toEqual([status, code]);
      expect(response.headers.get('www-authenticate')).toBe(status === 401 ? 'Bearer' : null);
      expect(response.headers.get('access-control-allow-origin')).toBe('*');
      expect(numSeen()).toBe(0);
      expect(records).toMatchObject([{ status, keyId: undefined, deploymentId: deployment.id }]);
    });

    test('accepts a valid key and does not forward it', async () => {
      const { url, records } = await start(true);
      for (const key of [keys.user, keys.bound]) {
        const response = await ask(url, key);
        expect(response.status).toBe(200);
        expect(((await response.json()) as Echo).headers.filter(([name]) => name === 'authorization')).toEqual([]);
      }
      expect(records.map(({ keyId }) => keyId)).toEqual([
        expect.stringMatching(/^key_/),
        expect.stringMatching(/^key_/),
      ]);
    });

    test('opens a training container only to user-level keys of its owner, and records no usage', async () => {
      const { url, targets, records } = await startGateway({ access });
      const slug = 'con-01k0000000000000000000000a';
      targets.set(
        target(slug, [await startReplica(echo)], {
          deploymentId: 'con_01k0000000000000000000000a',
          isContainer: true,
          ownerId: deployment.ownerId,
          accessControl: true,
        }),
      );
      const statusOf = async (key?: string) =>
        (
          await fetch(`${url}/d/${slug}/notebook`, {
            headers: key === undefined ? {} : { Authorization: `Bearer ${key}` },
          })
        ).status;
      expect([
        await statusOf(),
        await statusOf(keys.bound),
        await statusOf(keys.bobs),
        await statusOf(keys.user),
      ]).toEqual([401, 403, 403, 200]);
      expect(records).toEqual([]);
    });

    test('returns the rate limit headers of the key', async () => {
      const { url } = await start(true);
      expect((await ask(url, keys.slow)).status).toBe(200);
      const response = await ask(url, keys.slow);
      expect([response.status, errorOf(await response.text()).code]).toEqual([429, 'rate_limit_exceeded']);
      expect([response.headers.get('retry-after'), response.headers.get('x-ratelimit-limit-requests')]).toEqual([
        expect.stringMatching(/^\d+$/),
        '1',
      ]);
    });

    test('answers a preflight itself, without a key', async () => {
      const { url, numSeen } = await start(true);
      const response = await ask(url, undefined, {
        method: 'OPTIONS',
        headers: {
          Origin: 'https://a.example',
          'Access-Control-Request-Method': 'PUT',
          'Access-Control-Request-Headers': 'authorization',
        },
      });
      expect([
        response.status,
        response.headers.get('access-control-allow-origin'),
        response.headers.get('access-control-allow-headers'),
      ]).toEqual([204, '*', 'authorization']);
      expect(response.headers.get('access-control-allow-methods')).toContain('PUT');
      expect(numSeen()).toBe(0);
      // An OPTIONS request that is not a preflight needs a key.
      expect((await ask(url, undefined, { method: 'OPTIONS' })).status).toBe(401);
    });

    test('ends the streams of a key when the key is deleted', async () => {
      const running = await startGateway({ access });
      running.targets.set(
        target(
          's',
          [
            await startReplica((_request, response) => {
              response.writeHead(200, { 'Content-Type': 'text/event-stream' });
              response.write('data: 1\n\n');
            }),
          ],
          { deploymentId: deployment.id, ownerId: deployment.ownerId, accessControl: true },
        ),
      );
      const { key, secret } = await access.createKey({ owner: ALICE, name: 'short', type: 'user-level' } as Parameters<
        Access['createKey']
      >[0]);
      const response = await ask(running.url, secret);
      expect(response.status).toBe(200);
      await access.deleteKey(key.id);
      expect(await response.text()).toMatch(
        /^data: 1\n\ndata: \{"error":.*"invalid_api_key"\}\}\n\ndata: \[DONE\]\n\n$/,
      );
      expect((await ask(running.url, secret)).status).toBe(401);
    });
  });

  describe('public', () => {
    test('needs no key, and ignores and drops an invalid one', async () => {
      const { url } = await start(false);
      for (const key of [undefined, 'sk-wrong', keys.bobs]) {
        const response = await ask(url, key);
        expect(response.status).toBe(200);
        expect(((await response.json()) as Echo).headers.filter(([name]) => name === 'authorization')).toEqual([]);
      }
    });

    test('forwards a preflight to the deployment', async () => {
      const { url, numSeen } = await start(false);
      const response = await ask(url, undefined, {
        method: 'OPTIONS',
        headers: { Origin: 'https://a.example', 'Access-Control-Request-Method': 'PUT' },
      });
      expect([response.status, numSeen()]).toEqual([200, 1]);
    });
  });

  test('turning access control on or off applies to the next request', async () => {
    const running = await start(false);
    expect((await ask(running.url, undefined)).status).toBe(200);
    const [now] = running.targets.all();
    running.targets.set({ ...now, accessControl: true });
    expect((await ask(running.url, undefined)).status).toBe(401);
    running.targets.set({ ...now, accessControl: false });
    expect((await ask(running.url, undefined)).status).toBe(200);
  });

  test('separates prefix caches by key or by deployment, as configured', async () => {
    const running = await start(true);
    const saltOf = async (key: string): Promise<string | undefined> =>
      ((await (await ask(running.url, key)).json()) as Echo).headers.find(([name]) => name === 'x-capstan-salt')?.[1];
    const [shared] = [await saltOf(keys.user)];
    expect(await saltOf(keys.bound)).toBe(shared);
    running.targets.set({ ...running.targets.all()[0], cacheScope: 'key' });
    const [user, bound] = [await saltOf(keys.user), await saltOf(keys.bound)];
    expect(new Set([shared, user, bound]).size).toBe(3);
    expect(await saltOf(keys.user)).toBe(user);
    await until(() => running.records.length === 5);
  });
});
