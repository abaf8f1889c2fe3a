/** A request may not hold the main thread, whatever its body. */
import { readFileSync } from 'node:fs';
import { prepare, start } from '../fakes/server-process';

/** Processor time of the main thread that one request may take. */
const MAX_MS = 100;
const USER = [{ role: 'user', content: 'hi' }];

const repeat = <T>(count: number, item: (i: number) => T): T[] => Array.from({ length: count }, (_, i) => item(i));
const manyProperties = (count: number) => ({
  type: 'object',
  properties: Object.fromEntries(repeat(count, (i) => [`p${i}`, { type: 'string' }])),
});
const toolWith = (parameters: unknown) => [{ type: 'function', function: { name: 'f', parameters } }];
const jsonSchema = (schema: unknown) => ({ type: 'json_schema', json_schema: { name: 'n', schema } });

/** Each with the status of its answer. */
const BODIES: [name: string, body: object, status: number][] = [
  ['65,535 messages', { messages: repeat(65_535, () => ({ role: 'user', content: 'a' })) }, 400],
  ['messages below 256 KB', { messages: repeat(8_000, () => ({ role: 'user', content: 'a' })) }, 400],
  ['65,535 parts', { messages: [{ role: 'user', content: repeat(65_535, () => ({ type: 'text', text: 'a' })) }] }, 400],
  ['16 MB of text', { messages: [{ role: 'user', content: 'abc '.repeat(4e6) }] }, 400],
  ['16 MB of text in a prompt', { prompt: 'abc '.repeat(4e6) }, 400],
  ['5,000,000 token ids in a prompt', { prompt: Array(5_000_000).fill(1) }, 400],
  ['a tool with 130,000 properties', { messages: USER, tools: toolWith(manyProperties(130_000)) }, 400],
  ['a tool below 256 KB', { messages: USER, tools: toolWith(manyProperties(7_000)), tool_choice: 'required' }, 400],
  ['a schema with 130,000 properties', { messages: USER, response_format: jsonSchema(manyProperties(130_000)) }, 400],
  ['an enum of 100,000 values', { messages: USER, response_format: jsonSchema({ enum: repeat(1e5, String) }) }, 400],
  ['500,000 unknown objects', { messages: USER, max_tokens: 1, x: repeat(500_000, () => ({ a: 1 })) }, 200],
  ['300,000 template variables', { messages: USER, chat_template_kwargs: { x: repeat(3e5, (i) => ({ i })) } }, 400],
];

let url: string;
let pid: number;
let server: ReturnType<typeof start>;

function mainThreadMs(): number {
  return Number(readFileSync(`/proc/${pid}/task/${pid}/schedstat`, 'utf8').split(' ')[0]) / 1e6;
}

async function post(body: object): Promise<number> {
  const path = 'prompt' in body ? 'completions' : 'chat/completions';
  const response = await fetch(`${url}/v1/${path}`, {
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
  for (let i = 0; i < 3; i++) await post({ messages: USER, max_tokens: 1 });
  await post({ messages: USER, max_tokens: 1, x: 'x'.repeat(300_000) });
});
afterAll(() => server.process.kill());

test.each(BODIES)('%s', async (_name, body, status) => {
  const before = mainThreadMs();
  expect(await post(body)).toBe(status);
  expect(mainThreadMs() - before).toBeLessThan(MAX_MS);
});
