/** The prefix cache on disk: `capstan serve` answers, ends, starts again, and continues from what it has computed. */
import { execFileSync } from 'node:child_process';
import { chmodSync, existsSync, readdirSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import OpenAI from 'openai';
import { Engine } from '../../ts';
import { killAll, prepare, type Running, start, startServer } from '../fakes/server-process';
import { temporaryFolder } from '../fakes/temporary-folder';
import { mountSmallDisk } from './small-disk';

const FACTS = Array.from({ length: 60 }, (_, i) => `Room ${i} is on floor ${i % 7}.`).join(' ');
const QUESTION = {
  model: 'demo',
  messages: [{ role: 'user' as const, content: `${FACTS} What is Capstan?` }],
  max_tokens: 12,
  temperature: 0,
  logprobs: true,
  top_logprobs: 3,
};
type Server = Running & { url: string };

beforeAll(() => prepare());
afterAll(killAll);

const serve = (...flags: string[]): Promise<Server> => startServer(['demo', '--threads', '1', ...flags], {});

async function ask({ url }: Server, change: object = {}) {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'any', maxRetries: 0 });
  const { choices, usage } = await client.chat.completions.create({ ...QUESTION, ...change });
  return { choice: choices[0], cached: usage!.prompt_tokens_details!.cached_tokens!, prompt: usage!.prompt_tokens };
}

async function metric({ url }: Server, name: string): Promise<number> {
  const text = await (await fetch(`${url}/metrics`)).text();
  return Number(new RegExp(`^${name}(?:\\{[^}]*\\})? (.*)$`, 'm').exec(text)![1]);
}

async function end(server: Server, signal: NodeJS.Signals = 'SIGTERM'): Promise<void> {
  server.process.kill(signal);
  await server.exited;
}

/** Waits for the thread that writes. */
async function untilWritten(server: Server, numBlocks: number): Promise<void> {
  while ((await metric(server, 'capstan_disk_cache_blocks')) < numBlocks) await new Promise(setImmediate);
}

test('a server that starts again continues from the disk, with the same answer', async () => {
  const dir = join(temporaryFolder('disk'), 'made', 'by it');
  let server = await serve('--prefix-cache-dir', dir, '--prefix-cache-disk-size', '100M');
  const cold = await ask(server);
  expect(cold.cached).toBe(0);
  await end(server);
  expect(statSync(dir).mode & 0o777).toBe(0o700);
  server = await serve('--prefix-cache-dir', dir);
  const warm = await ask(server);
  expect(warm.choice).toEqual(cold.choice);
  const numBlocks = Math.floor((cold.prompt - 1) / 16);
  expect(warm.cached).toBe(numBlocks * 16);
  expect(await metric(server, 'capstan_disk_cache_hits_total')).toBe(1);
  expect(await metric(server, 'capstan_disk_cache_tokens_total')).toBe(warm.cached);
  expect(await metric(server, 'capstan_disk_cache_read_bytes_total')).toBeGreaterThan(numBlocks * 1000);
  expect(await metric(server, 'capstan_disk_cache_damaged_total')).toBe(0);
  // Another salt is another tenant.
  expect((await ask(server, { cache_salt: 'other' })).cached).toBe(0);
  await untilWritten(server, 2 * numBlocks);
  // Without time to close.
  await end(server, 'SIGKILL');
  server = await serve('--prefix-cache-dir', dir);
  const other = await ask(server, { cache_salt: 'other' });
  expect([other.choice, other.cached]).toEqual([cold.choice, warm.cached]);
  await end(server);
  // Another type of the KV cache has other bits.
  server = await serve('--prefix-cache-dir', dir, '--kv-cache-dtype', 'bf16');
  expect((await ask(server)).cached).toBe(0);
  await end(server);
});

test('a folder that cannot be used is an error at the start', async () => {
  const folder = temporaryFolder('unusable');
  chmodSync(folder, 0o777);
  const open = start(['serve', 'demo', '--port', '0', '--prefix-cache-dir', folder], {});
  expect((await open.exited)[0]).toBe(2);
  expect(open.output().stderr).toMatch(/--prefix-cache-dir: expected a folder .* its mode is 777/);
  writeFileSync(join(folder, 'file'), '');
  const file = start(['serve', 'demo', '--port', '0', '--prefix-cache-dir', join(folder, 'file')], {});
  expect((await file.exited)[0]).toBe(2);
  expect(file.output().stderr).toContain('--prefix-cache-dir');
});

test('with a full or read-only disk the server starts without it, and one line of the log says so', async () => {
  const folder = temporaryFolder('small');
  const disk = mountSmallDisk(folder, 4);
  if (disk === undefined) return;
  const startWithout = async (reason: string): Promise<void> => {
    const server = await serve('--prefix-cache-dir', join(folder, 'cache'));
    expect((await ask(server)).choice.message.content).not.toBe('');
    expect((await ask(server)).cached).toBeGreaterThan(100);
    const line = `${reason}: the prefix cache cannot be written to ${join(folder, 'cache')}; it is only in memory`;
    const numLines = () => server.output().stderr.split(line).length - 1;
    while (numLines() === 0) await new Promise((resolve) => setTimeout(resolve, 20));
    await end(server);
    expect(numLines()).toBe(1);
  };
  try {
    disk.fill();
    await startWithout('No space left on device');
    disk.empty();
    const server = await serve('--prefix-cache-dir', join(folder, 'cache'));
    await ask(server);
    await end(server);
    execFileSync('mount', ['-o', 'remount,ro', folder]);
    await startWithout('Read-only file system');
  } finally {
    execFileSync('mount', ['-o', 'remount,rw', folder]);
    disk.remove();
  }
});

test('two engines share a folder', async () => {
  const prefixCacheDir = temporaryFolder('shared');
  const prompt = FACTS.slice(0, 900);
  const options = { prefixCacheDir, threads: 1 };
  const first = await Engine.load('demo', options);
  const cold = await first.generate(prompt, { maxTokens: 8, temperature: 0 }).result();
  while (first.stats().numDiskBlocks < Math.floor(cold.usage.promptTokens / 16)) await new Promise(setImmediate);
  const second = await Engine.load('demo', options);
  const warm = await second.generate(prompt, { maxTokens: 8, temperature: 0 }).result();
  expect(warm.choices).toEqual(cold.choices);
  expect(warm.usage.cachedTokens).toBeGreaterThan(100);
  expect(second.stats()).toMatchObject({
    numDiskHits: 1,
    diskCachedTokens: warm.usage.cachedTokens,
    diskProblem: null,
  });
  await first.close();
  await second.close();
  const stores = readdirSync(prefixCacheDir).filter((name) => /^[0-9a-f]{32}$/.test(name));
  expect(stores).toHaveLength(1);
  expect(existsSync(join(prefixCacheDir, stores[0], 'store'))).toBe(true);
});

test.each([
  ['', 'a path'],
  [5, 'a string'],
])('prefixCacheDir %p is refused', async (prefixCacheDir, expected) => {
  await expect(Engine.load('demo', { prefixCacheDir: prefixCacheDir as string })).rejects.toMatchObject({
    code: 'invalid_argument',
    message: expect.stringContaining(`prefixCacheDir: expected ${expected}`),
  });
});
