/** Checks the OpenAPI document against the routes, requests and real responses of the app with the fake engine. */
import Ajv2020, { type ValidateFunction } from 'ajv/dist/2020';
import addFormats from 'ajv-formats';
import { Engine } from '../../../../ts';
import type { Access } from '../../../../server/access';
import { App } from '../../../../server/inference/app';
import { ApiError } from '../../../../server/base/errors';
import type { HttpRequest } from '../../../../server/http/transport';
import { MemoryResponseStore } from '../../../../server/storage/responses/store';
import { Metrics } from '../../../../server/inference/metrics/metrics';
import { OPENAI_ROUTES } from '../../../../server/inference/openai/routes';
import { type OpenedBatches, openBatches } from '../../../../server/inference/batches/open-batches';
import { defaultServeOptions } from '../../../../server/inference/serve-options';
import { openApiDocument } from '../../../../server/inference/openapi/document';
import { OPERATIONS } from '../../../../server/inference/openapi/operations';
import { openApiRoute } from '../../../../server/inference/openapi/route';
import { fake } from '../../../fakes/fake-addon';
import { exchange, type MemoryReply } from '../../../fakes/memory-exchange';
import { loadPoolingEngine } from '../../../fakes/pooling-engine';
import { temporaryFolder } from '../../../fakes/temporary-folder';
import { TINY_TEMPLATE, tinyModel } from '../../../fakes/tiny-model';

const log = { debug: jest.fn(), info: jest.fn(), warn: jest.fn(), error: jest.fn() };
const CHAT = '/v1/chat/completions';
const COMPLETIONS = '/v1/completions';
const RESPONSES = '/v1/responses';
const ANTHROPIC = ['/v1/messages', '/v1/messages/count_tokens'];
const MESSAGES = [{ role: 'user', content: 'Hi' }];
const TOOLS = [{ type: 'function', function: { name: 'f', parameters: { type: 'object', properties: {} } } }];

let engine: Engine;
let batches: OpenedBatches;
let embedder: Engine;
let app: App;
let embeddingApp: App;
let document: any;

beforeAll(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../../../fakes/fake-addon');
  engine = await Engine.load(tinyModel());
  const options = { ...defaultServeOptions({}), dataDir: temporaryFolder('openapi') };
  batches = await openBatches(options, undefined, log as never);
  app = makeApp();
  app.serve(engine);
  batches.serve(app, () => [{ engine }]);
  embedder = await loadPoolingEngine('embed');
  embeddingApp = makeApp();
  embeddingApp.serve(embedder);
  document = (await exchange(app, '/openapi.json')).json;
});
beforeEach(() => {
  fake.reset();
  fake.answer = () => ({ text: 'Hello 😀.' });
});
afterAll(async () => {
  await batches.close();
  await engine.close();
  await embedder.close();
});

function makeApp(access?: Pick<Access, 'check'>): App {
  const metrics = new Metrics({ compat: 'none' });
  const made: App = new App({
    servedNames: ['tiny', 'org/alias'],
    healthStallTimeoutMs: 1000,
    sse: { pingIntervalMs: 15_000, slowClientTimeoutMs: 60_000 },
    log: log as never,
    responses: new MemoryResponseStore({ maxBytes: 1_000_000, ttlMs: 60_000 }),
    routes: [metrics.route, ...batches.routes, openApiRoute(() => made.routes, access !== undefined)],
    ...(access === undefined ? {} : { access }),
  });
  return made;
}

const compilers = new WeakMap<object, (schema: object) => ValidateFunction>();

/** Compiles each schema of a document once. */
function validators(of: any): (schema: object) => ValidateFunction {
  const known = compilers.get(of);
  if (known !== undefined) return known;
  const ajv = new Ajv2020({ strict: false, allErrors: true });
  addFormats(ajv);
  ajv.addSchema(of, 'document');
  // All references are internal.
  const compiled = new Map<object, ValidateFunction>();
  const compile = (schema: object) => {
    const validate =
      compiled.get(schema) ?? ajv.compile(JSON.parse(JSON.stringify(schema).replaceAll('"#/', '"document#/')));
    compiled.set(schema, validate);
    return validate;
  };
  compilers.set(of, compile);
  return compile;
}

/** Returns the schema of the data of an event. */
function contentSchemas(schema: any): any[] {
  return (schema.properties?.data?.anyOf ?? []).flatMap(({ contentSchema = [] }: any) => contentSchema);
}

/** Checks status, content type and body against the document. Returns the reply. */
function conforms(reply: MemoryReply, method: string, path: string, description = document): MemoryReply {
  const described = description.paths[path][method.toLowerCase()].responses[reply.status];
  if (described === undefined)
    throw new Error(`${method} ${path} answers ${reply.status}, which is not described: ${reply.text}`);
  const compile = validators(description);
  const check = (schema: object, value: unknown) => {
    const validate = compile(schema);
    if (!validate(value))
      throw new Error(
        `${method} ${path} ${reply.status}: ${JSON.stringify(validate.errors)} in ${JSON.stringify(value)}`,
      );
  };
  const mediaType = reply.headers['Content-Type']?.split(';')[0];
  if (described.content === undefined) {
    expect([mediaType, reply.text]).toEqual([undefined, '']);
    return reply;
  }
  expect(Object.keys(described.content)).toContain(mediaType);
  if (mediaType === 'application/json') check(described.content[mediaType].schema, reply.json);
  if (mediaType === 'text/event-stream') {
    const { events } = reply;
    if (path !== RESPONSES && !ANTHROPIC.includes(path)) expect(events.pop()).toBe('[DONE]');
    const [chunk, error] = contentSchemas(described.content[mediaType].schema);
    for (const event of events) check('error' in event ? error : chunk, event);
  }
  return reply;
}

/** Sends a request to an app with a model that the route works with. */
async function post(path: string, body: unknown, options: Partial<HttpRequest> = {}): Promise<MemoryReply> {
  const isEmbedding = OPENAI_ROUTES.some((route) => route.path === path && route.tasks?.includes('embed'));
  return conforms(await exchange(isEmbedding ? embeddingApp : app, path, body, options), 'POST', path);
}

describe('the document', () => {
  test('describes exactly the routes of the app', () => {
    const described = Object.entries<object>(document.paths).flatMap(([path, operations]) =>
      Object.keys(operations).map((method) => `${method.toUpperCase()} ${path}`),
    );
    expect(described.sort()).toEqual(app.routes.map(({ method, path }) => `${method} ${path}`).sort());
    for (const name of Object.keys(OPERATIONS)) expect(described).toContain(name);
    expect(() => openApiDocument([{ method: 'GET', path: '/new' }], { version: '1', hasAccess: false })).toThrow(
      'GET /new: expected an entry in OPERATIONS',
    );
  });

  test('is valid OpenAPI 3.1: unique ids, summaries, schemas that compile, resolvable references', () => {
    expect(document.openapi).toBe('3.1.0');
    const operations = Object.values<any>(document.paths).flatMap((path) => Object.values<any>(path));
    expect(new Set(operations.map(({ operationId }) => operationId)).size).toBe(operations.length);
    const compile = validators(document);
    for (const { summary, responses, requestBody } of operations) {
      expect(summary).toMatch(/\S/);
      for (const { description, content = {} } of [
        ...Object.values<any>(responses),
        ...(requestBody === undefined ? [] : [{ ...requestBody, description: 'x' }]),
      ]) {
        expect(description).toMatch(/\S/);
        for (const media of Object.values<any>(content))
          for (const schema of [media.schema, ...contentSchemas(media.schema)]) compile(schema);
      }
    }
    for (const schema of Object.values<object>(document.components.schemas)) compile(schema);
  });

  test('has valid examples that succeed', async () => {
    const compile = validators(document);
    for (const [path, { post: operation }] of Object.entries<any>(document.paths)) {
      const media = operation?.requestBody?.content['application/json'];
      for (const { value } of Object.values<any>(media?.examples ?? {})) {
        expect(compile(media.schema)(value)).toBe(true);
        expect((await post(path, value)).status).toBe(200);
      }
    }
  });

  test('allows null where the server does', async () => {
    const compile = validators(document);
    for (const [path, required] of [
      [CHAT, { messages: MESSAGES }],
      [COMPLETIONS, { prompt: 'a' }],
      [RESPONSES, { input: 'a' }],
      ['/v1/responses/input_tokens', { input: 'a' }],
      ['/v1/messages', { messages: MESSAGES, max_tokens: 5 }],
      ['/v1/messages/count_tokens', { messages: MESSAGES }],
      ['/tokenize', { prompt: 'a' }],
      ['/detokenize', { tokens: [1] }],
      ['/v1/embeddings', { input: 'a' }],
      ['/v1/rerank', { query: 'a', documents: ['b'] }],
      ['/v1/score', { queries: 'a', documents: 'b' }],
    ] as const) {
      const { schema } = document.paths[path].post.requestBody.content['application/json'];
      const nulls = Object.fromEntries(Object.keys(schema.properties).map((name) => [name, null]));
      expect(compile(schema)({ ...nulls, ...required })).toBe(true);
      expect((await post(path, { ...nulls, ...required })).status).toBe(200);
      const [field] = Object.keys(required);
      if (schema.required?.includes(field)) expect(compile(schema)(nulls)).toBe(false);
      expect((await post(path, nulls)).status).toBe(400);
    }
  });

  test('describes access control', () => {
    const guarded = openApiDocument(app.routes, { version: '1', hasAccess: true }) as any;
    expect(guarded.security).toEqual([{ accessKey: [] }]);
    expect(guarded.components.securitySchemes.accessKey).toMatchObject({ type: 'http', scheme: 'bearer' });
    expect([document.security, document.components.securitySchemes]).toEqual([undefined, undefined]);
    for (const path of Object.values<any>(guarded.paths))
      for (const { responses } of Object.values<any>(path))
        expect(Object.keys(responses)).toEqual(expect.arrayContaining(['401', '403', '429', '503']));
    expect(document.paths[CHAT].post.responses[401]).toBeUndefined();
  });
});

describe('responses', () => {
  test.each<[string, object]>([
    ['plain', {}],
    ['several choices with log-probabilities', { n: 2, temperature: 1, logprobs: true, top_logprobs: 2 }],
    [
      'token ids',
      { return_token_ids: true, return_prompt_text: true, return_tokens_as_token_ids: true, logprobs: true },
    ],
    ['log-probabilities of the prompt', { prompt_logprobs: 1 }],
    ['cut', { max_tokens: 2 }],
  ])('of a chat completion: %s', async (_name, fields) => {
    expect((await post(CHAT, { messages: MESSAGES, ...fields })).status).toBe(200);
    if ('prompt_logprobs' in fields) return;
    const { events } = await post(CHAT, {
      messages: MESSAGES,
      ...fields,
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
    });
    expect(events.length).toBeGreaterThan(4);
  });

  test('of a chat completion: tool calls', async () => {
    fake.answer = () => ({ text: 'So:\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>' });
    expect((await post(CHAT, { messages: MESSAGES, tools: TOOLS })).json.choices[0].message.tool_calls).toHaveLength(1);
    expect((await post(CHAT, { messages: MESSAGES, tools: TOOLS, stream: true })).text).toContain('"arguments":""');
    const custom = { messages: MESSAGES, tools: [{ type: 'custom', custom: { name: 'f' } }] };
    for (const fields of [{}, { stream: true }])
      expect((await post(CHAT, { ...custom, ...fields })).text).toContain('"custom":{"name":"f"');
  });

  test('of a chat completion: reasoning', async () => {
    const thinker = await Engine.load(
      tinyModel({
        'tokenizer_config.json': { eos_token: '<|im_end|>', chat_template: `{#- <think></think> #}${TINY_TEMPLATE}` },
      }),
    );
    const other = makeApp();
    other.serve(thinker);
    fake.answer = () => ({ text: '<think>\nhm\n</think>\n\nYes' });
    const { message } = conforms(await exchange(other, CHAT, { messages: MESSAGES }), 'POST', CHAT).json.choices[0];
    expect([message.reasoning, message.content]).toEqual(['hm', 'Yes']);
    const { events } = conforms(
      await exchange(other, CHAT, { messages: MESSAGES, stream: true, stream_options: { include_usage: true } }),
      'POST',
      CHAT,
    );
    expect(events.some((event) => event.choices?.[0]?.delta.reasoning_content?.includes('h'))).toBe(true);
    await thinker.close();
  });

  test('of a chat completion: a stop string, and a stream that ends with an error', async () => {
    fake.answer = () => ({ text: 'a', stopReason: 'b' });
    expect((await post(CHAT, { messages: MESSAGES, stop: 'b' })).json.choices[0].stop_reason).toBe('b');
    fake.answer = () => ({ text: 'a', stopReason: 7 });
    await post(CHAT, { messages: MESSAGES, stream: true });
    fake.answer = () => ({ text: 'so far', reason: 'error', errorCode: 'numeric_error' });
    expect(
      (await post(CHAT, { messages: MESSAGES, stream: true })).events.some(
        (event) => event.error?.code === 'internal_error',
      ),
    ).toBe(true);
    expect((await post(CHAT, { messages: MESSAGES })).status).toBe(500);
  });

  test('of the interfaces of agents: texts, reasoning, calls, errors in a stream', async () => {
    const thinker = await Engine.load(
      tinyModel({
        'tokenizer_config.json': { eos_token: '<|im_end|>', chat_template: `{#- <think></think> #}${TINY_TEMPLATE}` },
      }),
    );
    const other = makeApp();
    other.serve(thinker);
    const call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>';
    const [{ function: definition }] = TOOLS;
    const tools = [{ type: 'function', ...definition }, { type: 'custom', name: 'g' }, { type: 'web_search' }];
    for (const [path, body] of [
      [RESPONSES, { input: 'Hi', tools, text: { format: { type: 'text' }, verbosity: 'low' }, metadata: { a: 'b' } }],
      ['/v1/messages', { messages: MESSAGES, max_tokens: 500, tools: [{ name: 'f', input_schema: {} }] }],
    ] as const) {
      fake.answer = () => ({ text: `<think>\nhm\n</think>\n\nYes.\n${call}\n${call.replace('"f"', '"g"')}` });
      for (const fields of [{}, { stream: true }])
        expect(conforms(await exchange(other, path, { ...body, ...fields }), 'POST', path).status).toBe(200);
      fake.answer = () => ({ text: 'so far', reason: 'error', errorCode: 'numeric_error' });
      const { events } = conforms(await exchange(other, path, { ...body, stream: true }), 'POST', path);
      expect(events.at(-1)).toMatchObject({ type: 'error', error: {} });
    }
    await thinker.close();
  });

  test('of stored responses', async () => {
    const { id } = (await post(RESPONSES, { input: [{ role: 'user', content: 'Hi' }] })).json;
    const path = `${RESPONSES}/{response_id}`;
    const get = (of: string) => exchange(app, `${RESPONSES}/${of}`);
    expect(conforms(await get(id), 'GET', path).json.id).toBe(id);
    expect(conforms(await get(`${id}/input_items`), 'GET', `${path}/input_items`).json.data).toHaveLength(1);
    expect(conforms(await get('resp_1'), 'GET', path).status).toBe(404);
    const cancel = await exchange(app, `${RESPONSES}/${id}/cancel`, '');
    expect(conforms(cancel, 'POST', `${path}/cancel`).status).toBe(400);
    const remove = () => exchange(app, `${RESPONSES}/${id}`, undefined, { method: 'DELETE' });
    expect(conforms(await remove(), 'DELETE', path).json.deleted).toBe(true);
    expect(conforms(await remove(), 'DELETE', path).status).toBe(404);
  });

  test('of stored chat completions', async () => {
    const { id } = (await post(CHAT, { messages: MESSAGES, store: true, metadata: { a: 'b' } })).json;
    const path = `${CHAT}/{completion_id}`;
    const at = (of: string, body?: object, fields = {}) => exchange(app, `${CHAT}/${of}`, body, fields);
    expect(conforms(await at(id), 'GET', path).json.metadata).toEqual({ a: 'b' });
    expect(conforms(await at(id, { metadata: { c: 'd' } }), 'POST', path).json.metadata).toEqual({ c: 'd' });
    expect(conforms(await at(id, { metadata: 5 }), 'POST', path).status).toBe(400);
    expect(conforms(await at(`${id}/messages`), 'GET', `${path}/messages`).json.data).toHaveLength(1);
    expect(conforms(await exchange(app, CHAT), 'GET', CHAT).json.data).toHaveLength(1);
    expect(conforms(await at('x'), 'GET', path).status).toBe(404);
    const remove = () => at(id, undefined, { method: 'DELETE' });
    expect(conforms(await remove(), 'DELETE', path).json.deleted).toBe(true);
    expect(conforms(await remove(), 'DELETE', path).status).toBe(404);
  });

  test.each<[string, object]>([
    ['plain', {}],
    ['several prompts', { prompt: ['a', 'b'], n: 2, temperature: 1 }],
    ['repeated with log-probabilities', { echo: true, logprobs: 2, return_token_ids: true }],
    ['token ids in', { prompt: [1, 2, 3] }],
    ['of the prompt', { prompt_logprobs: 0 }],
  ])('of a text completion: %s', async (_name, fields) => {
    expect((await post(COMPLETIONS, { prompt: 'One two', max_tokens: 4, ...fields })).status).toBe(200);
    if ('prompt_logprobs' in fields) return;
    expect(
      (
        await post(COMPLETIONS, {
          prompt: 'One two',
          max_tokens: 4,
          ...fields,
          stream: true,
          stream_options: { include_usage: true },
        })
      ).headers['Content-Type'],
    ).toContain('event-stream');
  });

  test('of the other routes', async () => {
    for (const path of ['/v1/models', '/health', '/ping', '/version', '/metrics', '/openapi.json'])
      expect(conforms(await exchange(app, path), 'GET', path).status).toBe(200);
    for (const model of ['tiny', 'org/alias'])
      expect(conforms(await exchange(app, `/v1/models/${model}`), 'GET', '/v1/models/{model}').status).toBe(200);
    expect(conforms(await exchange(app, '/ping', ''), 'POST', '/ping').status).toBe(200);
    expect((await post('/tokenize', { prompt: 'a b', return_token_strs: true })).status).toBe(200);
    expect((await post('/tokenize', { messages: MESSAGES, tools: TOOLS })).status).toBe(200);
    expect((await post('/detokenize', { tokens: [1, 2] })).status).toBe(200);
  });

  test('of embeddings, rankings and scores', async () => {
    expect((await post('/v1/embeddings', { input: ['a', 'b'], dimensions: 3 })).status).toBe(200);
    expect((await post('/v1/embeddings', { input: [1], encoding_format: 'base64' })).status).toBe(200);
    expect((await post('/rerank', { query: 'a', documents: ['b'], return_documents: false })).status).toBe(200);
    expect((await post('/v1/score', { text_1: ['a', 'b'], text_2: ['b', 'c'] })).status).toBe(200);
    expect(conforms(await exchange(embeddingApp, '/v1/models'), 'GET', '/v1/models').status).toBe(200);
  });

  test('of a model with another task', async () => {
    for (const path of [CHAT, COMPLETIONS])
      expect(conforms(await exchange(embeddingApp, path, {}), 'POST', path).json.error.code).toBe('unsupported_task');
    for (const path of ['/v1/embeddings', '/v1/rerank', '/v2/rerank', '/rerank', '/v1/score', '/score'])
      expect(conforms(await exchange(app, path, {}), 'POST', path).json.error.code).toBe('unsupported_task');
  });

  test('of files and batches', async () => {
    const at = async (path: string, described: string, body?: unknown, options: Partial<HttpRequest> = {}) =>
      conforms(
        await exchange(app, path, body, options),
        options.method ?? (body === undefined ? 'GET' : 'POST'),
        described,
      );
    const [type, boundary] = ['multipart/form-data; boundary=x', '--x\r\nContent-Disposition: form-data; name='];
    const upload = async (line: string): Promise<string> => {
      const form = `${boundary}"purpose"\r\n\r\nbatch\r\n${boundary}"file"; filename="f"\r\n\r\n${line}\r\n--x--\r\n`;
      const reply = await at('/v1/files', '/v1/files', form, { headers: [['content-type', type]] });
      expect(reply.status).toBe(200);
      return reply.json.id;
    };
    const line = { custom_id: 'a', method: 'POST', url: CHAT, body: { messages: MESSAGES } };
    for (const text of [JSON.stringify(line), '{']) {
      const id = await upload(text);
      const order = { input_file_id: id, endpoint: CHAT, completion_window: '24h', metadata: { a: 'b' } };
      const created = await at('/v1/batches', '/v1/batches', order);
      const batch = `/v1/batches/${created.json.id}`;
      let reply = await at(batch, '/v1/batches/{batch_id}');
      while (!['completed', 'failed'].includes(reply.json.status)) {
        await new Promise((resolve) => setImmediate(resolve));
        reply = await at(batch, '/v1/batches/{batch_id}');
      }
      expect((await at(`${batch}/cancel`, '/v1/batches/{batch_id}/cancel', {})).status).toBe(400);
      expect((await at(`/v1/files/${id}`, '/v1/files/{file_id}')).json.id).toBe(id);
      expect((await at(`/v1/files/${id}/content`, '/v1/files/{file_id}/content')).text).toBe(text);
    }
    for (const path of ['/v1/files', '/v1/batches'])
      expect((await at(path, path)).json.data.length).toBeGreaterThanOrEqual(2);
    const unknown: [string, string, string][] = [
      ['GET', '/v1/files/no', '/v1/files/{file_id}'],
      ['GET', '/v1/files/no/content', '/v1/files/{file_id}/content'],
      ['DELETE', '/v1/files/no', '/v1/files/{file_id}'],
      ['GET', '/v1/batches/no', '/v1/batches/{batch_id}'],
      ['POST', '/v1/batches/no/cancel', '/v1/batches/{batch_id}/cancel'],
    ];
    for (const [method, path, described] of unknown)
      expect((await at(path, described, method === 'POST' ? {} : undefined, { method })).status).toBe(404);
    const id = await upload('a');
    expect((await at(`/v1/files/${id}`, '/v1/files/{file_id}', undefined, { method: 'DELETE' })).status).toBe(200);
    expect((await at('/v1/files', '/v1/files', {})).status).toBe(415);
    expect((await at('/v1/batches', '/v1/batches', {})).status).toBe(400);
  });
});

describe('errors', () => {
  const BODIES: Record<string, object> = {
    [CHAT]: { messages: MESSAGES },
    [COMPLETIONS]: { prompt: 'a' },
    [RESPONSES]: { input: 'a' },
    '/v1/responses/input_tokens': { input: 'a' },
    '/v1/messages': { messages: MESSAGES, max_tokens: 5 },
    '/v1/messages/count_tokens': { messages: MESSAGES },
    '/tokenize': { prompt: 'a' },
    '/detokenize': { tokens: [1] },
    '/v1/embeddings': { input: 'a' },
    '/v2/rerank': { query: 'a', documents: ['b'] },
    '/score': { text_1: 'a', text_2: ['b', 'c'] },
  };

  test.each(Object.keys(BODIES))('of %s', async (path) => {
    const body = BODIES[path];
    for (const wrong of ['{', '[]', 'null', {}, { ...body, model: 5 }])
      expect((await post(path, wrong)).status).toBe(400);
    expect((await post(path, { ...body, model: 'other' })).status).toBe(404);
    expect((await post(path, body, { headers: [['content-type', 'text/plain']] })).status).toBe(415);
    for (const [code, status] of [
      ['request_too_large', 413],
      ['request_timeout', 408],
    ] as const) {
      expect(
        (await post(path, body, { readBody: () => Promise.reject(new ApiError(code, 'too much or too late')) })).status,
      ).toBe(status);
    }
    expect(conforms(await exchange(app, path, undefined, { method: 'PUT' }), 'POST', path).status).toBe(405);
  });

  test('of routes that answer 501', async () => {
    const missing = Object.entries<any>(document.paths)
      .flatMap(([path, operations]) =>
        Object.entries<any>(operations).map(([method, { tags }]) => ({ path, method: method.toUpperCase(), tags })),
      )
      .filter(({ tags }) => tags.includes('not implemented'));
    expect(missing.length).toBeGreaterThan(5);
    for (const { path, method } of missing)
      expect(conforms(await exchange(app, path, undefined, { method }), method, path).status).toBe(501);
  });

  test('while loading, during shutdown and after an engine failure', async () => {
    const other = makeApp();
    for (const [path, method] of [
      [CHAT, 'POST'],
      ['/v1/models', 'GET'],
      ['/health', 'GET'],
    ]) {
      expect(
        conforms(await exchange(other, path, method === 'POST' ? BODIES[path] : undefined), method, path).json.error
          .code,
      ).toBe('model_loading');
    }
    await other.drain();
    expect(conforms(await exchange(other, CHAT, BODIES[CHAT]), 'POST', CHAT).json.error.code).toBe('shutting_down');
    fake.failure = 'device gone';
    expect(conforms(await exchange(app, '/health'), 'GET', '/health').json.error.code).toBe('engine_dead');
  });

  test('of a full queue and a prompt that is too long', async () => {
    const small = await Engine.load(tinyModel(), { maxNumSeqs: 1, maxQueuedRequests: 0 });
    const other = makeApp();
    other.serve(small);
    let isOver = false;
    fake.answer = () => ({ text: 'and on '.repeat(10_000), stepMs: 5, isOver: () => isOver });
    const first = exchange(other, CHAT, BODIES[CHAT]);
    while (fake.requests.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
    for (const path of [CHAT, COMPLETIONS])
      expect(conforms(await exchange(other, path, BODIES[path]), 'POST', path).json.error.code).toBe('queue_full');
    isOver = true;
    await first;
    await small.close();
    expect((await post(CHAT, { messages: [{ role: 'user', content: 'x'.repeat(9000) }] })).json.error.code).toBe(
      'context_length_exceeded',
    );
  });

  test('of access control', async () => {
    const denials = [
      { status: 401, code: 'invalid_api_key', headers: { 'WWW-Authenticate': 'Bearer' } },
      { status: 403, code: 'permission_denied', headers: {} },
      { status: 429, code: 'rate_limit_exceeded', headers: { 'Retry-After': '3' } },
      { status: 503, code: 'auth_unavailable', headers: { 'Retry-After': '1' } },
    ] as const;
    const description = openApiDocument(app.routes, { version: '1', hasAccess: true });
    for (const denial of denials) {
      const guarded = makeApp({ check: () => ({ ok: false, message: 'no', ...denial }) as never });
      guarded.serve(engine);
      for (const { method, path } of app.routes) {
        const body = method === 'POST' ? {} : undefined;
        const reply = conforms(await exchange(guarded, path, body, { method }), method, path, description);
        expect(reply.status).toBe(denial.status);
        if (!ANTHROPIC.includes(path)) expect(reply.json.error.code).toBe(denial.code);
      }
    }
  });
});
