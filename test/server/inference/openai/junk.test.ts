/** Junk in any field gets 200 or 4xx with a short message, never a server error. */
import type { Engine } from '../../../../ts';
import type { App } from '../../../../server/inference/app';
import { OPENAI_ROUTES } from '../../../../server/inference/openai/routes';
import type { Schema } from '../../../../server/base/json/schema-types';
import { fake } from '../../../fakes/fake-addon';
import { numCases } from '../../../fakes/sample';
import { loadPoolingEngine } from '../../../fakes/pooling-engine';
import { loadEngine, log, makeApp, MESSAGES, post, TOOLS } from './support';

let engine: Engine;
let embedder: Engine;
let app: App;
let embeddingApp: App;

beforeAll(async () => {
  engine = await loadEngine();
  app = makeApp(engine);
  embedder = await loadPoolingEngine('embed');
  embeddingApp = makeApp(embedder);
});
beforeEach(() => {
  fake.reset();
  fake.answer = () => ({ text: 'ab' });
  jest.clearAllMocks();
});
afterAll(async () => {
  await engine.close();
  await embedder.close();
});

/** JSON texts. */
const JUNK = [
  'null',
  'true',
  'false',
  '0',
  '-1',
  '1.5',
  '1e999',
  '-1e999',
  '9007199254740993',
  '1e-400',
  '""',
  '"x"',
  '"\\u0000"',
  '"auto"',
  '"json_schema"',
  JSON.stringify('é😀'.repeat(3000)),
  '[]',
  '[null]',
  '[[]]',
  '[0]',
  '["x",0]',
  '[{}]',
  `[${'0,'.repeat(5000)}0]`,
  '{}',
  '{"type":"function"}',
  '{"type":"json_schema","json_schema":{"schema":{"$ref":"#"}}}',
  '{"json":{"type":["x"]},"regex":null}',
  '{"__proto__":{},"constructor":1,"5":1e999}',
  '{"a":{"b":{"c":[null,{"d":1}]}}}',
  '['.repeat(200) + ']'.repeat(200),
  '{"regex":"(a{1000}){1000}"}',
  '{"grammar":"root ::= root"}',
];

const bases: Readonly<Record<string, object>> = {
  '/v1/chat/completions': { messages: MESSAGES, max_tokens: 4 },
  '/v1/chat/completions/{completion_id}': { metadata: {} },
  '/v1/completions': { prompt: 'a', max_tokens: 4 },
  '/v1/responses': { input: 'a', max_output_tokens: 4, store: false },
  '/v1/responses/input_tokens': { input: 'a' },
  '/v1/messages': { messages: MESSAGES, max_tokens: 4 },
  '/v1/messages/count_tokens': { messages: MESSAGES },
  '/tokenize': { prompt: 'a' },
  '/detokenize': { tokens: [1] },
  '/v1/embeddings': { input: 'a' },
  '/rerank': { query: 'a', documents: ['b'] },
  '/score': { queries: 'a', documents: ['b'] },
};

/** Other names of a route have the same handler. */
const routes = OPENAI_ROUTES.filter(({ path, requestSchema }) => path in bases && requestSchema !== undefined).map(
  ({ path, requestSchema }) => [path, requestSchema!] as const,
);
const embeddingPaths = new Set(OPENAI_ROUTES.filter(({ tasks }) => tasks?.includes('embed')).map(({ path }) => path));

/** One of so many requests is sent. It is prime to the number of texts, so that each field gets several of them. */
const STRIDE = numCases(1, 5);
let numAsked = 0;

async function sendJunk(path: string, fields: readonly [field: string, value: string][]): Promise<void> {
  if (numAsked++ % STRIDE !== 0) return;
  const base = Object.entries(bases[path])
    .filter(([field]) => !fields.some(([other]) => other === field))
    .map(([field, value]) => [field, JSON.stringify(value)]);
  const text = `{${[...base, ...fields].map(([field, value]) => `${JSON.stringify(field)}:${value}`).join(',')}}`;
  const reply = await post(embeddingPaths.has(path) ? embeddingApp : app, path, text);
  const summary = `${text.slice(0, 200)} => ${reply.status} ${reply.text.slice(0, 300)}`;
  if (reply.status === 200) return;
  expect({ summary, isFine: reply.status === 400 || reply.status === 404 }).toEqual({ summary, isFine: true });
  expect({ summary, isShort: reply.text.length < 700 }).toEqual({ summary, isShort: true });
  expect(summary).not.toMatch(/\/work|\.ts:|\.js:|node_modules| {2}at /);
}

test.each(routes)('%s: junk in every field', async (path, schema: Schema) => {
  for (const field of [...Object.keys(schema.properties!), 'functions', 'documents', 'echo', 'suffix'])
    for (const junk of JUNK) await sendJunk(path, [[field, junk]]);
  expect(log.error).not.toHaveBeenCalled();
});

test('/v1/chat/completions: junk inside messages and tools', async () => {
  for (const junk of JUNK) {
    for (const field of ['role', 'content', 'name', 'tool_calls', 'tool_call_id', 'function_call', 'reasoning', 'x'])
      await sendJunk('/v1/chat/completions', [
        ['messages', `[{"role":"assistant","content":"a","${field}":${junk}},${JSON.stringify(MESSAGES[0])}]`],
      ]);
    for (const field of ['type', 'text', 'image_url'])
      await sendJunk('/v1/chat/completions', [
        ['messages', `[{"role":"user","content":[{"type":"text","text":"a","${field}":${junk}}]}]`],
      ]);
    for (const field of ['name', 'description', 'parameters', 'strict']) {
      for (const choice of ['"auto"', '"required"', '"none"', junk])
        await sendJunk('/v1/chat/completions', [
          ['tools', `[{"type":"function","function":{"name":"f","strict":true,"${field}":${junk}}}]`],
          ['tool_choice', choice],
        ]);
    }
    for (const field of ['json', 'json_object', 'regex', 'choice', 'grammar', 'structural_tag', 'x'])
      await sendJunk('/v1/chat/completions', [['structured_outputs', `{"${field}":${junk}}`]]);
    for (const field of ['json_schema', 'schema', 'type'])
      await sendJunk('/v1/chat/completions', [['response_format', `{"type":"json_schema","${field}":${junk}}`]]);
    await sendJunk('/v1/chat/completions', [
      ['response_format', `{"type":"json_schema","json_schema":{"schema":${junk}}}`],
    ]);
  }
  expect(log.error).not.toHaveBeenCalled();
});

test('/v1/responses and /v1/messages: junk inside items, blocks and tools', async () => {
  for (const junk of JUNK) {
    for (const [path, field] of [
      ['/v1/responses', 'input'],
      ['/v1/messages', 'messages'],
    ] as const) {
      await sendJunk(path, [[field, `[${junk}]`]]);
      for (const name of ['role', 'content', 'type', 'call_id', 'id'])
        await sendJunk(path, [[field, `[{"role":"user","content":"a","${name}":${junk}}]`]]);
      for (const name of ['type', 'text', 'content', 'tool_use_id'])
        for (const type of ['text', 'input_text', 'tool_result'])
          await sendJunk(path, [
            [field, `[{"role":"user","content":[{"type":"${type}","text":"a","tool_use_id":"b","${name}":${junk}}]}]`],
          ]);
    }
    for (const [field, value] of [
      ...['source', 'title', 'context', 'citations'].map((name) => [name, junk]),
      ...['type', 'data', 'content'].map((name) => ['source', `{"type":"text","data":"a","${name}":${junk}}`]),
    ])
      await sendJunk('/v1/messages', [
        [
          'messages',
          `[{"role":"user","content":[{"type":"document","source":{"type":"text","data":"a"},"${field}":${value}}]}]`,
        ],
      ]);
    for (const type of ['function_call', 'custom_tool_call', 'function_call_output', 'reasoning', 'item_reference'])
      for (const name of ['call_id', 'name', 'arguments', 'input', 'output', 'summary', 'content', 'id'])
        await sendJunk('/v1/responses', [
          [
            'input',
            `[{"type":"${type}","call_id":"c","name":"f","arguments":"{}","input":"x","output":"y","${name}":${junk}}]`,
          ],
        ]);
    for (const name of ['type', 'id', 'name', 'input', 'thinking'])
      for (const type of ['tool_use', 'thinking', 'text'])
        await sendJunk('/v1/messages', [
          [
            'messages',
            `[{"role":"assistant","content":[{"type":"${type}","id":"a","name":"f","input":{},"text":"t","thinking":"h","${name}":${junk}}]},${JSON.stringify(MESSAGES[0])}]`,
          ],
        ]);
    for (const name of ['type', 'name', 'description', 'parameters', 'input_schema', 'strict', 'format'])
      for (const path of ['/v1/responses', '/v1/messages'])
        for (const type of ['function', 'custom'])
          await sendJunk(path, [
            ['tools', `[{"type":"${type}","name":"f","strict":true,"${name}":${junk}}]`],
            ['tool_choice', path === '/v1/messages' ? '{"type":"any"}' : '"required"'],
          ]);
    for (const name of ['name', 'description', 'format'])
      await sendJunk('/v1/chat/completions', [
        ['tools', `[{"type":"custom","custom":{"name":"f","${name}":${junk}}}]`],
        ['tool_choice', '"required"'],
      ]);
    for (const name of ['id', 'type', 'function', 'custom'])
      await sendJunk('/v1/chat/completions', [
        [
          'messages',
          `[{"role":"assistant","tool_calls":[{"id":"a","type":"custom","custom":{"name":"f","input":""},"${name}":${junk}}]}]`,
        ],
      ]);
    await sendJunk('/v1/responses', [['tool_choice', `{"type":"allowed_tools","mode":"auto","tools":[${junk}]}`]]);
    await sendJunk('/v1/responses', [['text', `{"format":{"type":"json_schema","name":"x","schema":${junk}}}`]]);
    await sendJunk('/v1/messages', [['output_config', `{"format":{"type":"json_schema","schema":${junk}}}`]]);
  }
  expect(log.error).not.toHaveBeenCalled();
});

test('junk in random pairs of fields', async () => {
  const [path, { properties }] = routes[0];
  const fields = Object.keys(properties!);
  const random = mulberry32(20_251_121);
  const draw = <T>(items: readonly T[]): T => items[Math.floor(random() * items.length)];
  for (let i = 0; i < 1500; i++) {
    const [first, second] = [draw(fields), draw(fields)];
    await sendJunk(
      path,
      first === second
        ? [[first, draw(JUNK)]]
        : [
            [first, draw(JUNK)],
            [second, draw([...JUNK, JSON.stringify(TOOLS)])],
          ],
    );
  }
  expect(log.error).not.toHaveBeenCalled();
});

function mulberry32(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4_294_967_296;
  };
}
