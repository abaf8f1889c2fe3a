/** The flags of deployments that forward to a server elsewhere. */
import { startService, type TestService } from './support';

let service: TestService;
beforeAll(async () => {
  service = await startService();
});
afterAll(async () => {
  await service.close();
});

const json = async (...line: string[]) => JSON.parse((await service.run([...line, '--json'])).out);

test('a server elsewhere is deployed, changed and restored, and its key is not printed', async () => {
  const env = { PROVIDER_KEY: 'sk-provider-hush' };
  const out: string[] = [];
  const cloud = async (...line: string[]) => {
    const result = await service.run(line, env);
    out.push(result.out, result.err);
    return result;
  };
  const created = await cloud(
    'deploy',
    'cloud',
    '--upstream',
    'https://93.184.215.14',
    '--upstream-secret',
    'PROVIDER_KEY',
  );
  expect(created).toMatchObject({
    code: 0,
    out: expect.stringMatching(
      /\nstate +running\nupstream +https:\/\/93\.184\.215\.14\/v1 \(chat; any model; with a key; version 1\)\n[^]*\naccess +with a key\n/,
    ),
  });
  expect(created.out).not.toMatch(/replicas/);
  await cloud('deployments', 'edit', 'cloud', '--upstream-model', 'large', '--upstream-interface', 'chat,responses');
  expect(await json('deployments', 'get', 'cloud')).toMatchObject({
    upstream: { version: 2, model: 'large', interfaces: ['chat', 'responses'], has_secret: true },
  });
  await cloud('deployments', 'edit', 'cloud', '--remove-upstream-secret', '--remove-upstream-model');
  await cloud('deployments', 'edit', 'cloud', '--upstream-version', '2');
  expect((await cloud('versions', 'list', 'cloud')).out).toMatch(
    /\n4 .* yes +chat,responses +large +https:[^]*\n3 .* no /,
  );
  for (const line of [
    ['deploy', 'x', '--upstream-model', 'm'],
    ['deploy', 'x', '--upstream', 'https://93.184.215.14', '--upstream-secret', 'MISSING'],
    ['deploy', 'x', '--upstream', 'https://93.184.215.14', '--upstream-interface', 'soap'],
    ['deployments', 'edit', 'cloud', '--upstream-secret', 'PROVIDER_KEY', '--remove-upstream-secret'],
  ])
    expect([line, (await cloud(...line)).code]).toEqual([line, 2]);
  expect(out.join('')).not.toContain('hush');
});
