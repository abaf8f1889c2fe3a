import { Client } from '../../../../server/platform/api/client';
import { runCommand, startService, type TestService } from './support';

let service: TestService;
beforeAll(async () => {
  service = await startService();
});
afterAll(async () => {
  await service.close();
});

describe('the connection to the service', () => {
  test('a missing token is reported with the command that creates one', async () => {
    const { code, err } = await runCommand(['orgs', 'list'], {});
    expect([code, err]).toEqual([
      2,
      expect.stringContaining(
        'expected a management token for http://127.0.0.1:8090 in CAPSTAN_TOKEN or --token, got none. Create one ',
      ),
    ]);
  });

  test('an unreachable service is reported with its address', async () => {
    const { code, err } = await runCommand(['orgs', 'list'], {
      CAPSTAN_URL: 'http://127.0.0.1:61999',
      CAPSTAN_TOKEN: 'mt-x',
    });
    expect([code, err]).toEqual([
      1,
      'cannot reach http://127.0.0.1:61999 (ECONNREFUSED): is capstan up running there?',
    ]);
  });

  test('refuses an invalid URL', async () => {
    expect(await runCommand(['orgs', 'list', '--url', '127.0.0.1'], { CAPSTAN_TOKEN: 'mt-x' })).toMatchObject({
      code: 2,
      err: "--url: expected a URL such as http://127.0.0.1:8090, got '127.0.0.1'",
    });
  });

  test('an invalid token is reported in one line with the status', async () => {
    const { code, err, out } = await service.run(['orgs', 'list', '--token', 'mt-wrong']);
    expect([code, out]).toEqual([1, '']);
    expect(err).toMatch(/\(401 unauthenticated\)$/);
    expect(err).not.toContain('\n');
  });

  test.each(['<h1>hello</h1>', '{"error":{"message":"Not found","code":"not_found"}}'])(
    'reports a server that is not Capstan, or the port of the deployments: %s',
    async (text) => {
      const other = (() =>
        Promise.resolve(new Response(text, { status: 404, statusText: 'Not Found' }))) as typeof fetch;
      await expect(new Client({ url: 'http://x', token: 'mt', fetch: other }).request('GET', '/orgs')).rejects.toThrow(
        "404 Not Found: not a response of Capstan's management API. Use the URL of the console, which capstan up prints",
      );
    },
  );

  test('a host name without an address is reported, and names below localhost are this machine', async () => {
    const fetched: string[] = [];
    const unknown = ((url: URL) => {
      fetched.push(url.href);
      return Promise.reject(Object.assign(new TypeError('fetch failed'), { cause: { code: 'ENOTFOUND' } }));
    }) as typeof fetch;
    const get = (url: string) => new Client({ url, token: 'mt', fetch: unknown }).request('GET', '/orgs');
    await expect(get('http://console.invalid')).rejects.toThrow(
      'cannot reach http://console.invalid (ENOTFOUND): this machine finds no address for the host name; check the URL',
    );
    for (const url of ['http://console.localhost:8090', 'https://console.localhost']) await get(url).catch(() => {});
    expect(fetched.slice(1)).toEqual([
      'http://console.localhost:8090/api/v1/orgs',
      'http://localhost:8090/api/v1/orgs',
      'https://console.localhost/api/v1/orgs',
    ]);
  });
});

describe('tokens', () => {
  test('create prints only the token to standard output while the service runs', async () => {
    const { code, out, err } = await service.run([
      'tokens',
      'create',
      '--data-dir',
      service.dataDir,
      '--email',
      'Ada@Example.com',
      '--name',
      'cli',
    ]);
    expect([code, out]).toEqual([0, expect.stringMatching(/^mt-[0-9A-Za-z]{43}\n$/)]);
    expect(err).toContain('created the management token "cli"');
    expect((await service.run(['orgs', 'list', '--json', '--token', out.trim()])).code).toBe(0);
  });

  test('a read-only token cannot change anything', async () => {
    const { out } = await service.run([
      'tokens',
      'create',
      '--data-dir',
      service.dataDir,
      '--email',
      'ada@example.com',
      '--name',
      'reader',
      '--rights',
      'read',
      '--expires',
      '1h',
      '--json',
    ]);
    const { token, rights } = JSON.parse(out);
    expect(rights).toBe('read');
    const { code, err } = await service.run(['orgs', 'create', 'nope', '--token', token]);
    expect([code, err]).toEqual([1, expect.stringContaining('403')]);
  });

  test.each([
    [['--name', 'x'], '--email: expected the email address of an account'],
    [['--email', 'ada@example.com'], '--name: expected a name for the token'],
    [['--email', 'eve@example.com', '--name', 'x'], '--email: no account has the address eve@example.com'],
    [['--email', 'ada@example.com', '--name', 'x', '--rights', 'all'], "--rights: expected write or read, got 'all'"],
    [['--email', 'ada@example.com', '--name', 'x', '--expires', 'soon'], '--expires: expected a duration'],
  ])('%j is refused', async (flags, message) => {
    const { code, err, out } = await service.run(['tokens', 'create', '--data-dir', service.dataDir, ...flags]);
    expect([code, err, out]).toEqual([2, expect.stringContaining(message), '']);
  });

  test('refuses a data directory that is not initialized', async () => {
    expect(
      await service.run(['tokens', 'create', '--data-dir', '/no/such', '--email', 'ada@example.com', '--name', 'x']),
    ).toMatchObject({ code: 2, err: expect.stringContaining('--data-dir: /no/such is not initialized') });
  });

  test('are listed without their secrets, and can be deleted', async () => {
    const { out: token } = await service.run([
      'tokens',
      'create',
      '--data-dir',
      service.dataDir,
      '--email',
      'ada@example.com',
      '--name',
      'short',
    ]);
    const list = await service.run(['tokens', 'list']);
    expect(list.out).toMatch(/^NAME +TOKEN +RIGHTS/);
    expect(list.out).toContain('short');
    expect(list.out).not.toContain(token.trim());
    expect(await service.run(['tokens', 'delete', 'short'])).toMatchObject({
      code: 2,
      err: expect.stringContaining('--yes to delete "short"'),
    });
    expect(await service.run(['tokens', 'delete', 'short', '--yes'])).toMatchObject({ code: 0 });
    expect((await service.run(['orgs', 'list', '--token', token.trim()])).err).toContain('(401');
  });
});

describe('organizations', () => {
  test('are created, edited and deleted with their members and invitations', async () => {
    expect(await service.run(['orgs', 'create', 'lab', '--name', 'The laboratory'])).toMatchObject({
      code: 0,
      out: expect.stringMatching(/^created lab \(org_/),
    });
    expect((await service.run(['orgs', 'list'])).out).toMatch(/lab +The laboratory +owner/);
    const invited = await service.run(['orgs', 'invite', 'lab', 'bob@example.com', '--role', 'viewer']);
    expect([invited.code, invited.out.trim()]).toEqual([
      0,
      expect.stringMatching(new RegExp(`^${service.url}/invitation#[\\w-]{20,}$`)),
    ]);
    expect((await service.run(['orgs', 'invitations', 'lab'])).out).toContain('bob@example.com');
    expect(await service.run(['orgs', 'withdraw', 'lab', 'Bob@example.com'])).toMatchObject({
      code: 0,
      out: 'withdrew the invitation for bob@example.com\n',
    });
    expect((await service.run(['orgs', 'invitations', 'lab'])).out).not.toContain('bob@example.com');
    expect(await service.run(['orgs', 'withdraw', 'lab', 'bob@example.com'])).toMatchObject({
      code: 1,
      err: 'the organization has no open invitation for bob@example.com',
    });
    expect(await service.run(['orgs', 'edit', 'lab'])).toMatchObject({ code: 2 });
    expect(await service.run(['orgs', 'edit', 'lab', '--name', 'Laboratory 9'])).toMatchObject({
      code: 0,
      out: 'lab is now called Laboratory 9\n',
    });
    expect((await service.run(['orgs', 'list'])).out).toMatch(/lab +Laboratory 9 +owner/);
    expect((await service.run(['orgs', 'members', 'lab'])).out).toMatch(/ada@example.com +ada? +owner/i);
    expect(await service.run(['orgs', 'set-role', 'lab', 'ada@example.com', 'king'])).toMatchObject({
      code: 2,
      err: "role: expected viewer, developer, admin or owner, got 'king'",
    });
    expect(await service.run(['orgs', 'set-role', 'lab', 'ada@example.com', 'viewer'])).toMatchObject({
      code: 1,
      err: expect.stringContaining('(409'),
    });
    expect(await service.run(['orgs', 'get', 'none'])).toMatchObject({
      code: 1,
      err: 'you are not in an organization called none',
    });
    expect(await service.run(['orgs', 'delete', 'lab'])).toMatchObject({ code: 2 });
    expect(await service.run(['orgs', 'delete', 'lab', '--yes'])).toMatchObject({ code: 0, out: 'deleted lab\n' });
    expect((await service.run(['orgs', 'list'])).err).toContain('You are not in an organization');
  });
});

describe('keys of a running service', () => {
  test('are created, listed, edited, rotated and deleted like those of a database', async () => {
    const created = await service.run(['keys', 'create', '--name', 'laptop', '--rpm', '60', '--expires', '30d']);
    expect([created.code, created.out]).toEqual([0, expect.stringMatching(/^sk-cap1_\S+\n$/)]);
    expect(created.err).toContain('created "laptop"');
    expect((await service.run(['keys', 'list'])).out).toMatch(/laptop .*60 rpm/);
    expect(await service.run(['keys', 'edit', 'laptop', '--name', 'desk', '--tpm', '1000'])).toMatchObject({
      code: 0,
      out: expect.stringContaining('changed "desk"'),
    });
    expect(JSON.parse((await service.run(['keys', 'list', '--json', '--search', 'DES'])).out).data).toMatchObject([
      { name: 'desk', limits: { rpm: 60, tpm: 1000, parallel: null } },
    ]);
    expect((await service.run(['keys', 'disable', 'desk'])).out).toContain('disabled "desk"');
    expect(JSON.parse((await service.run(['keys', 'enable', 'desk', '--json'])).out)).toMatchObject({
      state: 'active',
    });
    const rotated = await service.run(['keys', 'rotate', 'desk', '--grace', '1h']);
    expect([rotated.out.slice(0, 9), rotated.out === created.out]).toEqual(['sk-cap1_' + rotated.out[8], false]);
    expect(JSON.parse((await service.run(['keys', 'rotate', 'desk', '--finish', '--json'])).out)).toMatchObject({
      state: 'active',
      rotating_until: null,
    });
    expect(await service.run(['keys', 'delete', 'desk'])).toMatchObject({
      code: 2,
      err: expect.stringContaining('--yes to delete "desk"'),
    });
    expect((await service.run(['keys', 'delete', 'desk', '--yes'])).out).toContain('deleted "desk"');
    expect(JSON.parse((await service.run(['keys', 'list', '--json'])).out).data).toEqual([]);
    expect(await service.run(['keys', 'edit', 'desk', '--rpm', '1'])).toMatchObject({
      code: 1,
      err: 'no key has this ID or name: see capstan keys list',
    });
  });

  test('of an organization are created with --owner', async () => {
    await service.run(['orgs', 'create', 'keyed']);
    await service.run(['keys', 'create', '--name', 'ours', '--owner', 'org:keyed']);
    expect((await service.run(['keys', 'list', '--owner', 'org:keyed'])).out).toContain('org:keyed');
    expect((await service.run(['keys', 'list'])).out).not.toContain('ours');
    expect(await service.run(['keys', 'create', '--name', 'x', '--owner', 'org:other'])).toMatchObject({
      code: 2,
      err: '--owner: you are not in an organization called other: expected keyed',
    });
    expect(await service.run(['keys', 'create', '--name', 'x', '--owner', 'user:bob'])).toMatchObject({
      code: 2,
      err: expect.stringContaining('expected org:SLUG with --url'),
    });
  });

  test('refuses a database and a service together; a database flag overrides the environment', async () => {
    expect(await service.run(['keys', 'list', '--url', service.url, '--data-dir', service.dataDir])).toMatchObject({
      code: 2,
      err: expect.stringContaining('--url and --token: cannot be used with --keys-db or --data-dir'),
    });
    expect(await service.run(['keys', 'list', '--data-dir', service.dataDir, '--json', '--all'])).toMatchObject({
      code: 0,
      out: expect.stringContaining('"desk"'),
    });
  });
});

test('the audit log lists the latest changes', async () => {
  await service.run(['keys', 'create', '--name', 'audited']);
  const { out } = await service.run(['audit', '-n', '1', '--action', 'key.created']);
  expect(out).toMatch(
    /^AT +ACTION +RESULT +BY +TARGET +FROM\n\S+ +key\.created +ok +user:\S+@\S+ +audited \(key_\w{26}\) +127\.0\.0\.1\n$/,
  );
  expect(await service.run(['audit', '-n', 'all'])).toMatchObject({
    code: 2,
    err: "--lines: expected a whole number of 1 or more, got 'all'",
  });
});

describe('webhooks', () => {
  test('are created with only the secret on standard output, tested, rotated, disabled and deleted', async () => {
    const url = service.receiver.url;
    const created = await service.run(['webhooks', 'create', url, '--event', 'key.*', '--event', 'deployment.running']);
    expect([created.code, created.out]).toEqual([0, expect.stringMatching(/^whsec_[0-9A-Za-z+/]{43}=\n$/)]);
    expect(await service.run(['webhooks', 'test', url])).toMatchObject({
      code: 0,
      out: expect.stringMatching(/: 204 after \d+ ms\n$/),
    });
    expect(service.receiver.types).toEqual(['webhook.test']);
    const { out: listed } = await service.run(['webhooks', 'list']);
    expect(listed).toContain('key.* deployment.running');
    expect(listed).not.toContain('whsec_');
    expect((await service.run(['webhooks', 'deliveries', url])).out).toMatch(/webhook\.test +delivered +1 +204 after/);
    const rotated = await service.run(['webhooks', 'rotate', url, '--grace', '1h']);
    expect(rotated).toMatchObject({
      code: 0,
      out: expect.stringMatching(/^whsec_\S+\n$/),
      err: expect.stringMatching(/^rotated whk_\w+\. Until \S+ \S+ messages are also signed with the old secret\./),
    });
    expect(await service.run(['webhooks', 'rotate', url, '--finish'])).toMatchObject({
      code: 0,
      out: expect.stringMatching(/^ended the grace period of whk_/),
    });
    expect(await service.run(['webhooks', 'rotate', url, '--finish', '--grace', '1h'])).toMatchObject({
      code: 2,
      err: expect.stringContaining('--finish: cannot be used with --grace'),
    });
    const {
      data: [tested],
    } = JSON.parse((await service.run(['webhooks', 'deliveries', url, '--json'])).out);
    expect(await service.run(['webhooks', 'redeliver', url, tested.id])).toMatchObject({
      code: 1,
      err: expect.stringContaining('a test message cannot be redelivered'),
    });
    expect(await service.run(['webhooks', 'disable', url])).toMatchObject({ code: 0 });
    expect((await service.run(['webhooks', 'list'])).out).toMatch(/ off /);
    expect(await service.run(['webhooks', 'enable', url])).toMatchObject({ code: 0 });
    expect(await service.run(['webhooks', 'edit', url, '--event', '*', '--json'])).toMatchObject({
      code: 0,
      out: expect.stringContaining('"events":["*"]'),
    });
    service.receiver.status = 500;
    expect(await service.run(['webhooks', 'test', url])).toMatchObject({
      code: 1,
      err: expect.stringContaining('status 500'),
    });
    expect(await service.run(['webhooks', 'delete', url])).toMatchObject({
      code: 2,
      err: expect.stringContaining('--yes'),
    });
    expect(await service.run(['webhooks', 'delete', url, '--yes'])).toMatchObject({ code: 0 });
    expect(await service.run(['webhooks', 'test', url])).toMatchObject({
      code: 1,
      err: `no webhook has the ID or address ${url}`,
    });
  });

  test('are refused without an event or with an unknown one', async () => {
    expect(await service.run(['webhooks', 'create', 'https://example.com/'])).toMatchObject({
      code: 2,
      err: expect.stringContaining('--event: expected'),
    });
    expect(
      await service.run(['webhooks', 'create', service.receiver.url, '--event', 'deployment.exploded']),
    ).toMatchObject({ code: 2, err: expect.stringContaining('unknown event deployment.exploded') });
  });
});
