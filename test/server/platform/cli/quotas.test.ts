import { startService, type TestService } from './support';

let service: TestService;
beforeAll(async () => {
  service = await startService();
  await service.run(['orgs', 'create', 'lab']);
});
afterAll(async () => {
  await service.close();
});

describe('quotas', () => {
  test('are listed, and changed by the name of the owner', async () => {
    expect((await service.run(['quotas', 'list'])).out).toMatch(
      /^OWNER +DEPLOYMENTS +VERSIONS +GPUS +CPUS +MEMORY +DISK +ID\norg:lab +0 \(no limit\) +0 \(no limit\) .*0 MiB \(no limit\) +org_\S+\nuser:ada@example.com +0 \(no limit\) .*usr_\S+\n$/,
    );
    expect(await service.run(['quotas', 'set', 'org:lab', '--deployments', '20', '--gpus', '4'])).toMatchObject({
      code: 0,
      out: expect.stringMatching(
        /owner +org:lab\nid +org_\S+\ndeployments +0 of 20\nversions +0 \(no limit\)\nGPUs +0 of 4\n/,
      ),
    });
    expect(
      await service.run([
        'quotas',
        'set',
        'org:lab',
        '--versions',
        '9',
        '--cpus',
        '1.5',
        '--memory',
        '8GiB',
        '--disk',
        '1TiB',
      ]),
    ).toMatchObject({
      code: 0,
      out: expect.stringMatching(
        /versions +0 of 9\nGPUs +0 of 4\nCPUs +0 of 1.5\nmemory +0 MiB of 8 GiB\ndisk +0 MiB of 1024 GiB\n$/,
      ),
    });
    expect(JSON.parse((await service.run(['quotas', 'set', 'org:lab', '--gpus', 'none', '--json'])).out)).toMatchObject(
      { owner: { type: 'org', name: 'lab' }, quota_deployments: 20, quota_gpu: null },
    );
    expect((await service.run(['quotas', 'get', 'user:Ada@Example.com'])).out).toContain('user:ada@example.com');
    expect(JSON.parse((await service.run(['quotas', 'list', '--match', 'LA', '--json'])).out).data).toMatchObject([
      { owner: { name: 'lab' } },
    ]);
  });

  test.each<[string[], string]>([
    [['set', 'org:lab', '--cpus', 'many'], "--cpus: expected a number such as 16 or 0.5, or none, got 'many'"],
    [['set', 'org:lab'], 'nothing to change: expected --deployments, --versions, --gpus, --cpus, --memory or --disk'],
    [['set', 'org:lab', '--gpus', '-1'], "--gpus: expected a number from 0 to 1000000, or none, got '-1'"],
    [['set', 'lab', '--gpus', '1'], 'owner: expected user:NAME or org:NAME'],
  ])('refuses %j with the expected value', async (line, message) => {
    expect(await service.run(['quotas', ...line])).toMatchObject({ code: 2, err: message });
  });

  test('refuses an unknown account', async () => {
    expect(await service.run(['quotas', 'get', 'user:unknown@example.com'])).toMatchObject({
      code: 1,
      err: 'no account has the email address unknown@example.com',
    });
  });
});

test('an administrator can promote and demote others, but not the last administrator', async () => {
  const { userId } = await service.store.createAccount({
    email: 'eve@example.com',
    name: 'Eve',
    password: 'correct horse battery',
  });
  expect(await service.run(['accounts', 'demote', 'ada@example.com'])).toMatchObject({
    code: 1,
    err: expect.stringContaining('only administrator'),
  });
  expect(await service.run(['accounts', 'promote', 'Eve@example.com'])).toMatchObject({
    code: 0,
    out: 'eve@example.com is now an administrator\n',
  });
  expect((await service.run(['accounts', 'list', '--match', 'eve'])).out).toBe(
    `EMAIL            ROLE           ID\neve@example.com  administrator  ${userId}\n`,
  );
  expect(JSON.parse((await service.run(['accounts', 'demote', 'eve@example.com', '--json'])).out)).toMatchObject({
    owner: { id: userId },
    is_admin: false,
  });
  expect((await service.run(['accounts', 'list', '--match', 'eve'])).out).toMatch(/eve@example.com {2}- /);
  expect(await service.run(['accounts', 'promote', 'unknown@example.com'])).toMatchObject({
    code: 1,
    err: 'no account has the email address unknown@example.com',
  });
});

test('an administrator makes a link that sets a new password', async () => {
  const { userId } = await service.store.createAccount({
    email: 'carol@example.com',
    name: 'Carol',
    password: 'correct horse battery',
  });
  const { code, out, err } = await service.run(['accounts', 'reset-password', 'Carol@example.com']);
  expect([code, err]).toEqual([0, expect.stringMatching(/^Send this link to carol@example\.com\. It works once, /)]);
  const [, token] = /^http:\/\/127\.0\.0\.1:\d+\/reset#([0-9A-Za-z]{43})\n$/.exec(out)!;
  await service.store.redeemPasswordReset(token, 'another password', { ip: null, userAgent: null });
  expect(
    await service.store.signIn(
      { email: 'carol@example.com', password: 'another password' },
      { ip: null, userAgent: null },
    ),
  ).toBeDefined();
  expect((await service.store.findAccount(userId)).email).toBe('carol@example.com');
  expect(await service.run(['accounts', 'reset-password', 'unknown@example.com'])).toMatchObject({ code: 1 });
});

test('an administrator deletes an account by its address with --yes', async () => {
  const { userId } = await service.store.createAccount({
    email: 'bob@example.com',
    name: 'Bob',
    password: 'correct horse battery',
  });
  expect(await service.run(['accounts', 'delete', 'bob@example.com'])).toMatchObject({
    code: 2,
    err: expect.stringContaining(`--yes to delete the account bob@example.com (${userId})`),
  });
  expect(await service.run(['accounts', 'delete', 'Bob@example.com', '--yes'])).toMatchObject({
    code: 0,
    out: 'deleted bob@example.com\n',
  });
  await expect(service.store.findAccount(userId)).rejects.toMatchObject({ code: 'not_found' });
  expect(await service.run(['accounts', 'delete', 'ada@example.com', '--yes'])).toMatchObject({
    code: 1,
    err: expect.stringContaining('your own account'),
  });
});
