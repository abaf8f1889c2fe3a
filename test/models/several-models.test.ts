/** A model that chats, one with an adapter, one that embeds and one that reranks, in one `capstan serve`. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import OpenAI from 'openai';
import { Engine } from '../../ts';
import { killAll, prepare, type Running, startServer } from '../fakes/server-process';
import { temporaryFolder } from '../fakes/temporary-folder';
import { freePort } from '../fakes/free-port';

const FIXTURES = join(__dirname, '../oracle/fixtures');
const LLAMA = join(FIXTURES, 'llama3-f32');
const EMBEDDER = join(FIXTURES, 'embeddings/bert-mean-f32');
const RERANKER = join(FIXTURES, 'embeddings/bert-rerank-f32');
const LORA = join(FIXTURES, 'lora/llama-all');
const QUESTION = { messages: [{ role: 'user' as const, content: 'What is Capstan?' }], max_tokens: 8 };

let server: Running & { url: string };
let admin: string;
let client: OpenAI;

beforeAll(async () => {
  prepare();
  const adminPort = await freePort();
  const config = join(temporaryFolder('several'), 'server.yaml');
  writeFileSync(
    config,
    `threads: 1
models:
  chat: {model: demo, aliases: [fast], pinned: true}
  llama: {model: ${LLAMA}, lora-modules: [sql=${LORA}]}
  embed: {model: ${EMBEDDER}}
  rerank: {model: ${RERANKER}}
`,
  );
  server = await startServer(['--config', config, '--admin-port', String(adminPort), '--alias', 'ranker=rerank'], {});
  admin = `http://127.0.0.1:${adminPort}`;
  client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'any', maxRetries: 0 });
});
afterAll(killAll);

const post = async (url: string, body?: object) => {
  const response = await fetch(url, {
    method: 'POST',
    ...(body === undefined ? {} : { headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) }),
  });
  const text = await response.text();
  return { status: response.status, json: text === '' ? undefined : (JSON.parse(text) as any) };
};
const states = async (): Promise<Record<string, string>> => {
  const { data } = await client.models.list();
  return Object.fromEntries(data.map((model: any) => [model.id, model.status.value]));
};

test('the start lists the models', async () => {
  const { stdout } = server.output();
  expect(stdout).toMatch(/^Capstan \S+ serves 4 models in \S+ .iB of memory: http:/);
  expect(stdout).toContain('  chat: generate, loaded, about ');
  expect(stdout).toContain('  embed: embed, unloaded, about ');
  expect(await states()).toEqual({
    chat: 'loaded',
    fast: 'loaded',
    llama: 'unloaded',
    sql: 'unloaded',
    embed: 'unloaded',
    rerank: 'unloaded',
    ranker: 'unloaded',
  });
});

test('each task reaches its model, with the results of the model alone', async () => {
  const chat = await client.chat.completions.create({ ...QUESTION, model: 'fast' });
  expect(chat.choices[0].message.content).toContain('Capstan');
  const embedder = await Engine.load(EMBEDDER, { threads: 1 });
  const { embeddings } = await embedder.embed(['one', 'two']);
  await embedder.close();
  const response = await client.embeddings.create({ model: 'embed', input: ['one', 'two'], encoding_format: 'float' });
  expect(response.data.map(({ embedding }) => embedding)).toEqual(embeddings.map((values) => [...values]));
  const reranker = await Engine.load(RERANKER, { threads: 1 });
  const { scores } = await reranker.rerank('one', ['two', 'three']);
  await reranker.close();
  const ranked = await post(`${server.url}/v1/rerank`, { model: 'ranker', query: 'one', documents: ['two', 'three'] });
  const byIndex = ranked.json.results.toSorted((a: any, b: any) => a.index - b.index);
  expect(byIndex.map((result: any) => result.relevance_score)).toEqual(scores);
  expect((await states()).llama).toBe('unloaded');
});

test('an adapter is a name of its model, before and after sleep', async () => {
  const complete = async (model: string) =>
    (
      await post(`${server.url}/v1/completions`, {
        model,
        prompt: [5, 6, 7],
        max_tokens: 8,
        temperature: 0,
        return_token_ids: true,
      })
    ).json.choices[0].token_ids as number[];
  const [plain, adapted] = [await complete('llama'), await complete('sql')];
  const engine = await Engine.load(LLAMA, { threads: 1, loraModules: { sql: LORA } });
  const expected = async (adapter?: string) => {
    const options = { maxTokens: 8, temperature: 0, ...(adapter === undefined ? {} : { adapter }) };
    return [...(await engine.generate([5, 6, 7], options).result()).choices[0].tokenIds];
  };
  expect([plain, adapted]).toEqual([await expected(), await expected('sql')]);
  await engine.close();
  expect((await post(`${admin}/sleep?model=sql`)).status).toBe(200);
  expect((await states()).sql).toBe('sleeping');
  expect(await complete('sql')).toEqual(adapted);
});

test('models sleep and wake while others serve', async () => {
  const stream = await client.chat.completions.create({ ...QUESTION, model: 'chat', stream: true });
  expect((await post(`${admin}/sleep`)).status).toBe(200);
  let numChunks = 0;
  for await (const _chunk of stream) numChunks++;
  expect(numChunks).toBeGreaterThan(1);
  expect(await states()).toMatchObject({ chat: 'loaded', embed: 'sleeping', rerank: 'sleeping' });
  expect((await post(`${admin}/models/load`, { model: 'embed' })).json).toEqual({ success: true });
  expect(await states()).toMatchObject({ embed: 'loaded', rerank: 'sleeping' });
  expect((await fetch(`${admin}/health`)).status).toBe(200);
  const metrics = await (await fetch(`${admin}/metrics`)).text();
  expect(metrics).toContain('capstan_model_state{model_name="rerank",state="sleeping"} 1');
});

test('a signal drains and ends the server', async () => {
  server.process.kill('SIGTERM');
  expect(await server.exited).toEqual([0, null]);
});
