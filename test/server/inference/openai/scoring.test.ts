/** POST /rerank and /score: the shapes of vLLM, Jina and Cohere, all names of the fields, limits and errors. */
import { CapstanError, type Engine } from '../../../../ts';
import type { App } from '../../../../server/inference/app';
import { MAX_DOCUMENTS } from '../../../../server/inference/openai/pooling-schema';
import { loadPoolingEngine, pooling } from '../../../fakes/pooling-engine';
import { errorOf, keysOf, loadEngine, makeApp, type MemoryReply, post } from './support';

const RERANK_PATHS = ['/rerank', '/v1/rerank', '/v2/rerank'];
const SCORE_PATHS = ['/score', '/v1/score'];
const DOCUMENTS = ['zzz', 'hello', 'hell', ' help! '];

let engine: Engine;
let app: App;

beforeAll(async () => {
  engine = await loadPoolingEngine('score', { maxModelLen: 512 });
  app = makeApp(engine);
});
beforeEach(() => pooling.reset());
afterAll(() => engine.close());

const rerank = (body: object): Promise<MemoryReply> =>
  post(app, '/rerank', { query: 'hello', documents: DOCUMENTS, ...body });
const score = (body: object): Promise<MemoryReply> => post(app, '/score', body);
const indicesOf = ({ json }: MemoryReply): number[] => json.results.map(({ index }: { index: number }) => index);

describe.each(RERANK_PATHS)('%s', (path) => {
  test('sorts documents, with the keys of vLLM, and the usage as Cohere has it', async () => {
    const reply = await post(app, path, { model: 'tiny', query: 'hello', documents: DOCUMENTS });
    expect(reply.status).toBe(200);
    const { id, results, ...rest } = reply.json;
    expect(keysOf(reply.json)).toBe('id model usage results meta');
    expect(id).toBe(`rerank-${reply.headers['X-Request-Id']}`);
    const numTokens = 4 * 5 + DOCUMENTS.join('').length;
    expect(rest).toEqual({
      model: 'tiny',
      usage: { prompt_tokens: numTokens, total_tokens: numTokens },
      meta: { tokens: { input_tokens: numTokens } },
    });
    expect(keysOf(results[0])).toBe('index document relevance_score');
    expect(results[0]).toEqual({ index: 1, document: { text: 'hello' }, relevance_score: expect.closeTo(1, 5) });
    const scores: number[] = results.map((result: any) => result.relevance_score);
    expect(scores).toEqual([...scores].sort((a, b) => b - a));
    expect([...indicesOf(reply)].sort()).toEqual([0, 1, 2, 3]);
  });
});

describe('rerank', () => {
  test('top_n and return_documents', async () => {
    expect(indicesOf(await rerank({ top_n: 2 }))).toHaveLength(2);
    expect(indicesOf(await rerank({ top_n: 0 }))).toHaveLength(4);
    expect(indicesOf(await rerank({ top_n: 99 }))).toHaveLength(4);
    const { json } = await rerank({ return_documents: false, top_n: 1 });
    expect(json.results).toEqual([{ index: 1, relevance_score: expect.any(Number) }]);
  });

  test('documents as objects, and equal scores in order', async () => {
    const reply = await rerank({ query: { text: 'a' }, documents: [{ text: 'b', title: 'x' }, 'a', { text: 'a' }] });
    expect(indicesOf(reply)).toEqual([1, 2, 0]);
    expect(reply.json.results[2].document).toEqual({ text: 'b' });
  });

  test.each<[fields: object, code: string, param: string]>([
    [{ query: undefined }, 'missing_required_parameter', 'query'],
    [{ query: '' }, 'invalid_value', 'query'],
    [{ query: ['a'] }, 'invalid_type', 'query'],
    [{ documents: undefined }, 'missing_required_parameter', 'documents'],
    [{ documents: [] }, 'invalid_value', 'documents'],
    [{ documents: 'a' }, 'invalid_type', 'documents'],
    [{ documents: ['a', 5] }, 'invalid_type', 'documents[1]'],
    [{ documents: ['a', ''] }, 'invalid_value', 'documents[1]'],
    [{ documents: [{ body: 'a' }] }, 'missing_required_parameter', 'documents[0].text'],
    [{ documents: [{ text: '' }] }, 'invalid_value', 'documents[0].text'],
    [{ documents: Array(MAX_DOCUMENTS + 1).fill('a') }, 'invalid_value', 'documents'],
    [{ query: 'x'.repeat(5000), documents: Array(2000).fill('a') }, 'invalid_value', 'documents'],
    [{ documents: ['x'.repeat(600)] }, 'context_length_exceeded', 'documents'],
    [{ top_n: -1 }, 'invalid_value', 'top_n'],
    [{ top_n: 1.5 }, 'invalid_type', 'top_n'],
    [{ return_documents: 'yes' }, 'invalid_type', 'return_documents'],
    [{ max_tokens_per_doc: 100 }, 'unsupported_value', 'max_tokens_per_doc'],
    [{ rank_fields: ['title'] }, 'unsupported_value', 'rank_fields'],
    [{ use_activation: false }, 'unsupported_value', 'use_activation'],
    [{ truncate_prompt_tokens: 'x' }, 'invalid_type', 'truncate_prompt_tokens'],
  ])('refuses wrong fields, %#', async (fields, code, param) => {
    expect(errorOf(await rerank(fields))).toEqual({ status: 400, type: 'invalid_request_error', code, param });
  });

  test('truncates long documents on request', async () => {
    const reply = await rerank({ documents: ['x'.repeat(600)], truncate_prompt_tokens: -1 });
    expect([reply.status, pooling.requests[0].options.truncatePromptTokens]).toEqual([200, -1]);
  });
});

describe.each(SCORE_PATHS)('%s', (path) => {
  test('has the keys of vLLM', async () => {
    const reply = await post(app, path, { queries: 'ab', documents: 'ab', request_id: 'mine' });
    const { created, ...rest } = reply.json;
    expect(keysOf(reply.json)).toBe('id object created model data usage');
    expect(Math.abs(created - Date.now() / 1000)).toBeLessThan(5);
    expect(rest).toEqual({
      id: 'score-mine',
      object: 'list',
      model: 'tiny',
      data: [{ index: 0, object: 'score', score: expect.closeTo(1, 5) }],
      usage: { prompt_tokens: 4, total_tokens: 4, completion_tokens: 0, prompt_tokens_details: null },
    });
  });
});

describe('score', () => {
  test.each<[name: string, body: object, pairs: [string, string][]]>([
    ['one pair', { text_1: 'a', text_2: 'b' }, [['a', 'b']]],
    [
      'one for all',
      { queries: 'a', documents: ['b', 'c'] },
      [
        ['a', 'b'],
        ['a', 'c'],
      ],
    ],
    [
      'a list of one for all',
      { queries: ['a'], items: ['b', { text: 'c' }] },
      [
        ['a', 'b'],
        ['a', 'c'],
      ],
    ],
    [
      'pairs',
      { data_1: ['a', 'b'], data_2: ['c', 'd'] },
      [
        ['a', 'c'],
        ['b', 'd'],
      ],
    ],
    ['null for the other names', { text_1: 'a', text_2: ['b'], queries: null, documents: null }, [['a', 'b']]],
  ])('%s', async (_name, body, pairs) => {
    const reply = await score(body);
    expect(reply.status).toBe(200);
    expect(pooling.requests.map(({ inputs }) => inputs)).toEqual([pairs]);
    expect(reply.json.data.map(({ index }: { index: number }) => index)).toEqual(pairs.map((_, i) => i));
  });

  test.each<[body: object, code: string, param: string]>([
    [{}, 'missing_required_parameter', 'queries'],
    [{ queries: 'a' }, 'missing_required_parameter', 'documents'],
    [{ documents: 'a' }, 'missing_required_parameter', 'queries'],
    [{ text_2: 'a' }, 'missing_required_parameter', 'text_1'],
    [{ text_1: 'a', documents: 'b' }, 'missing_required_parameter', 'queries'],
    [{ text_1: 'a', text_2: 'b', queries: 'c' }, 'invalid_value', 'queries'],
    [{ queries: ['a', 'b'], documents: ['c'] }, 'invalid_value', 'queries'],
    [{ queries: ['a', 'b'], documents: 'c' }, 'invalid_value', 'queries'],
    [{ queries: 'a', documents: [] }, 'invalid_value', 'documents'],
    [{ queries: 'a', documents: 5 }, 'invalid_type', 'documents'],
    [{ queries: '', documents: 'a' }, 'invalid_value', 'queries'],
    [{ queries: 'a', documents: ['b', ''] }, 'invalid_value', 'documents[1]'],
    [{ text_1: 'a', text_2: Array(MAX_DOCUMENTS + 1).fill('b') }, 'invalid_value', 'text_2'],
    [{ queries: 'a', documents: Array(9).fill('x'.repeat(2 ** 20)) }, 'invalid_value', 'documents'],
    [{ text_1: 'a', text_2: 'x'.repeat(600) }, 'context_length_exceeded', 'text_2'],
    [{ queries: 'a', documents: 'b', softmax: false }, 'unsupported_value', 'softmax'],
  ])('refuses wrong fields, %#', async (body, code, param) => {
    expect(errorOf(await score(body))).toEqual({ status: 400, type: 'invalid_request_error', code, param });
  });
});

describe('models of other tasks', () => {
  test('an embedding model scores by the cosine', async () => {
    const embedder = await loadPoolingEngine('embed');
    const embeddings = makeApp(embedder);
    const [a, b] = (await post(embeddings, '/v1/embeddings', { input: ['hello', 'help'] })).json.data.map(
      ({ embedding }: { embedding: number[] }) => embedding,
    );
    const cosine = a.reduce((sum: number, value: number, i: number) => sum + value * b[i], 0);
    const { data } = (await post(embeddings, '/score', { queries: 'hello', documents: 'help' })).json;
    expect(data[0].score).toBeCloseTo(cosine, 5);
    await embedder.close();
  });

  test.each([...RERANK_PATHS, ...SCORE_PATHS])('a generative model has no %s', async (path) => {
    const generative = await loadEngine();
    const reply = await post(makeApp(generative), path, {});
    expect(errorOf(reply)).toMatchObject({ status: 400, code: 'unsupported_task', param: 'model' });
    expect(reply.json.error.message).toContain(`expected a model with the task score or embed for ${path}`);
    await generative.close();
  });
});

test('tokens for limits, the salt of the owner, and usage for the gateway', async () => {
  const done = jest.fn();
  const guarded = makeApp(engine, {
    access: { check: () => ({ ok: true, keyId: 'key_1', ownerId: 'own_1', done }) as never },
    replicaSecret: 'secret',
  });
  const headers: [string, string][] = [['x-capstan-replica-secret', 'secret']];
  const ranked = await post(guarded, '/rerank', { query: 'ab', documents: ['c', 'd'] }, { headers });
  const scored = await post(guarded, '/score', { queries: 'ab', documents: ['c', 'd'] }, { headers });
  for (const reply of [ranked, scored]) expect(reply.headers['X-Capstan-Usage']).toBe('prompt=6;completion=0;cached=0');
  expect(done.mock.calls.filter(([tokens]) => tokens === 6)).toHaveLength(2);
  expect(pooling.requests.map(({ options }) => options.cacheSalt)).toEqual(['own_1/', 'own_1/']);
});

test('a call that fails counts the tokens that it computed', async () => {
  const done = jest.fn();
  const guarded = makeApp(engine, {
    access: { check: () => ({ ok: true, keyId: 'key_1', ownerId: 'own_1', done }) as never },
  });
  pooling.numTokensBefore = 5;
  pooling.failure = new CapstanError('numeric_error', 'the model computed NaN');
  await post(guarded, '/rerank', { query: 'ab', documents: ['c'] });
  await post(guarded, '/score', { queries: 'ab', documents: ['c'] });
  expect(done.mock.calls.filter(([tokens]) => tokens === 5)).toHaveLength(2);
});

test.each<[param: string, body: object, clientParam: string, message: string]>([
  ['pairs[1][0]', { text_1: ['a', 'b'], text_2: ['c', 'd'] }, 'text_1', 'text_1[1]: too long'],
  ['pairs[1][0]', { queries: 'a', documents: ['c', 'd'] }, 'queries', 'queries: too long'],
  ['pairs[1][1]', { queries: 'a', items: ['c', 'd'] }, 'items', 'items[1]: too long'],
  ['pairs[1]', { queries: 'a', documents: ['c', 'd'] }, 'documents', 'queries and documents[1] together: too long'],
])('a text of %s that is too long, by the names of the request', async (param, body, clientParam, message) => {
  pooling.failure = new CapstanError('context_length_exceeded', `${param}: too long`, { param });
  const { error } = (await score(body)).json;
  expect([error.param, error.message]).toEqual([clientParam, message]);
});

test('the query of a ranking that is too long', async () => {
  pooling.failure = new CapstanError('context_length_exceeded', 'query: too long', { param: 'query' });
  expect((await rerank({})).json.error).toMatchObject({ param: 'query', message: 'query: too long' });
  const together = 'query and documents[2] together: too long';
  pooling.failure = new CapstanError('context_length_exceeded', together, { param: 'documents[2]' });
  expect((await rerank({})).json.error).toMatchObject({ param: 'documents', message: together });
});

test('a fault of the engine', async () => {
  pooling.failure = new CapstanError('queue_full', 'The queue is full');
  expect(errorOf(await rerank({}))).toMatchObject({ status: 429, code: 'queue_full' });
  expect(errorOf(await score({ queries: 'a', documents: 'b' }))).toMatchObject({ status: 429, code: 'queue_full' });
});
