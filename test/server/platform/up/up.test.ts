/** Start-up errors of `capstan up`: one line and an exit code. */
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { lockDataDir } from '../../../../server/platform/up/lock';
import { openDataDir } from '../../../../server/platform/up/data-dir';
import { killAll, prepare, start } from '../../../fakes/server-process';

let folder: string;
beforeAll(() => {
  prepare();
  folder = mkdtempSync(join(tmpdir(), 'capstan-up-'));
});
afterAll(() => {
  killAll();
  rmSync(folder, { recursive: true, force: true });
});

async function finished(
  args: readonly string[],
  env: NodeJS.ProcessEnv = {},
): Promise<{ code: number | null; stdout: string; stderr: string }> {
  const run = start(args, env);
  const [code] = await run.exited;
  return { code, ...run.output() };
}

test.each<[string[], NodeJS.ProcessEnv, string]>([
  [['up', '--prot', '1'], {}, "error: unknown option '--prot'\n(Did you mean --port?)"],
  [['up', 'there'], {}, 'error: too many arguments'],
  [['up'], { CAPSTAN_SERVING_PORT: 'x' }, "error: CAPSTAN_SERVING_PORT: expected a port from 0 to 65535, got 'x'"],
  [['up', '--port', '8090', '--serving-port', '8090'], {}, 'error: --serving-port: expected a port other than --port'],
  [['up', '--data-root', '/no/such'], {}, "error: --data-root: expected a folder, got '/no/such'"],
  [['up', '--config', '/no/such.yaml'], {}, "error: --config: expected a readable file, got '/no/such.yaml' (ENOENT)"],
  [['deplyo'], {}, "error: unknown command 'deplyo'\n(Did you mean deploy?)"],
])('%j with %j exits 2 with a message', async (args, env, message) => {
  const { code, stderr, stdout } = await finished(args, { CAPSTAN_DATA_DIR: join(folder, 'usage'), ...env });
  expect([code, stdout]).toEqual([2, '']);
  expect(stderr).toContain(message);
});

test("under Yarn's Plug'n'Play it exits 2 and names the setting", async () => {
  const loader = join(folder, 'pnp.cjs');
  writeFileSync(loader, "process.versions.pnp = '3';");
  const env = { NODE_OPTIONS: `--require ${loader}`, CAPSTAN_DATA_DIR: join(folder, 'pnp') };
  const { code, stderr } = await finished(['up', '--port', '0'], env);
  expect([code, stderr]).toEqual([2, expect.stringContaining('"nodeLinker: node-modules" in .yarnrc.yml')]);
  expect(existsSync(join(folder, 'pnp'))).toBe(false);
});

test('a locked or unusable data directory exits 1 with one line', async () => {
  const { root } = openDataDir(join(folder, 'held'));
  const lock = lockDataDir(root);
  lock.describe({ pid: 4711, url: 'http://127.0.0.1:8090' });
  expect(await finished(['up', '--data-dir', root, '--port', '0'])).toEqual({
    code: 1,
    stdout: '',
    stderr: `error: ${root} is in use by another service (process 4711, http://127.0.0.1:8090): stop it, or choose another --data-dir\n`,
  });
  lock.release();
  const file = join(folder, 'file');
  writeFileSync(file, '');
  expect(await finished(['up', '--data-dir', file])).toEqual({
    code: 1,
    stdout: '',
    stderr: `error: --data-dir: cannot write in ${file}: a file of this name exists\n`,
  });
});

test('a port in use exits 1 and releases the data directory', async () => {
  const server = createServer();
  const port = await new Promise<number>((resolve) =>
    server.listen(0, '127.0.0.1', () => resolve((server.address() as { port: number }).port)),
  );
  const dir = join(folder, 'taken');
  const { code, stderr } = await finished(['up', '--data-dir', dir, '--port', String(port)]);
  server.close();
  expect([code, stderr]).toEqual([
    1,
    `error: cannot listen on 127.0.0.1:${port}: the port is in use. Choose another one with --port, or stop the process that uses it\n`,
  ]);
  lockDataDir(dir).release();
});

test('the help names every group and gives examples', async () => {
  const { code, stdout, stderr } = await finished(['up', '--help']);
  expect([code, stderr]).toEqual([0, '']);
  for (const text of [
    'Service:',
    'Listening:',
    'First administrator:',
    'Deployments:',
    'Logging:',
    '--stop-deployments',
    '--bootstrap-email',
    'Examples:',
  ])
    expect(stdout).toContain(text);
});

test('a database with accounts needs its secret.key', async () => {
  const dataDir = join(folder, 'restored');
  const password = join(folder, 'password.txt');
  writeFileSync(password, 'correct horse battery');
  const args = ['up', '--data-dir', dataDir, '--port', '0'];
  const first = start([...args, '--bootstrap-email', 'ada@example.com', '--bootstrap-password-file', password], {});
  await first.until('\nIsolation: ');
  first.process.kill('SIGTERM');
  await first.exited;
  const file = join(dataDir, 'secret.key');
  const key = readFileSync(file);
  rmSync(file);
  const { code, stderr } = await finished(args);
  expect(code).toBe(2);
  expect(stderr).toContain(
    `${file}: expected the file that belongs to this database, got none: copy it from the backup`,
  );
  expect(existsSync(file)).toBe(false);
  writeFileSync(file, key);
  const again = start(args, {});
  await again.until('\nIsolation: ');
  again.process.kill('SIGTERM');
  expect(await again.exited).toEqual([0, null]);
});
