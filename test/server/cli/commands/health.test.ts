import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Command } from 'commander';
import { addHealthCommand } from '../../../../server/cli/commands/health';
import { UsageError } from '../../../../server/base/usage-error';

const server = createServer((request, response) => {
  if (request.url === '/slow') return;
  response.writeHead(request.url === '/health' ? 200 : 503).end('body');
});
let base: string;

beforeAll(async () => {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  base = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
});

afterAll(() => {
  server.closeAllConnections();
  server.close();
});

async function health(...args: string[]) {
  const program = new Command().exitOverride();
  let [code, out, err] = [-1, '', ''];
  const io = { env: {}, now: Date.now, out: (text: string) => (out += text), err: (text: string) => (err += text) };
  addHealthCommand(program, (value) => (code = value), io);
  await program.parseAsync(['health', ...args], { from: 'user' });
  return [code, out, err];
}

test('a healthy server', async () => {
  for (const url of [`${base}/health`, base, `${base}/`]) expect(await health(url)).toEqual([0, 'healthy\n', '']);
});

test.each([
  ['/unwell', [], /unwell: expected a status below 300, got 503/],
  ['/slow', ['--timeout', '0.05'], /slow: expected an answer within 0.05 s, got none/],
])('%s', async (path, args, message) => {
  const [code, out, err] = await health(base + path, ...args);
  expect([code, out]).toEqual([1, '']);
  expect(err).toMatch(message);
});

test('no server', async () => {
  const [code, , err] = await health('http://127.0.0.1:1/health');
  expect(code).toBe(1);
  expect(err).toMatch(/expected an answer, got: (connect ECONNREFUSED|bad port)/);
});

test.each([
  [['ftp://host/'], /url: expected an http or https address/],
  [['http://user:secret@127.0.0.1/'], /url: expected an address without a user name and a password/],
  [['--timeout', '0'], /--timeout: expected seconds up to 3600, got '0'/],
])('%j is refused', async (args, message) => {
  await expect(health(...args)).rejects.toThrow(UsageError);
  await expect(health(...args)).rejects.toThrow(message);
});
