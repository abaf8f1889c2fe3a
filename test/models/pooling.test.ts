/** Embeddings, rankings and scores of real engines with random models, through `capstan serve`. */
import OpenAI from 'openai';
import { Engine } from '../../ts';
import { randomEmbedder, randomReranker } from '../fakes/random-models';
import { killAll, prepare, type Running, startServer, TRANSPORTS } from '../fakes/server-process';

const TEXTS = ['What is Capstan?', 'what is capstan', 'Ein Größenwahn 😀', 'zzz'];

beforeAll(() => void prepare());
afterAll(killAll);

async function post(url: string, path: string, body: object): Promise<{ status: number; json: any }> {
  const response = await fetch(url + path, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify(body),
  });
  return { status: response.status, json: await response.json() };
}

describe.each(TRANSPORTS)('an embedding model over %s', (transport) => {
  const folder = randomEmbedder();
  let server: Running & { url: string };
  let client: OpenAI;

  beforeAll(async () => {
    server = await startServer([folder, '--served-model-name', 'tiny', '--http-transport', transport], {});
    client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'any', maxRetries: 0 });
  });

  test('prints its task and a request to try', () => {
    const { stdout } = server.output();
    expect(stdout).toContain(
      'Task: embed (/v1/embeddings, /v1/rerank and /v1/score), 64 values, prompts query, document',
    );
    expect(stdout).toMatch(/curl \S+\/v1\/embeddings /);
  });

  test('the official client, which asks for base64, gets the embeddings of the library', async () => {
    const engine = await Engine.load(folder);
    const { embeddings, usage } = await engine.embed(TEXTS);
    for (const format of [undefined, 'base64', 'float'] as const) {
      const response = await client.embeddings.create({
        model: 'tiny',
        input: TEXTS,
        ...(format === undefined ? {} : { encoding_format: format }),
      });
      const received = response.data.map(({ embedding }: { embedding: unknown }) =>
        typeof embedding === 'string'
          ? [...new Float32Array(Uint8Array.from(Buffer.from(embedding, 'base64')).buffer)]
          : embedding,
      );
      expect(received).toEqual(embeddings.map((values) => [...values]));
      expect(response.usage.prompt_tokens).toBe(usage.promptTokens);
    }
    await engine.close();
  });

  test('token ids, prompts, dimensions and truncation', async () => {
    const [text, ids] = await Promise.all([
      client.embeddings.create({ model: 'tiny', input: 'ab' }),
      client.embeddings.create({ model: 'tiny', input: [97, 98] }),
    ]);
    expect(text.data[0].embedding).toEqual(ids.data[0].embedding);
    const embed = async (fields: object) => (await post(server.url, '/v1/embeddings', { input: 'ab', ...fields })).json;
    const [prompted, written] = [await embed({ prompt_name: 'query' }), await embed({ input: 'query: ab' })];
    expect(prompted.data).toEqual(written.data);
    const short: number[] = (await embed({ dimensions: 7 })).data[0].embedding;
    expect([short.length, Math.hypot(...short)]).toEqual([7, expect.closeTo(1, 5)]);
    expect((await embed({ input: 'x'.repeat(900), truncate_prompt_tokens: -1 })).usage.prompt_tokens).toBe(512);
    const [raw, unit]: number[][] = [
      (await embed({ normalize: false })).data[0].embedding,
      (await embed({})).data[0].embedding,
    ];
    const length = Math.hypot(...raw);
    expect(unit).toEqual(raw.map((value) => expect.closeTo(value / length, 5)));
  });

  test('2,048 inputs in one request equal those of concurrent requests', async () => {
    const input = Array.from({ length: 2_048 }, (_, i) => `text ${i}`.repeat(1 + (i % 3)));
    const all = await client.embeddings.create({ model: 'tiny', input });
    // More would exceed the limit of waiting sequences, which is 1,024.
    const parts = await Promise.all(
      Array.from({ length: 24 }, (_, i) =>
        client.embeddings.create({ model: 'tiny', input: input.slice(32 * i, 32 * i + 32) }),
      ),
    );
    const vectors = (response: OpenAI.CreateEmbeddingResponse) => response.data.map(({ embedding }) => embedding);
    expect(vectors(all).slice(0, 24 * 32)).toEqual(parts.flatMap(vectors));
  });

  test('ranks and scores by the cosine', async () => {
    const { json } = await post(server.url, '/v2/rerank', {
      query: TEXTS[0],
      documents: [...TEXTS].reverse(),
      top_n: 2,
    });
    expect(json.results[0]).toEqual({
      index: 3,
      document: { text: TEXTS[0] },
      relevance_score: expect.closeTo(1, 5),
    });
    expect(json.results).toHaveLength(2);
    const scores = await post(server.url, '/v1/score', { queries: TEXTS[0], documents: TEXTS });
    expect(scores.json.data.map(({ score }: { score: number }) => score)[0]).toBeCloseTo(1, 5);
  });

  test.each<[path: string, body: object, code: string, param: string]>([
    ['/v1/embeddings', { input: 'x'.repeat(600) }, 'context_length_exceeded', 'input'],
    ['/v1/embeddings', { input: ['a', 'x'.repeat(2_000_000)] }, 'context_length_exceeded', 'input'],
    ['/v1/embeddings', { input: [[1], [99_999]] }, 'invalid_value', 'input'],
    ['/v1/embeddings', { input: 'a', dimensions: 65 }, 'invalid_value', 'dimensions'],
    ['/v1/embeddings', { input: 'a', prompt_name: 'passage' }, 'invalid_value', 'prompt_name'],
    ['/v1/embeddings', { input: 'a', truncate_prompt_tokens: 513 }, 'invalid_value', 'truncate_prompt_tokens'],
    ['/rerank', { query: 'a', documents: ['b', 'x'.repeat(600)] }, 'context_length_exceeded', 'documents'],
    ['/rerank', { query: 'a', documents: ['x'.repeat(2_000_000)] }, 'context_length_exceeded', 'documents'],
    ['/score', { text_1: 'a', text_2: 'x'.repeat(600) }, 'context_length_exceeded', 'text_2'],
    ['/v1/chat/completions', { messages: [{ role: 'user', content: 'a' }] }, 'unsupported_task', 'model'],
    ['/v1/completions', { prompt: 'a' }, 'unsupported_task', 'model'],
  ])('refuses a request to %s, %#', async (path, body, code, param) => {
    const { status, json } = await post(server.url, path, body);
    expect([status, json.error.code, json.error.param]).toEqual([400, code, param]);
    expect(json.error.message).not.toMatch(/inputs|pairs|truncatePromptTokens|promptName/);
  });

  test('a client that leaves ends the computation', async () => {
    const metric = async (name: string): Promise<number> => {
      const text = await (await fetch(`${server.url}/metrics`)).text();
      return Number(new RegExp(`^${name.replace(/[{}]/g, '\\$&')} (\\d+)$`, 'm').exec(text)?.[1] ?? 0);
    };
    const finished = 'capstan_sequences_finished_total{reason="stop"}';
    const numBefore = await metric(finished);
    const until = async (isTrue: () => Promise<boolean>): Promise<void> => {
      while (!(await isTrue())) await new Promise((resolve) => setImmediate(resolve));
    };
    const leaving = new AbortController();
    const pending = client.embeddings.create(
      { model: 'tiny', input: Array<string>(2_048).fill('x'.repeat(500)) },
      { signal: leaving.signal },
    );
    // An encoder computes an input in one step, so none is running between two steps.
    await until(async () => (await metric('capstan_sequences_waiting')) > 0);
    leaving.abort();
    await expect(pending).rejects.toThrow('aborted');
    await until(async () => (await metric('capstan_client_aborts_total{handler="/v1/embeddings"}')) === 1);
    await until(async () => (await metric('capstan_sequences_waiting')) === 0);
    expect((await metric(finished)) - numBefore).toBeLessThan(2_048);
  });

  test('reports health, metrics and its task', async () => {
    expect((await fetch(`${server.url}/health`)).status).toBe(200);
    const metrics = await (await fetch(`${server.url}/metrics`)).text();
    expect(metrics).toMatch(/^capstan_model_info\{model_name="tiny",task="embed",/m);
    expect(Number(/^capstan_prompt_tokens_total (\d+)$/m.exec(metrics)![1])).toBeGreaterThan(2_048);
    const { data } = (await (await fetch(`${server.url}/v1/models`)).json()) as { data: { meta: object }[] };
    expect(data[0].meta).toEqual({ task: 'embed', embedding_size: 64, prompt_names: ['query', 'document'] });
  });
});

test('a reranker gives the scores of the library, and has no embeddings', async () => {
  const folder = randomReranker();
  const [server, engine] = await Promise.all([startServer([folder], {}), Engine.load(folder)]);
  const { scores } = await engine.rerank(TEXTS[0], TEXTS);
  const { json } = await post(server.url, '/v1/rerank', { query: TEXTS[0], documents: TEXTS });
  const byIndex = [...json.results].sort((a, b) => a.index - b.index);
  expect(byIndex.map((result) => result.relevance_score)).toEqual(scores);
  const pairs = await post(server.url, '/v1/score', { text_1: TEXTS[0], text_2: TEXTS });
  expect(pairs.json.data.map(({ score }: { score: number }) => score)).toEqual(scores);
  expect((await post(server.url, '/v1/embeddings', { input: 'a' })).json.error.code).toBe('unsupported_task');
  await engine.close();
});

test('a generative model embeds with --task embed', async () => {
  const server = await startServer(['demo', '--task', 'embed'], {});
  const { status, json } = await post(server.url, '/v1/embeddings', { input: ['a', 'b'] });
  expect([status, json.data[0].embedding.length]).toEqual([200, 256]);
});
