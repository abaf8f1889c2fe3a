/** A request may not hold the main thread, whatever its body. */
import { readFileSync } from 'node:fs';
import { HOSTILE_BODIES } from '../fakes/hostile-bodies';
import { prepare, start } from '../fakes/server-process';

/**
 * Processor time of the main thread that one request may take. The slowest body takes 60 ms, and nearly twice that
 * beside busy neighbors. Parsing such a body with a fault takes seconds.
 */
const MAX_MS = 250;
const CHAT = '/v1/chat/completions';

let url: string;
let pid: number;
let server: ReturnType<typeof start>;

function mainThreadMs(): number {
  return Number(readFileSync(`/proc/${pid}/task/${pid}/schedstat`, 'utf8').split(' ')[0]) / 1e6;
}

async function post(path: string, body: object): Promise<number> {
  const response = await fetch(url + path, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify(body),
  });
  await response.arrayBuffer();
  return response.status;
}

beforeAll(async () => {
  prepare();
  server = start(['serve', 'demo', '--port', '0', '--log-level', 'error'], {});
  url = /http:\/\/[^ ]+:\d+/.exec(await server.until('/v1'))![0];
  pid = server.process.pid!;
  // Compiles the code and the chat template.
  const messages = [{ role: 'user', content: 'hi' }];
  for (let i = 0; i < 3; i++) await post(CHAT, { messages, max_tokens: 1 });
  await post(CHAT, { messages, max_tokens: 1, x: 'x'.repeat(300_000) });
});
afterAll(() => server.process.kill());

test.each(HOSTILE_BODIES)('$name', async ({ path, body, status }) => {
  const before = mainThreadMs();
  expect(await post(path, body)).toBe(status);
  expect(mainThreadMs() - before).toBeLessThan(MAX_MS);
});
