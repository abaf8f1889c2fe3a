/** Commands load only what they use, so that they start fast. Runs them as processes and reads the loaded modules. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { killAll, prepare, start } from '../../fakes/server-process';
import { temporaryFolder } from '../../fakes/temporary-folder';

/** Packages of the database, of metrics, of logs and of keys: only servers and commands on a database need them. */
const HEAVY = /node_modules.(?:@\w+.)?(kysely|pg|libsql|linux-x64-gnu|prom-client|pino|argon2|typebox)(?=[\\/])/;
const MARK = 'loaded: ';

const service = createServer((_request, response) => {
  response.setHeader('Content-Type', 'application/json').end('{"data":[],"next":null}');
});
let env: NodeJS.ProcessEnv;

beforeAll(async () => {
  const folder = temporaryFolder('start-up');
  const preload = join(folder, 'preload.cjs');
  writeFileSync(
    preload,
    `process.on('exit', () => process.stderr.write('${MARK}' + JSON.stringify(Object.keys(require.cache))));`,
  );
  await new Promise<void>((resolve) => service.listen(0, '127.0.0.1', resolve));
  env = {
    ...prepare(),
    NODE_OPTIONS: `--require ${preload}`,
    XDG_CONFIG_HOME: folder,
    CAPSTAN_URL: `http://127.0.0.1:${(service.address() as AddressInfo).port}`,
    CAPSTAN_TOKEN: 'cpt_x',
  };
});
afterAll(() => {
  service.close();
  killAll();
});

/** Runs a command. Returns its exit code, and the names of the heavy packages that it has loaded. */
async function heavyPackages(args: readonly string[]): Promise<[code: number | null, packages: string[]]> {
  const run = start(args, env);
  const [code] = await run.exited;
  const modules = JSON.parse(run.output().stderr.split(MARK)[1]) as string[];
  expect(modules.some((file) => file.endsWith('program.js'))).toBe(true);
  const packages = modules.flatMap((file) => HEAVY.exec(file)?.[1] ?? []);
  return [code, [...new Set(packages)]];
}

test.each([
  ['--version'],
  ['--help'],
  ['serve', '--help'],
  ['up', '--help'],
  ['bench', '--help'],
  ['bench', 'serve', '--help'],
  ['keys', 'create', '--help'],
  ['tokens', 'create', '--help'],
  ['logout'],
  ['deployments', 'list'],
  ['keys', 'list'],
])('capstan %s %s %s loads no database and no server', async (...args) => {
  expect(await heavyPackages(args.filter((arg) => arg !== undefined))).toEqual([0, []]);
});

test('a command on a key database loads the library of the database', async () => {
  const file = join(temporaryFolder('start-up'), 'keys.db');
  const [code, packages] = await heavyPackages(['keys', 'create', '--name', 'a', '--keys-db', file]);
  expect([code, packages]).toEqual([0, expect.arrayContaining(['kysely', 'libsql'])]);
});
