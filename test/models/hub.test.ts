/** Pulls and serves the embedded model from a local hub, with the real addon and in several processes. */
import { once } from 'node:events';
import { existsSync, mkdtempSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { etagOf, HubServer } from '../fakes/hub-server';
import { killAll, prepare, type Running, start, startServer } from '../fakes/server-process';

const NAME = 'acme/demo';
const demo = join(__dirname, '../../models/demo');
const FILES = Object.fromEntries(
  readdirSync(demo)
    .filter((name) => /\.(json|jinja|safetensors)$/.test(name))
    .map((name) => [name, readFileSync(join(demo, name))]),
);
const WEIGHTS = FILES['model.safetensors'];
const HALF = WEIGHTS.length >> 1;

let hub: HubServer;
let env: NodeJS.ProcessEnv;
let blob: string;

beforeAll(() => {
  prepare();
});
beforeEach(async () => {
  hub = new HubServer();
  await hub.start();
  hub.add(NAME, FILES);
  const home = mkdtempSync(join(tmpdir(), 'capstan-hub-'));
  env = { HF_HOME: home, HF_ENDPOINT: hub.url, HF_TOKEN: '' };
  blob = join(home, 'hub/models--acme--demo/blobs', etagOf(WEIGHTS));
});
afterEach(async () => {
  killAll();
  await hub.close();
  expect(hub.violations).toEqual([]);
});

async function finished(run: Running): Promise<{ code: number | null; stdout: string; stderr: string }> {
  const [code] = await run.exited;
  return { code, ...run.output() };
}

const pause = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 10));

async function until(isTrue: () => boolean): Promise<void> {
  while (!isTrue()) await pause();
}

const ranges = (): (string | undefined)[] =>
  hub.requests
    .filter(({ path }) => path.endsWith('/model.safetensors'))
    .filter(({ host }) => host === 'storage')
    .map(({ range }) => range);

/** Starts a pull and returns when half of the weights are on the disk. `release` sends the rest. */
async function startHalf(): Promise<{ run: Running; release: () => void }> {
  let release = (): void => {};
  hub.fail('model.safetensors', { hold: new Promise<void>((resolve) => (release = resolve)) });
  const run = start(['pull', NAME], env);
  await until(() => existsSync(`${blob}.incomplete`) && statSync(`${blob}.incomplete`).size === HALF);
  return { run, release };
}

test('capstan serve ORG/NAME downloads the model once, names it, and answers a chat', async () => {
  const server = await startServer([NAME], env);
  const ask = async (url: string): Promise<any> => {
    const response = await fetch(`${url}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify({ messages: [{ role: 'user', content: 'Count from 1 to 3.' }], temperature: 0 }),
    });
    return response.json();
  };
  const answer = await ask(server.url);
  expect(answer.model).toBe(NAME);
  expect(answer.choices[0].message.content).toContain('1, 2, 3');
  expect(server.output().stderr).toContain('downloading the model');
  server.process.kill();
  await server.exited;
  hub.requests.length = 0;
  const again = await startServer([`${NAME}@main`], env);
  expect((await ask(again.url)).model).toBe(NAME);
  expect(hub.requests).toEqual([]);
});

test('capstan pull prints the path, and models list, info and rm show and delete the model', async () => {
  const pulled = await finished(start(['pull', NAME], env));
  expect(pulled).toMatchObject({ code: 0, stdout: expect.stringMatching(/\/snapshots\/[0-9a-f]{40}\n$/) as string });
  expect(pulled.stderr).toMatch(
    /^downloading acme\/demo: 6 files, 10\.3 MB\nacme\/demo is complete \(commit [0-9a-f]{40}\)\n$/,
  );
  const list = await finished(start(['models', 'list'], env));
  expect(list.stdout).toMatch(
    /^NAME +REVISION +COMMIT +SIZE +FILES +LAST USED\nacme\/demo +main +[0-9a-f]{12} +10\.3 MB +6 +\S/,
  );
  const info = await finished(start(['models', 'info', NAME, '--max-model-len', '1K'], env));
  expect(info.stdout).toMatch(
    /to download +nothing, the cache has it\nmemory +10\.2 MB for the weights, and .* 1024 tokens\nfits +yes/,
  );
  const refused = await finished(start(['models', 'rm', NAME], env));
  expect(refused).toMatchObject({
    code: 2,
    stderr: expect.stringContaining('expected --yes to delete acme/demo (1 revision') as string,
  });
  expect(await finished(start(['models', 'rm', NAME, '--yes'], env))).toMatchObject({
    code: 0,
    stderr: 'freed 10.3 MB\n',
  });
  expect((await finished(start(['models', 'list'], env))).stdout).toBe(
    'No models found. Download one with: capstan pull ORG/NAME\n',
  );
});

test('two pulls in two processes download each file once', async () => {
  const { run: first, release } = await startHalf();
  const second = start(['pull', NAME], env);
  await until(() => second.output().stderr.includes('downloading'));
  release();
  expect([(await finished(first)).code, (await finished(second)).code]).toEqual([0, 0]);
  expect(ranges()).toEqual([undefined]);
  expect(readFileSync(blob).equals(WEIGHTS)).toBe(true);
});

test('a model is not deleted while a process downloads it', async () => {
  const { run, release } = await startHalf();
  const removed = await finished(start(['models', 'rm', NAME, '--yes'], env));
  expect(removed).toMatchObject({ code: 1, stderr: expect.stringContaining('is in use by a download') as string });
  release();
  expect((await finished(run)).code).toBe(0);
});

test.each([
  ['SIGKILL', null],
  ['SIGINT', 130],
] as const)('after %s in the middle, the next pull continues', async (signal, code) => {
  const { run } = await startHalf();
  run.process.kill(signal);
  await once(run.process, 'close');
  expect(run.process.exitCode).toBe(code);
  if (signal === 'SIGINT')
    expect(run.output().stderr).toContain('stopped. Run the command again to continue the download\n');
  const listed = await finished(start(['models', 'list'], env));
  expect(listed.stdout).toMatch(/acme\/demo +not complete +- +5\.\d MB/);
  expect((await finished(start(['pull', NAME], env))).code).toBe(0);
  expect(ranges()).toEqual([undefined, `bytes=${HALF}-`]);
  expect(readFileSync(blob).equals(WEIGHTS)).toBe(true);
});

test('capstan serve refuses a model that cannot fit, before its weights are downloaded', async () => {
  const enlarge = (file: any): unknown =>
    file.rfilename === 'model.safetensors' ? { ...file, lfs: { ...file.lfs, size: 1e14 } } : file;
  hub.add(NAME, FILES, { patchList: (reply) => ({ ...reply, siblings: reply.siblings.map(enlarge) }) });
  const { code, stderr } = await finished(start(['serve', NAME, '--port', '0'], env));
  expect(code).toBe(1);
  expect(stderr).toMatch(
    /acme\/demo needs about 100 TB of memory for the weights and .*This machine has .*Lower --max-model-len/,
  );
  expect(ranges()).toEqual([]);
});
