/** Chat completions in memory: the complete app with the fake engine, without sockets. */
import { Engine, type Generation } from '../../../../ts';
import type { App } from '../../../../server/inference/app';
import type { HttpRequest } from '../../../../server/http/transport';
import { fake } from '../../../fakes/fake-addon';
import { tinyModel } from '../../../fakes/tiny-model';
import { log, makeApp, type MemoryReply, MESSAGES, post, TOOLS } from './support';

let engine: Engine;
let app: App;

beforeAll(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../../../fakes/fake-addon');
  engine = await Engine.load(
    tinyModel({ 'generation_config.json': { eos_token_id: 258, temperature: 0.7, top_p: 0.8 } }),
  );
  app = makeApp();
  app.serve(engine);
});
beforeEach(() => {
  fake.reset();
  fake.answer = () => ({ text: 'Hello.' });
  jest.clearAllMocks();
});
afterAll(() => engine.close());

function send(
  body: unknown,
  { path = '/v1/chat/completions', ...options }: Partial<HttpRequest> = {},
  target = app,
): Promise<MemoryReply> {
  return post(target, path, body, options);
}

function get(path: string, method = 'GET'): Promise<MemoryReply> {
  return send('', { method, path, headers: [] });
}

describe('a response', () => {
  test('has the keys of the specification in its order', async () => {
    const before = Math.floor(Date.now() / 1000);
    const reply = await send({ model: 'tiny', messages: MESSAGES });
    expect(reply.status).toBe(200);
    expect(reply.headers).toEqual({
      'Content-Type': 'application/json',
      'X-Request-Id': expect.stringMatching(/^[0-9a-f]{32}$/) as string,
    });
    const { id, created, ...rest } = reply.json;
    expect(id).toMatch(/^chatcmpl-[0-9a-f]{32}$/);
    expect(created).toBeGreaterThanOrEqual(before);
    expect(created).toBeLessThanOrEqual(Date.now() / 1000);
    expect(rest).toEqual({
      object: 'chat.completion',
      model: 'tiny',
      choices: [
        {
          index: 0,
          message: { role: 'assistant', reasoning_content: null, content: 'Hello.', tool_calls: [] },
          logprobs: null,
          finish_reason: 'stop',
          stop_reason: null,
        },
      ],
      usage: { prompt_tokens: 21, total_tokens: 27, completion_tokens: 6, prompt_tokens_details: { cached_tokens: 0 } },
      prompt_logprobs: null,
    });
    const keys = (value: object): string => Object.keys(value).join(' ');
    expect(keys(reply.json)).toBe('id object created model choices usage prompt_logprobs');
    expect(keys(reply.json.choices[0])).toBe('index message logprobs finish_reason stop_reason');
    expect(keys(reply.json.choices[0].message)).toBe('role reasoning_content content tool_calls');
    expect(keys(reply.json.usage)).toBe('prompt_tokens total_tokens completion_tokens prompt_tokens_details');
  });

  test('with tool calls has empty content and finish_reason tool_calls', async () => {
    fake.answer = () => ({ text: '<tool_call>\n{"name": "f", "arguments": {"a": 1.0}}\n</tool_call>' });
    const { json } = await send({ messages: MESSAGES, tools: TOOLS, tool_choice: 'auto' });
    expect(json.choices[0]).toMatchObject({
      message: {
        content: '',
        tool_calls: [
          {
            id: expect.stringMatching(/^call_[0-9a-f]{24}$/) as string,
            type: 'function',
            function: { name: 'f', arguments: '{"a": 1.0}' },
          },
        ],
      },
      finish_reason: 'tool_calls',
    });
    expect(Object.keys(json.choices[0].message.tool_calls[0])).toEqual(['id', 'type', 'function']);
  });

  test('passes tools unchanged to the template, and none with tool_choice none', async () => {
    await send({ messages: MESSAGES, tools: TOOLS });
    expect(promptOf(0)).toContain(
      '{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}, "default": null}}}',
    );
    await send({ messages: MESSAGES, tools: TOOLS, tool_choice: 'none' });
    expect(promptOf(1)).not.toContain('"f"');
  });

  test('shows the model the allowed tools alone, and makes their mode the choice', async () => {
    const tools = ['f', 'g', 'h'].map((name) => ({ type: 'function', function: { ...TOOLS[0].function, name } }));
    const allow = (mode: string, ...names: string[]) => ({
      type: 'allowed_tools',
      allowed_tools: { mode, tools: names.map((name) => ({ type: 'function', function: { name } })) },
    });
    await send({ messages: MESSAGES, tools, tool_choice: allow('auto', 'h', 'f') });
    expect(['f', 'g', 'h'].filter((name) => promptOf(0).includes(`"name": "${name}"`))).toEqual(['f', 'h']);
    expect(fake.requests[0].grammar).toBeNull();
    await send({ messages: MESSAGES, tools, tool_choice: allow('required', 'g') });
    expect(promptOf(1)).not.toContain('"f"');
    expect(fake.requests[1].grammar).not.toBeNull();
    await send({ messages: MESSAGES, tools, tool_choice: allow('auto') });
    expect(promptOf(2)).not.toContain('"g"');
  });

  test('names an invalid tool by its place in the request, if others are not allowed', async () => {
    const parameters = { type: 'object', properties: { a: { type: 'nonsense' } } };
    const tools = [TOOLS[0], { type: 'function', function: { name: 'g', parameters } }];
    const choice = {
      type: 'allowed_tools',
      allowed_tools: { mode: 'required', tools: [{ type: 'function', function: { name: 'g' } }] },
    };
    const { status, json } = await send({ messages: MESSAGES, tools, tool_choice: choice });
    expect(status).toBe(400);
    expect(json.error.param).toMatch(/^tools\[1\]\.function/);
  });

  test('renders a conversation with tool calls and results', async () => {
    const reply = await send({
      messages: [
        { role: 'system', content: 'S' },
        {
          role: 'user',
          content: [
            { type: 'text', text: 'a' },
            { type: 'text', text: 'b' },
          ],
        },
        {
          role: 'assistant',
          content: null,
          tool_calls: [{ id: 'c1', type: 'function', function: { name: 'f', arguments: '{"x":1}' } }],
        },
        { role: 'tool', tool_call_id: 'c1', content: 'r' },
      ],
    });
    expect(reply.status).toBe(200);
    expect(promptOf(0)).toBe(
      '<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n<|im_start|>assistant\n<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>r</tool_response><|im_end|>\n<|im_start|>assistant\n',
    );
  });

  test('has log-probabilities with token, bytes and alternatives', async () => {
    fake.answer = () => ({ text: 'é' });
    const { json } = await send({ messages: MESSAGES, logprobs: true, top_logprobs: 1 });
    expect(json.choices[0].logprobs).toEqual({
      content: [
        {
          token: '\ufffd',
          logprob: -0.5,
          bytes: [195],
          top_logprobs: [{ token: '\ufffd', logprob: -0.5, bytes: [195] }],
        },
        {
          token: '\ufffd',
          logprob: -0.5,
          bytes: [169],
          top_logprobs: [{ token: '\ufffd', logprob: -0.5, bytes: [169] }],
        },
      ],
    });
  });

  test('has n choices', async () => {
    const { json } = await send({ messages: MESSAGES, n: 2 });
    expect(json.choices.map((choice: { index: number }) => choice.index)).toEqual([0, 1]);
    expect(json.usage).toMatchObject({ prompt_tokens: 21, completion_tokens: 12, total_tokens: 33 });
  });

  test('names the requested alias, or the first served name', async () => {
    for (const [model, name] of [
      [undefined, 'tiny'],
      [null, 'tiny'],
      ['', 'tiny'],
      ['alias', 'alias'],
    ]) {
      expect((await send({ model, messages: MESSAGES })).json.model).toBe(name);
    }
  });

  test('takes its id from X-Request-Id or request_id, if valid', async () => {
    const headers = (id: string): HttpRequest['headers'] => [['x-request-id', id]];
    expect((await send({ messages: MESSAGES, request_id: 'b' }, { headers: headers('a') })).json.id).toBe('chatcmpl-a');
    const reply = await send({ messages: MESSAGES, request_id: 'b' });
    expect([reply.json.id, reply.headers['X-Request-Id']]).toEqual(['chatcmpl-b', 'b']);
    expect((await send({ messages: MESSAGES }, { headers: headers('x'.repeat(129)) })).json.id).toMatch(
      /^chatcmpl-[0-9a-f]{32}$/,
    );
  });
});

describe('fields passed to the engine', () => {
  test('include all sampling fields', async () => {
    await send({
      messages: MESSAGES,
      temperature: 0.5,
      top_p: 0.9,
      top_k: 5,
      min_p: 0.1,
      presence_penalty: 1,
      frequency_penalty: -1,
      repetition_penalty: 1.1,
      seed: 7,
      max_tokens: 9,
      max_completion_tokens: 8,
      min_tokens: 2,
      stop: ['x'],
      stop_token_ids: [3],
      ignore_eos: true,
      include_stop_str_in_output: true,
      skip_special_tokens: false,
      logit_bias: { 5: -100 },
      allowed_token_ids: [1, 2],
      logprobs: true,
      top_logprobs: 3,
      cache_salt: 's',
    });
    expect(fake.requests[0]).toMatchObject({
      cacheSalt: 's',
      numChoices: 1,
      sampling: {
        topK: 5,
        presencePenalty: 1,
        frequencyPenalty: -1,
        seed: 7n,
        maxTokens: 8,
        minTokens: 2,
        stop: ['x'],
        stopTokenIds: new Int32Array([3]),
        ignoreEos: true,
        includeStopInOutput: true,
        skipSpecialTokens: false,
        logitBiasIds: new Int32Array([5]),
        allowedTokenIds: new Int32Array([1, 2]),
        logprobs: 3,
      },
    });
  });

  test('default to the model and the rest of the context', async () => {
    await send({ messages: MESSAGES, temperature: null, seed: -1 });
    expect(fake.requests[0].sampling).toMatchObject({
      temperature: 0.7,
      topP: 0.8,
      topK: 0,
      seed: null,
      maxTokens: 4096 - 21,
      logprobs: -1,
      stop: [],
    });
  });

  test('accept integral floats as integers, and ignore unknown fields', async () => {
    const reply = await send(
      '{"messages":[{"role":"user","content":"Hi","extra":1}],"max_tokens":4.0,"unknown":{"x":1},"user":5,"store":true,"service_tier":"auto","metadata":null,"prompt_logprobs":null,"response_format":{"type":"text"},"parallel_tool_calls":true,"priority":0,"modalities":["text"]}',
    );
    expect(reply.status).toBe(200);
    expect(fake.requests[0].sampling.maxTokens).toBe(4);
  });

  test('include reasoning_effort and template variables', async () => {
    expect(
      (await send({ messages: MESSAGES, reasoning_effort: 'none', chat_template_kwargs: { a: null } })).status,
    ).toBe(200);
  });
});

describe('a stream', () => {
  test('sends role, content, finish and the terminator', async () => {
    fake.answer = () => ({ text: 'Größe', tokensPerStep: 2 });
    const reply = await send({ messages: MESSAGES, stream: true });
    expect(reply.status).toBe(200);
    expect(reply.headers['Content-Type']).toBe('text/event-stream; charset=utf-8');
    expect(reply.state).toBe('ended');
    const { events } = reply;
    const head = { id: events[0].id, object: 'chat.completion.chunk', created: events[0].created, model: 'tiny' };
    expect(events[0]).toEqual({
      ...head,
      choices: [{ index: 0, delta: { role: 'assistant', content: '' }, logprobs: null, finish_reason: null }],
    });
    expect(
      events
        .slice(1, -2)
        .every(
          (event) => Object.keys(event.choices[0].delta).join() === 'content' && event.choices[0].delta.content !== '',
        ),
    ).toBe(true);
    expect(
      events
        .slice(1, -2)
        .map((event) => event.choices[0].delta.content)
        .join(''),
    ).toBe('Größe');
    expect(events.at(-2)).toEqual({
      ...head,
      choices: [{ index: 0, delta: {}, logprobs: null, finish_reason: 'stop', stop_reason: null }],
    });
    expect(events.at(-1)).toBe('[DONE]');
    expect(Object.keys(events[1]).join(' ')).toBe('id object created model choices');
    expect(Object.keys(events[1].choices[0]).join(' ')).toBe('index delta logprobs finish_reason');
  });

  test('sends usage at the end or in every chunk, as requested', async () => {
    const plain = await send({ messages: MESSAGES, stream: true, stream_options: { include_usage: true } });
    const usage = {
      prompt_tokens: 21,
      total_tokens: 27,
      completion_tokens: 6,
      prompt_tokens_details: { cached_tokens: 0 },
    };
    expect(plain.events.at(-2)).toMatchObject({ choices: [], usage });
    expect(plain.events.slice(0, -2).some((event) => 'usage' in event)).toBe(false);
    const continuous = await send({
      messages: MESSAGES,
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
    });
    expect(continuous.events.slice(0, -1).every((event) => event.usage.prompt_tokens === 21)).toBe(true);
    expect(continuous.events[0].usage.completion_tokens).toBe(0);
    expect(continuous.events.at(-3).usage.completion_tokens).toBe(6);
  });

  test('sends the name of a tool call, then its arguments', async () => {
    fake.answer = () => ({
      text: 'I look.\n<tool_call>{"name": "f", "arguments": {"a": "é"}}</tool_call>\n<tool_call>{"name": "g"}</tool_call>',
    });
    const tools = [...TOOLS, { type: 'function', function: { name: 'g' } }];
    const { events } = await send({ messages: MESSAGES, tools, stream: true });
    const deltas = events.slice(0, -1).map((event) => event.choices[0].delta);
    const calls = deltas.flatMap((delta) => delta.tool_calls ?? []);
    expect(calls).toEqual([
      { index: 0, id: calls[0].id, type: 'function', function: { name: 'f', arguments: '' } },
      ...[...'{"a": "é"}'].map((char) => ({ index: 0, function: { arguments: char } })),
      { index: 1, id: calls.at(-2).id, type: 'function', function: { name: 'g', arguments: '' } },
      { index: 1, function: { arguments: '{}' } },
    ]);
    expect(deltas.map((delta) => delta.content ?? '').join('')).toBe('I look.');
    expect(events.at(-2).choices[0].finish_reason).toBe('tool_calls');
  });

  test('sends the log-probabilities of tokens without text', async () => {
    fake.answer = () => ({ text: '😀a' });
    const { events } = await send({ messages: MESSAGES, stream: true, logprobs: true });
    const tokens = events.slice(0, -1).flatMap((event) => event.choices[0].logprobs?.content ?? []);
    expect(tokens.flatMap((token) => token.bytes)).toEqual([...Buffer.from('😀a')]);
  });

  test('interleaves n choices, each with a role and an end', async () => {
    const { events } = await send({ messages: MESSAGES, stream: true, n: 2 });
    for (const index of [0, 1]) {
      const own = events.slice(0, -1).filter((event) => event.choices[0].index === index);
      expect(own[0].choices[0].delta.role).toBe('assistant');
      expect(own.at(-1).choices[0].finish_reason).toBe('stop');
      expect(own.map((event) => event.choices[0].delta.content ?? '').join('')).toBe('Hello.');
    }
  });

  test('that fails ends with the error and the terminator', async () => {
    fake.answer = () => ({ text: 'ab', reason: 'error', errorCode: 'numeric_error' });
    const { events, state } = await send({ messages: MESSAGES, stream: true });
    expect(events.at(-2)).toEqual({
      error: {
        message: 'The server could not finish this request',
        type: 'server_error',
        param: null,
        code: 'internal_error',
      },
    });
    expect(events.at(-1)).toBe('[DONE]');
    expect(state).toBe('ended');
    expect(events.some((event) => event.choices?.[0].finish_reason)).toBe(false);
    expect(log.error).toHaveBeenCalledTimes(1);
  });

  test('is not started for an invalid request', async () => {
    const reply = await send({ messages: MESSAGES, stream: true, max_tokens: 5000 });
    expect(reply.status).toBe(400);
    expect(reply.json.error.code).toBe('context_length_exceeded');
  });

  test('is aborted when the client disconnects', async () => {
    fake.answer = () => ({ text: 'a'.repeat(10_000) });
    const controller = new AbortController();
    const sending = send({ messages: MESSAGES, stream: true }, { signal: controller.signal });
    while (fake.requests.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
    controller.abort();
    const reply = await sending;
    expect(fake.aborted).toHaveLength(1);
    expect(reply.text).not.toContain('error');
    expect(log.error).not.toHaveBeenCalled();
  });
});

test.each([
  ['/v1/chat/completions', { messages: MESSAGES }, false],
  ['/v1/chat/completions', { messages: MESSAGES }, true],
  ['/v1/completions', { prompt: ['a', 'b'], max_tokens: 4000 }, false],
])('reports the tokens of %s after its client disconnected, %j, stream: %s', async (path, body, stream) => {
  fake.answer = () => ({ text: 'a'.repeat(4000), stepMs: 1 });
  const done = jest.fn();
  const own = makeApp(engine, { access: { check: () => ({ ok: true, keyId: 'key', ownerId: 'own', done }) } });
  const controller = new AbortController();
  const generate = jest.spyOn(engine, 'generate');
  const chat = jest.spyOn(engine, 'chat');
  const sending = send({ ...body, stream }, { path, signal: controller.signal }, own);
  const numTokens = () =>
    [...generate.mock.results, ...chat.mock.results].reduce(
      (sum, { value }) => sum + (value as Generation).numTokens,
      0,
    );
  while (fake.requests.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
  const numOfPrompt = fake.requests[0].promptTokenIds.length;
  while (numTokens() < 2 * numOfPrompt + 20) await new Promise((resolve) => setTimeout(resolve, 5));
  controller.abort();
  await sending;
  expect(done.mock.calls[0]).toEqual([numTokens()]);
  jest.restoreAllMocks();
});

describe('an invalid request names the field in a short message', () => {
  const bad = (
    field: string,
    value: unknown,
    code = 'invalid_value',
    param = field,
  ): [string, unknown, number, string, string | null] => [
    `${field}: ${JSON.stringify(value)?.slice(0, 60)}`,
    { messages: MESSAGES, [field]: value },
    400,
    code,
    param,
  ];
  const badMessage = (message: unknown, code: string, param: string): [string, unknown, number, string, string] => [
    `message ${JSON.stringify(message)}`,
    { messages: [message] },
    400,
    code,
    param,
  ];

  test.each<[name: string, body: unknown, status: number, code: string, param: string | null]>([
    ['no JSON', '{', 400, 'invalid_json', null],
    ['an empty body', '', 400, 'invalid_json', null],
    ['a list', '[]', 400, 'invalid_type', null],
    ['null', 'null', 400, 'invalid_type', null],
    ['no messages', {}, 400, 'missing_required_parameter', 'messages'],
    ['messages null', { messages: null }, 400, 'missing_required_parameter', 'messages'],
    ['messages empty', { messages: [] }, 400, 'invalid_value', 'messages'],
    ['messages as text', { messages: 'x' }, 400, 'invalid_type', 'messages'],
    ['an unknown model', { model: 'x', messages: MESSAGES }, 404, 'model_not_found', 'model'],
    badMessage('x', 'invalid_type', 'messages[0]'),
    badMessage({ content: 'x' }, 'missing_required_parameter', 'messages[0].role'),
    badMessage({ role: 'robot', content: 'x' }, 'invalid_value', 'messages[0].role'),
    badMessage({ role: 'user', content: 5 }, 'invalid_type', 'messages[0].content'),
    badMessage({ role: 'user' }, 'missing_required_parameter', 'messages[0].content'),
    badMessage({ role: 'user', content: null }, 'missing_required_parameter', 'messages[0].content'),
    badMessage(
      { role: 'user', content: [{ type: 'image_url', image_url: {} }] },
      'unsupported_value',
      'messages[0].content[0].type',
    ),
    badMessage(
      { role: 'user', content: [{ type: 'text' }] },
      'missing_required_parameter',
      'messages[0].content[0].text',
    ),
    badMessage({ role: 'user', content: ['x'] }, 'invalid_type', 'messages[0].content[0]'),
    badMessage(
      { role: 'assistant', tool_calls: [{ id: 'x' }] },
      'missing_required_parameter',
      'messages[0].tool_calls[0].function',
    ),
    badMessage(
      { role: 'assistant', tool_calls: [{ function: { name: 'f', arguments: {} } }] },
      'invalid_type',
      'messages[0].tool_calls[0].function.arguments',
    ),
    bad('model', 5, 'invalid_type'),
    bad('temperature', '0.5', 'invalid_type'),
    bad('temperature', -1),
    bad('temperature', 2.1),
    bad('temperature', true, 'invalid_type'),
    bad('top_p', 0),
    bad('top_p', 1.5),
    bad('top_k', -2),
    bad('top_k', 1.5, 'invalid_type'),
    bad('min_p', 2),
    bad('max_tokens', 0),
    bad('max_tokens', 2.5, 'invalid_type'),
    bad('max_tokens', '5', 'invalid_type'),
    bad('max_completion_tokens', 0),
    bad('max_tokens', 5000, 'context_length_exceeded'),
    bad('max_completion_tokens', 5000, 'context_length_exceeded'),
    bad('min_tokens', 5000),
    bad('n', 0),
    bad('n', 129),
    bad('stream', 'yes', 'invalid_type'),
    bad('stream_options', {}),
    bad('stop', ''),
    bad('stop', ['a', '']),
    bad('stop', 5, 'invalid_type'),
    bad('seed', 1.5, 'invalid_type'),
    bad('seed', 1e19),
    bad('presence_penalty', 3),
    bad('frequency_penalty', -3),
    bad('repetition_penalty', 0),
    bad('logprobs', 1, 'invalid_type'),
    bad('top_logprobs', 21),
    bad('top_logprobs', 2),
    bad('logit_bias', { x: 1 }),
    bad('logit_bias', { 5: 101 }),
    bad('logit_bias', { 9999: 1 }),
    bad('stop_token_ids', [9999]),
    bad('allowed_token_ids', [9999]),
    bad('logit_bias', [], 'invalid_type'),
    bad('allowed_token_ids', []),
    bad('stop_token_ids', ['x'], 'invalid_type'),
    bad('cache_salt', ''),
    bad('cache_salt', 'a@b'),
    bad('reasoning_effort', 'some'),
    bad('chat_template_kwargs', 5, 'invalid_type'),
    bad('tools', {}, 'invalid_type'),
    bad('tools', [{ type: 'function', function: {} }], 'missing_required_parameter', 'tools[0].function.name'),
    bad('tools', [{ type: 'code' }], 'invalid_value', 'tools[0].type'),
    bad('tools', [{ type: 'code', function: { name: 'f' } }], 'invalid_value', 'tools[0].type'),
    bad('tool_choice', 'auto'),
    bad('tool_choice', 5, 'invalid_type'),
    [
      'tool_choice unknown',
      { messages: MESSAGES, tools: TOOLS, tool_choice: 'some' },
      400,
      'invalid_value',
      'tool_choice',
    ],
    ['n at temperature 0', { messages: MESSAGES, temperature: 0, n: 2 }, 400, 'invalid_value', 'n'],
    [
      'a prompt that is too long',
      { messages: [{ role: 'user', content: 'x'.repeat(5000) }] },
      400,
      'context_length_exceeded',
      'messages',
    ],
    [
      'two ways to go on',
      { messages: MESSAGES, add_generation_prompt: true, continue_final_message: true },
      400,
      'invalid_value',
      'continue_final_message',
    ],
    bad('response_format', { type: 'xml' }),

    bad('echo', true, 'unsupported_value'),
    bad('use_beam_search', true, 'unsupported_value'),
    bad('priority', 1, 'unsupported_value'),
    bad('chat_template', 'x', 'unsupported_value'),
    bad('modalities', ['audio'], 'unsupported_value'),
    bad(
      'stop',
      'x'
        .repeat(5000)
        .split('')
        .map(() => 5),
    ),
  ])('%s', async (_name, body, status, code, param) => {
    const reply = await send(body);
    expect({ status: reply.status, ...reply.json.error }).toEqual({
      status,
      code,
      param,
      type: 'invalid_request_error',
      message: expect.stringMatching(/^.{5,300}$/) as string,
    });
    expect(fake.requests).toHaveLength(0);
    expect(log.error).not.toHaveBeenCalled();
  });

  test('answers 415 for another content type, and assumes JSON without one', async () => {
    expect((await send({ messages: MESSAGES }, { headers: [['content-type', 'text/plain']] })).status).toBe(415);
    expect(
      (await send({ messages: MESSAGES }, { headers: [['content-type', 'application/json; charset=utf-8']] })).status,
    ).toBe(200);
    expect((await send({ messages: MESSAGES }, { headers: [] })).status).toBe(200);
  });

  test('answers 415 for a compressed body and names the header', async () => {
    expect((await send({ messages: MESSAGES }, { headers: [['content-encoding', 'gzip']] })).json.error).toMatchObject({
      code: 'unsupported_media_type',
      message: expect.stringMatching(/^Content-Encoding: /) as string,
    });
    expect((await send({ messages: MESSAGES }, { headers: [['content-encoding', 'Identity']] })).status).toBe(200);
  });

  test('answers 429 with Retry-After for a full queue', async () => {
    const small = await Engine.load(tinyModel(), { maxNumSeqs: 1, maxQueuedRequests: 0 });
    const other = makeApp();
    other.serve(small);
    let isOver = false;
    fake.answer = () => ({ text: 'and on '.repeat(10_000), stepMs: 5, isOver: () => isOver });
    const first = send({ messages: MESSAGES }, {}, other);
    while (fake.requests.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
    const second = await send({ messages: MESSAGES }, {}, other);
    expect([second.status, second.headers['Retry-After'], second.json.error.type, second.json.error.code]).toEqual([
      429,
      '1',
      'rate_limit_error',
      'queue_full',
    ]);
    isOver = true;
    expect((await first).status).toBe(200);
    await small.close();
  });

  test('answers 500 without the message of an unexpected error', async () => {
    const broken = makeApp();
    broken.serve(
      Object.assign(Object.create(engine, { adapters: { value: engine.adapters } }) as Engine, {
        chat: () => {
          throw new Error('secret /path');
        },
      }),
    );
    const reply = await send({ messages: MESSAGES }, {}, broken);
    expect([reply.status, reply.json.error]).toEqual([
      500,
      {
        message: 'The server could not finish this request',
        type: 'server_error',
        param: null,
        code: 'internal_error',
      },
    ]);
    expect(log.error).toHaveBeenCalledTimes(1);
  });
});

describe('other routes', () => {
  test('list models and get one by name', async () => {
    const { json } = await get('/v1/models');
    expect(json.data.map((model: { id: string }) => model.id)).toEqual(['tiny', 'alias']);
    expect(Object.keys(json.data[0]).join(' ')).toBe(
      'id object created owned_by root parent max_model_len permission meta',
    );
    expect(json.data[0]).toMatchObject({
      owned_by: 'capstan',
      root: 'tiny',
      max_model_len: 4096,
      meta: { default_sampling: { temperature: 0.7, top_p: 0.8, top_k: 0, repetition_penalty: 1 } },
    });
    expect((await get('/v1/models/alias')).json.id).toBe('alias');
    expect((await get('/v1/models/al%69as')).json.id).toBe('alias');
    const missing = await get('/v1/models/x');
    expect([missing.status, missing.json.error.code, missing.json.error.param]).toEqual([
      404,
      'model_not_found',
      'model',
    ]);
    expect((await get('/v1/models', 'HEAD')).status).toBe(200);
  });

  test('/health is healthy, failed, loading or draining', async () => {
    const fine = await get('/health');
    expect([fine.status, fine.text]).toEqual([200, '']);
    fake.failure = 'device gone';
    const dead = await get('/health');
    expect([dead.status, dead.json.error.code]).toEqual([503, 'engine_dead']);
    expect(dead.text).not.toContain('device gone');
    fake.failure = null;
    const other = makeApp();
    const loading = await send({}, { method: 'GET', path: '/health' }, other);
    expect([loading.status, loading.json.error.code, loading.headers['Retry-After']]).toEqual([
      503,
      'model_loading',
      '2',
    ]);
    await other.drain();
    expect((await send({}, { method: 'GET', path: '/health' }, other)).json.error.code).toBe('shutting_down');
  });

  test.each([
    ['/', 404],
    ['/v1/chat/completions/', 404],
    ['//v1/models', 404],
    ['/v1x', 404],
    ['/nope', 404],
  ])('%s answers %d', async (path, status) => {
    const reply = await get(path);
    expect([reply.status, reply.json.error.code]).toEqual([status, 'unknown_url']);
  });

  test.each([
    ['/chat/completions', 'Unknown path /chat/completions. Did you mean /v1/chat/completions?'],
    ['/v1/v1/models', 'Unknown path /v1/v1/models. Did you mean /v1/models?'],
    ['/v1/models/', 'Unknown path /v1/models/. Did you mean /v1/models?'],
    ['/v1/health', 'Unknown path /v1/health. Did you mean /health?'],
    ['/v1/images/generations', 'Unknown path /v1/images/generations. See /openapi.json for the routes of this server'],
  ])('%s names the path that the client may mean', async (path, message) => {
    expect((await get(path)).json.error.message).toBe(message);
  });

  test('answer 405 with Allow for another method', async () => {
    const reply = await get('/v1/completions');
    expect([reply.status, reply.headers.Allow, reply.json.error.code]).toEqual([405, 'POST', 'method_not_allowed']);
    expect((await get('/health', 'DELETE')).headers.Allow).toBe('GET, HEAD');
  });

  test('drain waits for open requests', async () => {
    fake.answer = () => ({ text: 'ab', stepMs: 20 });
    const other = makeApp();
    other.serve(engine);
    const running = send({ messages: MESSAGES }, {}, other);
    let isDrained = false;
    const drained = other.drain().then(() => {
      isDrained = true;
    });
    expect(isDrained).toBe(false);
    expect((await send({ messages: MESSAGES }, {}, other)).status).toBe(503);
    expect((await running).status).toBe(200);
    await drained;
  });
});

function promptOf(index: number): string {
  return engine.detokenize(fake.requests[index].promptTokenIds, { skipSpecialTokens: false });
}
