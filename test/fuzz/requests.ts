/** Random requests, each determined by one seed. */
import { Random } from '../../server/bench/random';
import { hostileGrammar, hostileRegex, hostileSchema } from './hostile-constraints';
import { hostileJson, nested, pick } from './hostile-json';

/** How the bytes are sent and how the connection ends. */
export type Delivery = 'whole' | 'pieces' | 'pipelined' | 'half-open' | 'early-disconnect' | 'slow-reader';

export interface FuzzRequest {
  method: string;
  path: string;
  headers: [string, string][];
  body: Buffer;
  /** False if the bytes are not valid HTTP. Then closing the connection without a response is correct too. */
  isWellFramed: boolean;
  delivery: Delivery;
  /** Description for the report. */
  summary: string;
}

const CHAT_FIELDS = [
  'model',
  'messages',
  'max_tokens',
  'max_completion_tokens',
  'temperature',
  'top_p',
  'n',
  'stream',
  'stream_options',
  'stop',
  'seed',
  'presence_penalty',
  'frequency_penalty',
  'logprobs',
  'top_logprobs',
  'logit_bias',
  'tools',
  'tool_choice',
  'parallel_tool_calls',
  'response_format',
  'reasoning_effort',
  'user',
  'metadata',
  'store',
  'service_tier',
  'safety_identifier',
  'prompt_cache_key',
  'verbosity',
  'modalities',
  'prediction',
  'audio',
  'web_search_options',
  'functions',
  'function_call',
  'top_k',
  'min_p',
  'repetition_penalty',
  'min_tokens',
  'stop_token_ids',
  'include_stop_str_in_output',
  'ignore_eos',
  'skip_special_tokens',
  'spaces_between_special_tokens',
  'bad_words',
  'allowed_token_ids',
  'truncate_prompt_tokens',
  'truncation_side',
  'prompt_logprobs',
  'return_token_ids',
  'return_tokens_as_token_ids',
  'return_prompt_text',
  'echo',
  'add_generation_prompt',
  'continue_final_message',
  'add_special_tokens',
  'chat_template',
  'chat_template_kwargs',
  'documents',
  'structured_outputs',
  'guided_json',
  'guided_regex',
  'guided_choice',
  'guided_grammar',
  'priority',
  'request_id',
  'cache_salt',
  'thinking_token_budget',
  'include_reasoning',
  'use_beam_search',
  'length_penalty',
  'kv_transfer_params',
  'vllm_xargs',
  'grammar',
  'json_schema',
  'regex',
  'ebnf',
  'reasoning_format',
  'separate_reasoning',
  'stream_reasoning',
  'best_of',
  'unknown_field',
];
const COMPLETION_FIELDS = [
  ...CHAT_FIELDS.filter((name) => !/^(messages|tool|parallel|chat_template|reasoning|documents)/.test(name)),
  'prompt',
  'suffix',
  'echo',
  'logprobs',
  'best_of',
];
const TOKENIZE_FIELDS = [
  'model',
  'prompt',
  'messages',
  'tools',
  'add_special_tokens',
  'return_token_strs',
  'add_generation_prompt',
  'continue_final_message',
  'chat_template_kwargs',
  'chat_template',
];
const MESSAGE_FIELDS = ['role', 'content', 'name', 'tool_calls', 'tool_call_id', 'reasoning', 'reasoning_content'];

type Body = Record<string, string>;

/** Joins fields, whose values are JSON texts, to the text of a body. */
function write(body: Body): string {
  return `{${Object.entries(body)
    .map(([name, value]) => `${JSON.stringify(name)}:${value}`)
    .join(',')}}`;
}

function chatBody(random: Random): Body {
  const content = pick(random, [
    '"Hi"',
    '"Count from 1 to 5."',
    '"What is the weather in Bern?"',
    '[{"type": "text", "text": "Hi"}]',
  ]);
  const body: Body = {
    messages: `[{"role": "user", "content": ${content}}]`,
    max_tokens: String(random.integer(1, 8)),
  };
  const extras: Body = {
    stream: 'true',
    n: String(random.integer(1, 3)),
    temperature: '1.5',
    logprobs: 'true',
    tools:
      '[{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}]',
    response_format: '{"type": "json_object"}',
    stop: '["x", "y"]',
    structured_outputs: '{"choice": ["yes", "no"]}',
    seed: '7',
    prompt_logprobs: '1',
    return_token_ids: 'true',
    stream_options: '{"include_usage": true}',
    min_tokens: '1',
    logit_bias: '{"5": 10}',
  };
  for (const [name, value] of Object.entries(extras)) if (random.next() < 0.12) body[name] = value;
  return body;
}

function completionBody(random: Random): Body {
  const body: Body = {
    prompt: pick(random, ['"Once"', '["a", "b"]', '[5, 6, 7]', '[[5, 6], [7]]']),
    max_tokens: String(random.integer(0, 8)),
  };
  const extras: Body = { stream: 'true', echo: 'true', logprobs: '2', n: '2', temperature: '1', prompt_logprobs: '0' };
  for (const [name, value] of Object.entries(extras)) if (random.next() < 0.15) body[name] = value;
  return body;
}

interface RouteKind {
  path: string;
  fields: readonly string[];
  make: (random: Random) => Body;
}

const ROUTES: readonly RouteKind[] = [
  { path: '/v1/chat/completions', fields: CHAT_FIELDS, make: chatBody },
  { path: '/v1/chat/completions', fields: CHAT_FIELDS, make: chatBody },
  { path: '/v1/completions', fields: COMPLETION_FIELDS, make: completionBody },
  {
    path: '/tokenize',
    fields: TOKENIZE_FIELDS,
    make: (random): Body =>
      random.next() < 0.5 ? { prompt: '"hello"' } : { messages: '[{"role": "user", "content": "Hi"}]' },
  },
  { path: '/detokenize', fields: ['model', 'tokens'], make: () => ({ tokens: '[5, 6]' }) },
];

/** Mutations of a valid body. */
const SPOILERS: Record<string, (body: Body, route: RouteKind, random: Random) => string> = {
  good: (body) => write(body),
  'one field': (body, route, random) => {
    const name = pick(random, route.fields);
    return write({ ...body, [name]: hostileJson(random) });
  },
  'three fields': (body, route, random) =>
    write({ ...body, ...Object.fromEntries([1, 2, 3].map(() => [pick(random, route.fields), hostileJson(random)])) }),
  'a message': (body, _route, random) =>
    write({
      ...body,
      messages: `[{"role": "user", "content": "a"}, {"role": ${pick(random, ['"user"', '"assistant"', '"tool"', '"system"', hostileJson(random)])}, "${pick(random, MESSAGE_FIELDS)}": ${hostileJson(random)}}]`,
    }),
  'many messages': (body, _route, random) =>
    write({
      ...body,
      messages: `[${Array.from({ length: pick(random, [100, 5000]) }, () => '{"role": "user", "content": "a"}').join(',')}]`,
    }),
  'a tool': (body, _route, random) =>
    write({
      ...body,
      tools: `[{"type": "function", "function": {"name": ${pick(random, ['"f"', hostileJson(random)])}, "parameters": ${random.next() < 0.5 ? hostileSchema(random) : hostileJson(random)}}}]`,
      ...(random.next() < 0.5
        ? {
            tool_choice: pick(random, [
              '"required"',
              '{"type": "function", "function": {"name": "f"}}',
              '"auto"',
              hostileJson(random),
            ]),
          }
        : {}),
    }),
  'many tools': (body, _route, random) =>
    write({
      ...body,
      tools: `[${Array.from({ length: pick(random, [129, 3000]) }, (_, i) => `{"type": "function", "function": {"name": "f${i}", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}`).join(',')}]`,
      ...(random.next() < 0.5 ? { tool_choice: '"required"' } : {}),
    }),
  'a schema': (body, _route, random) =>
    write({
      ...body,
      response_format: `{"type": "json_schema", "json_schema": {"name": "s", "schema": ${hostileSchema(random)}}}`,
    }),
  'a structured output': (body, _route, random) =>
    write({
      ...body,
      structured_outputs: pick<() => string>(random, [
        () => `{"regex": ${JSON.stringify(hostileRegex(random))}}`,
        () => `{"grammar": ${JSON.stringify(hostileGrammar(random))}}`,
        () => `{"json": ${hostileSchema(random)}}`,
        () =>
          `{"choice": ${pick(random, ['[]', '[""]', '["a", "a"]', JSON.stringify(Array.from({ length: 10_000 }, (_, i) => `c${i}`)), hostileJson(random)])}}`,
        () => `{"json_object": true, "regex": "a"}`,
        () => `{"structural_tag": ${hostileJson(random)}}`,
      ])(),
    }),
  'token ids': (body, route, random) =>
    write({
      ...body,
      [route.path === '/detokenize' ? 'tokens' : route.path === '/v1/completions' ? 'prompt' : 'stop_token_ids']: pick(
        random,
        [
          '[-1]',
          '[99999999]',
          '[1.5]',
          '[1e999]',
          '[[]]',
          '[[5], "a"]',
          `[${'5,'.repeat(50_000)}5]`,
          '[null]',
          '["5"]',
          '[4294967301]',
        ],
      ),
    }),
  'long text': (body, route, random) => {
    const text = JSON.stringify(
      pick(random, ['a', 'ab ', 'ü', '😀', '\u0000', ' ', '\n', '<|im_start|>']).repeat(pick(random, [3000, 100_000])),
    );
    return write({
      ...body,
      [route.path === '/v1/completions' || route.path === '/tokenize' ? 'prompt' : 'messages']:
        route.path.endsWith('completions') && route.path.includes('chat')
          ? `[{"role": "user", "content": ${text}}]`
          : text,
    });
  },
  'huge body': (body, _route, random) =>
    write({
      ...body,
      [pick(random, ['user', 'messages', 'prompt', 'stop', 'x'])]: pick(random, [
        JSON.stringify('a'.repeat(10_000_000)),
        `[${'1,'.repeat(2_000_000)}1]`,
        `[{"role": "user", "content": ${JSON.stringify('word '.repeat(2_000_000))}}]`,
      ]),
    }),
  'deep nesting': (body, route, random) =>
    write({
      ...body,
      [pick(random, ['x', ...route.fields])]: nested(pick(random, [100, 10_000, 1_000_000]), random.next() < 0.5),
    }),
  'not a body': (_body, _route, random) =>
    pick(random, [
      '',
      ' ',
      '[]',
      '1',
      'null',
      '"a"',
      '{',
      '{}',
      '}',
      '{"a"',
      '\u0000',
      nested(100_000, true),
      'a=1&b=2',
      '{"messages": [}',
      hostileJson(random),
    ]),
  cut: (body, _route, random) => {
    const text = write(body);
    return text.slice(0, random.integer(0, text.length - 1));
  },
};

const PATHS = [
  '/',
  '//',
  '/v1',
  '/v1/',
  '/v1/models',
  '/v1/models/',
  '/v1/models/x',
  '/v1/models/%00',
  '/v1/models/%',
  '/v1/models/..%2f..',
  `/v1/models/${'a'.repeat(4000)}`,
  '//v1/models',
  '/v1//models',
  '/V1/models',
  '/v1/models?x=1',
  '/v1/models#x',
  '/health',
  '/ping',
  '/version',
  '/metrics',
  '/openapi.json',
  '/tokenize',
  '/detokenize',
  '/v1/embeddings',
  '/v1/rerank',
  '/v2/rerank',
  '/rerank',
  '/v1/score',
  '/score',
  '/v1/responses',
  '/v1/messages',
  '/load',
  '/sleep',
  '/%2e%2e/etc/passwd',
  '/../x',
  '/v1/chat/completions/',
  '/v1/chat/completions/render',
  '/ü',
  '/%ff',
  '/__proto__',
  '/constructor',
  `/${'?'.repeat(200)}`,
];
const METHODS = ['GET', 'POST', 'PUT', 'DELETE', 'PATCH', 'OPTIONS', 'HEAD', 'TRACE', 'BREW', 'get'];

const HOSTILE_HEADERS: readonly [string, string][] = [
  ['Content-Type', 'text/plain'],
  ['Content-Type', ''],
  ['Content-Type', 'application/json; charset=utf-16'],
  ['Content-Type', 'application/jsonx'],
  ['Content-Type', 'multipart/form-data'],
  ['X-Request-Id', ''],
  ['X-Request-Id', 'a'.repeat(5000)],
  ['X-Request-Id', '\xff\xfe'],
  ['X-Request-Id', 'a\tb'],
  ['X-Request-Id', '{{7*7}}'],
  ['Authorization', 'Bearer'],
  ['Authorization', 'Bearer  x'],
  ['Authorization', `Bearer ${'x'.repeat(6000)}`],
  ['Authorization', 'Basic eDp5'],
  ['Authorization', '\x80'],
  ['Accept', 'text/event-stream'],
  ['Accept-Encoding', 'gzip, br'],
  ['Connection', 'close'],
  ['Connection', 'upgrade'],
  ['Cookie', 'a=b;'.repeat(500)],
  ['Origin', 'null'],
  ['Origin', 'http://evil.example'],
  ['Access-Control-Request-Method', 'POST'],
  ['Host', ''],
  ['Host', 'a:b:c'],
  ['X-Forwarded-For', '999.1.1.1'],
  ['Range', 'bytes=0-1'],
  ['If-None-Match', '*'],
  ['Content-Encoding', 'gzip'],
  ['Expect', 'weird'],
  ['X-'.concat('n'.repeat(300)), 'v'],
];

/** Request heads that are invalid. The server must answer 400 or close the connection. */
const BAD_FRAMING: readonly [string, string][] = [
  ['Content-Length', '-1'],
  ['Content-Length', '0x10'],
  ['Content-Length', '1e3'],
  ['Content-Length', '99999999999999999999'],
  ['Content-Length', ''],
  ['Content-Length', '5, 5'],
  ['Transfer-Encoding', 'gzip'],
  ['Transfer-Encoding', 'chunked, identity'],
  ['Transfer-Encoding', 'xchunked'],
  ['Bad Name', 'x'],
  ['', 'x'],
  ['A', 'b\rc'],
];

export function makeRequest(seed: number): FuzzRequest {
  const random = new Random(seed);
  const route = pick(random, ROUTES);
  const headers: [string, string][] = [
    ['Host', 'localhost'],
    ['Content-Type', 'application/json'],
  ];
  const delivery = pickDelivery(random);
  if (random.next() < 0.15) {
    const method = pick(random, METHODS);
    const path = pick(random, PATHS);
    const body = random.next() < 0.2 ? Buffer.from(hostileJson(random)) : Buffer.alloc(0);
    return { method, path, headers, body, isWellFramed: true, delivery, summary: `${method} ${path.slice(0, 60)}` };
  }
  const spoiler = pick(
    random,
    random.next() < 0.03
      ? ['huge body', 'deep nesting', 'many tools', 'many messages']
      : Object.keys(SPOILERS).filter((name) => name !== 'huge body'),
  );
  const body = Buffer.from(SPOILERS[spoiler](route.make(random), route, random));
  let summary = `${route.path}, ${spoiler}`;
  if (random.next() < 0.05 && body.length > 0) {
    for (let count = random.integer(1, 4); count > 0; count--)
      body[random.integer(0, body.length - 1)] = random.integer(0, 255);
    summary += ', bytes spoilt';
  }
  if (random.next() < 0.1) {
    const header = pick(random, HOSTILE_HEADERS);
    if (header[0] === 'Content-Type' || header[0] === 'Host') headers.splice(header[0] === 'Host' ? 0 : 1, 1);
    headers.push(header);
    summary += `, ${header[0].slice(0, 40)}: ${header[1].slice(0, 30)}`;
  }
  if (random.next() < 0.02) for (let i = 0; i < 300; i++) headers.push([`X-${i}`, 'v'.repeat(random.integer(1, 60))]);
  const isWellFramed = random.next() > 0.03 && headers.length < 100;
  if (headers.length >= 100) summary += ', 300 headers';
  else if (!isWellFramed) {
    const header = pick(random, BAD_FRAMING);
    headers.push(header);
    summary += `, bad framing ${header.join(': ')}`;
  }
  return { method: 'POST', path: route.path, headers, body, isWellFramed, delivery, summary };
}

function pickDelivery(random: Random): Delivery {
  const roll = random.next();
  if (roll < 0.6) return 'whole';
  if (roll < 0.75) return 'pieces';
  if (roll < 0.83) return 'pipelined';
  if (roll < 0.88) return 'half-open';
  return roll < 0.97 ? 'early-disconnect' : 'slow-reader';
}

/** Returns the bytes of a request on the wire. */
export function requestBytes({ method, path, headers, body }: FuzzRequest): Buffer {
  const hasLength = headers.some(([name]) => /^(content-length|transfer-encoding)$/i.test(name));
  const all = hasLength
    ? headers
    : [...headers, ...(method === 'GET' && body.length === 0 ? [] : [['Content-Length', String(body.length)]])];
  const head = `${method} ${path} HTTP/1.1\r\n${all.map(([name, value]) => `${name}: ${value}\r\n`).join('')}\r\n`;
  return Buffer.concat([Buffer.from(head, 'latin1'), body]);
}
