import { mkdirSync, mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ConsoleFiles } from '../../../../server/platform/api/console-files';
import { exchange } from '../../../fakes/memory-exchange';

function folder(): string {
  const dir = mkdtempSync(join(tmpdir(), 'capstan-files-'));
  mkdirSync(join(dir, 'assets'));
  writeFileSync(join(dir, 'index.html'), '<!doctype html><title>运行中</title>');
  writeFileSync(join(dir, 'theme.js'), '1');
  writeFileSync(join(dir, 'assets/index-abc.js'), '2');
  writeFileSync(join(dir, 'notes.txt'), 'not ours');
  return dir;
}

const files = new ConsoleFiles(folder(), { isSecure: false });

test.each(['/', '/deployments', '/deployments/dep_1/versions/3/logs', '/sign-in', '/setup'])(
  '%s returns the page',
  async (path) => {
    const { status, text, headers } = await exchange(files, path);
    expect([status, text, headers['Content-Type'], headers['Cache-Control']]).toEqual([
      200,
      '<!doctype html><title>运行中</title>',
      'text/html; charset=utf-8',
      'no-cache',
    ]);
  },
);

test('sends the type of a file, and caches hashed files forever', async () => {
  expect((await exchange(files, '/theme.js')).headers).toMatchObject({
    'Content-Type': 'text/javascript; charset=utf-8',
    'Cache-Control': 'no-cache',
  });
  expect((await exchange(files, '/assets/index-abc.js')).headers['Cache-Control']).toBe(
    'public, max-age=31536000, immutable',
  );
});

test('sends a policy that allows only scripts and styles of the console', async () => {
  for (const path of ['/', '/assets/index-abc.js', '/assets/gone.js']) {
    const { headers } = await exchange(files, path);
    const policy = headers['Content-Security-Policy'];
    expect(policy).toContain("default-src 'none'; script-src 'self'; style-src 'self'");
    expect(policy).toContain("frame-ancestors 'none'");
    expect(policy).not.toContain('unsafe');
    expect(headers).toMatchObject({
      'X-Content-Type-Options': 'nosniff',
      'Referrer-Policy': 'no-referrer',
      'X-Frame-Options': 'DENY',
    });
  }
  expect(
    (await exchange(new ConsoleFiles(folder(), { isSecure: true }), '/')).headers['Strict-Transport-Security'],
  ).toBeDefined();
});

test('returns 304 if the entity tag matches', async () => {
  const {
    headers: { ETag: etag },
  } = await exchange(files, '/');
  const ask = (value: string) => exchange(files, '/', undefined, { headers: [['if-none-match', value]] });
  for (const value of [etag, `W/${etag}`, `"x", ${etag}`])
    expect(await ask(value)).toMatchObject({ status: 304, text: '' });
  expect((await ask('"x"')).status).toBe(200);
});

test.each([
  '/assets/gone.js',
  '/notes.txt',
  '/../package.json',
  '/.env.local',
  '/index.htm',
  '/assets/../../secret.key',
])('%s returns 404', async (path) => {
  expect((await exchange(files, path)).status).toBe(404);
});

test('refuses POST with 405', async () => {
  expect(await exchange(files, '/', '{}')).toMatchObject({
    status: 405,
    headers: expect.objectContaining({ Allow: 'GET, HEAD' }),
  });
});

test('returns 503 with a hint if the console is not built', async () => {
  const none = new ConsoleFiles(join(tmpdir(), 'capstan-no-such-folder'), { isSecure: false });
  expect(none.isBuilt).toBe(false);
  expect(await exchange(none, '/deployments')).toMatchObject({
    status: 503,
    text: 'The console is not built: run npm run build:console\n',
  });
});
