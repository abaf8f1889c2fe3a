/** Conversion between the three interfaces where an upstream has only one of them, with the official clients. */
import Anthropic from '@anthropic-ai/sdk';
import type { RequestListener } from 'node:http';
import OpenAI from 'openai';
import { breakOff, closeAll, until } from './support';
import {
  bodyOf,
  chunk,
  DONE,
  post,
  sendEvents,
  sendJson,
  startUpstream,
  type Upstreams,
  withBody,
} from './upstream-support';

afterEach(closeAll);

type Body = Record<string, unknown>;
const chatUsage = {
  prompt_tokens: 20,
  completion_tokens: 5,
  total_tokens: 25,
  prompt_tokens_details: { cached_tokens: 8 },
  completion_tokens_details: { reasoning_tokens: 2 },
};
const weather = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };

/** A chat upstream that thinks, writes and calls a tool. */
const chatServer =
  (bodies: Body[]): RequestListener =>
  async (request, response) => {
    const body = await bodyOf(request);
    bodies.push({ url: request.url, ...body });
    const call = (index: number, city: string) => ({
      index,
      id: `call_${city}`,
      type: 'function',
      function: { name: 'weather', arguments: `{"city":"${city}"}` },
    });
    if (body.stream !== true)
      return sendJson(response, {
        id: 'chatcmpl-1',
        object: 'chat.completion',
        model: 'large-2026',
        choices: [
          {
            index: 0,
            message: {
              role: 'assistant',
              content: 'Let me see.',
              reasoning_content: 'Hm.',
              tool_calls: [call(0, 'Bonn'), call(1, 'Köln')],
            },
            finish_reason: 'tool_calls',
          },
        ],
        usage: chatUsage,
      });
    sendEvents(response, chunk({ role: 'assistant', content: '' }), chunk({ reasoning_content: 'Hm.' }));
    sendEvents(response, ': ping\n\n', chunk({ content: 'Let me ' }), chunk({ content: 'see.' }));
    const [{ function: called, ...head }] = [call(0, 'Bonn')];
    sendEvents(response, chunk({ tool_calls: [{ ...head, function: { name: 'weather', arguments: '' } }] }));
    for (const part of [called.arguments.slice(0, 4), called.arguments.slice(4)])
      sendEvents(response, chunk({ tool_calls: [{ index: 0, function: { arguments: part } }] }));
    sendEvents(response, chunk({ tool_calls: [call(1, 'Köln')] }), chunk({}, { finish_reason: 'tool_calls' }));
    sendEvents(response, { id: 'chatcmpl-1', model: 'large-2026', choices: [], usage: chatUsage }, DONE);
    response.end();
  };

const anthropicUsage = {
  input_tokens: 12,
  cache_read_input_tokens: 8,
  cache_creation_input_tokens: 0,
  output_tokens: 5,
};
const named = (data: Body): string => `event: ${String(data.type)}\ndata: ${JSON.stringify(data)}\n\n`;

/** An upstream with Anthropic's interface that thinks, writes and calls a tool. */
const messagesServer =
  (bodies: Body[]): RequestListener =>
  async (request, response) => {
    const body = await bodyOf(request);
    bodies.push({ url: request.url, key: request.headers['x-api-key'], ...body });
    const head = { id: 'msg_1', type: 'message', role: 'assistant', model: 'claude-x' };
    if (body.stream !== true)
      return sendJson(response, {
        ...head,
        content: [
          { type: 'thinking', thinking: 'Hm.', signature: 's' },
          { type: 'text', text: 'Let me see.' },
          { type: 'tool_use', id: 'toolu_1', name: 'weather', input: { city: 'Bonn' } },
        ],
        stop_reason: 'tool_use',
        stop_sequence: null,
        usage: anthropicUsage,
      });
    const block = (index: number, start: Body, ...deltas: Body[]) => [
      { type: 'content_block_start', index, content_block: start },
      ...deltas.map((delta) => ({ type: 'content_block_delta', index, delta })),
      { type: 'content_block_stop', index },
    ];
    const events: Body[] = [
      { type: 'message_start', message: { ...head, content: [], usage: { ...anthropicUsage, output_tokens: 1 } } },
      { type: 'ping' },
      ...block(0, { type: 'thinking', thinking: '', signature: '' }, { type: 'thinking_delta', thinking: 'Hm.' }),
      ...block(
        1,
        { type: 'text', text: '' },
        { type: 'text_delta', text: 'Let me ' },
        { type: 'text_delta', text: 'see.' },
      ),
      ...block(
        2,
        { type: 'tool_use', id: 'toolu_1', name: 'weather', input: {} },
        { type: 'input_json_delta', partial_json: '{"city":' },
        { type: 'input_json_delta', partial_json: '"Bonn"}' },
      ),
      { type: 'message_delta', delta: { stop_reason: 'tool_use', stop_sequence: null }, usage: { output_tokens: 5 } },
      { type: 'message_stop' },
    ];
    sendEvents(response, ...events.map(named));
    response.end();
  };

const openai = ({ url }: Upstreams) => new OpenAI({ baseURL: `${url}/d/up/v1`, apiKey: 'sk-client', maxRetries: 0 });
const anthropic = ({ url }: Upstreams) => new Anthropic({ baseURL: `${url}/d/up`, apiKey: 'sk-client', maxRetries: 0 });

describe('an upstream that has only chat completions', () => {
  const bodies: Body[] = [];
  beforeEach(() => void bodies.splice(0));
  const start = () => startUpstream(chatServer(bodies), { model: 'large' });

  // The types of the client leave out the temperature.
  const messagesRequest: Anthropic.MessageCreateParamsNonStreaming & { temperature: number } = {
    model: 'claude-code',
    max_tokens: 100,
    temperature: 0.5,
    stop_sequences: ['END'],
    system: [{ type: 'text', text: 'Be brief.', cache_control: { type: 'ephemeral' } }],
    thinking: { type: 'enabled', budget_tokens: 1_024 },
    tools: [{ name: 'weather', description: 'Weather', input_schema: weather as Anthropic.Tool.InputSchema }],
    tool_choice: { type: 'any', disable_parallel_tool_use: true },
    messages: [
      { role: 'user', content: 'Weather?' },
      {
        role: 'assistant',
        content: [
          { type: 'thinking', thinking: 'Old.', signature: 'x' },
          { type: 'tool_use', id: 't1', name: 'weather', input: { city: 'Ulm' } },
        ],
      },
      {
        role: 'user',
        content: [
          { type: 'tool_result', tool_use_id: 't1', content: 'Sun' },
          { type: 'text', text: 'And Bonn?' },
        ],
      },
    ],
  };
  const chatBody = {
    url: '/v1/chat/completions',
    model: 'large',
    max_tokens: 100,
    temperature: 0.5,
    stop: ['END'],
    tools: [{ type: 'function', function: { name: 'weather', description: 'Weather', parameters: weather } }],
    tool_choice: 'required',
    parallel_tool_calls: false,
    messages: [
      { role: 'system', content: 'Be brief.' },
      { role: 'user', content: 'Weather?' },
      {
        role: 'assistant',
        content: '',
        tool_calls: [{ id: 't1', type: 'function', function: { name: 'weather', arguments: '{"city":"Ulm"}' } }],
      },
      { role: 'tool', content: 'Sun', tool_call_id: 't1' },
      { role: 'user', content: [{ type: 'text', text: 'And Bonn?' }] },
    ],
  };

  test.each([false, true])('serves messages, stream: %s', async (isStream) => {
    const running = await start();
    const client = anthropic(running);
    const message = isStream
      ? await client.messages.stream(messagesRequest).finalMessage()
      : await client.messages.create(messagesRequest);
    expect(bodies).toEqual([
      { ...chatBody, ...(isStream ? { stream: true, stream_options: { include_usage: true } } : {}) },
    ]);
    expect(message).toMatchObject({
      model: 'claude-code',
      role: 'assistant',
      stop_reason: 'tool_use',
      content: [
        { type: 'thinking', thinking: 'Hm.' },
        { type: 'text', text: 'Let me see.' },
        { type: 'tool_use', id: 'call_Bonn', name: 'weather', input: { city: 'Bonn' } },
        { type: 'tool_use', id: 'call_Köln', name: 'weather', input: { city: 'Köln' } },
      ],
      usage: { input_tokens: 12, cache_read_input_tokens: 8, output_tokens: 5 },
    });
    await until(() => running.records.length === 1);
    expect(running.records[0].usage).toMatchObject({ promptTokens: 20, completionTokens: 5, cachedTokens: 8 });
  });

  test.each([false, true])('serves responses, stream: %s', async (isStream) => {
    const running = await start();
    const request: Omit<OpenAI.Responses.ResponseCreateParamsNonStreaming, 'stream'> = {
      model: 'codex',
      instructions: 'Be brief.',
      store: false,
      input: [
        { role: 'user', content: 'Weather?' },
        { type: 'function_call', call_id: 'c1', name: 'weather', arguments: '{"city":"Ulm"}' },
        { type: 'function_call_output', call_id: 'c1', output: 'Sun' },
      ],
      reasoning: { effort: 'low' },
      max_output_tokens: 100,
      text: { format: { type: 'json_schema', name: 'w', schema: weather } },
      tools: [
        { type: 'function', name: 'weather', description: 'Weather', parameters: weather, strict: false },
        { type: 'web_search' },
      ],
    };
    const client = openai(running);
    const response = isStream
      ? await client.responses.stream(request).finalResponse()
      : await client.responses.create(request);
    expect(bodies[0]).toMatchObject({
      url: '/v1/chat/completions',
      model: 'large',
      max_tokens: 100,
      reasoning_effort: 'low',
      response_format: { type: 'json_schema', json_schema: { schema: weather } },
      messages: [
        { role: 'system', content: 'Be brief.' },
        { role: 'user', content: 'Weather?' },
        { role: 'assistant', content: null, tool_calls: [{ id: 'c1' }] },
        { role: 'tool', content: 'Sun', tool_call_id: 'c1' },
      ],
    });
    expect((bodies[0].tools as object[]).length).toBe(1);
    expect(response).toMatchObject({
      model: 'codex',
      status: 'completed',
      store: false,
      output: [
        { type: 'reasoning', content: [{ text: 'Hm.' }] },
        { type: 'message', content: [{ type: 'output_text', text: 'Let me see.' }] },
        { type: 'function_call', call_id: 'call_Bonn', arguments: '{"city":"Bonn"}' },
        { type: 'function_call', call_id: 'call_Köln' },
      ],
      usage: { input_tokens: 20, output_tokens: 5, output_tokens_details: { reasoning_tokens: 2 } },
    });
    await until(() => running.records.length === 1);
    expect(running.records[0].usage).toMatchObject({ promptTokens: 20, completionTokens: 5, cachedTokens: 8 });
  });

  test('what it cannot do has a clear error', async () => {
    const running = await start();
    const fail = async (body: object, path: string) => {
      const response = await post(running.url, body, path);
      return [response.status, JSON.parse(await response.text())] as const;
    };
    const user = { role: 'user', content: 'a' };
    const prefilled = { model: 'm', max_tokens: 1, messages: [user, { role: 'assistant', content: 'b' }] };
    expect(await fail(prefilled, '/v1/messages')).toMatchObject([
      400,
      { type: 'error', error: { message: expect.stringContaining('messages: ') as string } },
    ]);
    expect(await fail({ model: 'm', input: 'a', previous_response_id: 'resp_1' }, '/v1/responses')).toMatchObject([
      400,
      { error: { param: 'previous_response_id' } },
    ]);
    expect(await fail({ model: 'm', messages: [user] }, '/v1/messages/count_tokens')).toMatchObject([
      404,
      { error: { type: 'not_found_error' } },
    ]);
    expect(await fail({ model: 'm', input: 'a' }, '/v1/responses/input_tokens')).toMatchObject([
      404,
      { error: { code: 'unknown_url' } },
    ]);
    const image = { type: 'image', source: { type: 'url', url: 'https://example.com/a.png' } };
    expect(
      (await fail({ model: 'm', max_tokens: 1, messages: [{ role: 'user', content: [image] }] }, '/v1/messages'))[0],
    ).toBe(400);
    expect(bodies).toEqual([]);
  });

  test('a long request, which a thread parses, is converted', async () => {
    const running = await start();
    const text = 'x'.repeat(1_500_000);
    const body = { model: 'm', max_tokens: 1, messages: [{ role: 'user', content: text }] };
    expect((await post(running.url, body, '/v1/messages')).status).toBe(200);
    expect(bodies[0].messages).toEqual([{ role: 'user', content: text }]);
  });
});

test('an upstream with responses gets the fields of newer models, and stores nothing', async () => {
  const bodies: Body[] = [];
  const { url } = await startUpstream(chatServer(bodies), { interfaces: ['chat', 'responses'] });
  const message = { model: 'm', max_tokens: 5, messages: [{ role: 'user', content: 'a' }] };
  expect((await post(url, message, '/v1/messages')).status).toBe(200);
  expect(bodies).toMatchObject([{ max_completion_tokens: 5, store: false }]);
  expect(bodies[0]).not.toHaveProperty('max_tokens');
});

test.each(['not JSON', '[]', '{"model"', '{"m\\u00":1}'])('a body to convert that is %s is refused', async (body) => {
  const bodies: Body[] = [];
  const { url } = await startUpstream(chatServer(bodies));
  const response = await post(url, {}, '/v1/responses', { body });
  expect([response.status, await response.json()]).toMatchObject([400, { error: { code: 'invalid_json' } }]);
  expect(bodies).toEqual([]);
});

describe('an upstream that has only messages', () => {
  const bodies: Body[] = [];
  beforeEach(() => void bodies.splice(0));
  const start = () => startUpstream(messagesServer(bodies), { model: 'claude-x', interfaces: ['messages'] });

  const chatRequest: OpenAI.ChatCompletionCreateParamsNonStreaming = {
    model: 'gpt',
    max_completion_tokens: 100,
    temperature: 0.5,
    stop: 'END',
    presence_penalty: 0,
    seed: 7,
    tools: [{ type: 'function', function: { name: 'weather', parameters: weather } }],
    tool_choice: 'auto',
    messages: [
      { role: 'developer', content: 'Be brief.' },
      { role: 'user', content: 'Weather?' },
      {
        role: 'assistant',
        content: null,
        tool_calls: [{ id: 'c1', type: 'function', function: { name: 'weather', arguments: '{"city":"Ulm"}' } }],
      },
      { role: 'tool', tool_call_id: 'c1', content: 'Sun' },
      { role: 'user', content: 'And Bonn?' },
    ],
  };
  const messagesBody = {
    url: '/v1/messages',
    key: 'sk-upstream-0123456789',
    model: 'claude-x',
    max_tokens: 100,
    system: 'Be brief.',
    temperature: 0.5,
    stop_sequences: ['END'],
    tools: [{ name: 'weather', input_schema: weather }],
    tool_choice: { type: 'auto' },
    messages: [
      { role: 'user', content: [{ type: 'text', text: 'Weather?' }] },
      { role: 'assistant', content: [{ type: 'tool_use', id: 'c1', name: 'weather', input: { city: 'Ulm' } }] },
      {
        role: 'user',
        content: [
          { type: 'tool_result', tool_use_id: 'c1', content: 'Sun' },
          { type: 'text', text: 'And Bonn?' },
        ],
      },
    ],
  };

  test.each([false, true])('serves chat completions, stream: %s', async (isStream) => {
    const running = await start();
    const client = openai(running);
    const completion = isStream
      ? await client.chat.completions
          .stream({ ...chatRequest, stream: true, stream_options: { include_usage: true } })
          .finalChatCompletion()
      : await client.chat.completions.create(chatRequest);
    expect(bodies).toEqual([{ ...messagesBody, ...(isStream ? { stream: true } : {}) }]);
    expect(completion).toMatchObject({
      model: 'gpt',
      choices: [
        {
          finish_reason: 'tool_calls',
          message: {
            content: 'Let me see.',
            tool_calls: [{ id: 'toolu_1', function: { name: 'weather', arguments: '{"city":"Bonn"}' } }],
          },
        },
      ],
      usage: { prompt_tokens: 20, completion_tokens: 5, prompt_tokens_details: { cached_tokens: 8 } },
    });
    await until(() => running.records.length === 1);
    expect(running.records[0].usage).toMatchObject({ promptTokens: 20, completionTokens: 5, cachedTokens: 8 });
  });

  test.each([false, true])('serves responses, stream: %s', async (isStream) => {
    const running = await start();
    const client = openai(running);
    const request = { model: 'codex', input: 'Weather?', instructions: 'Be brief.' };
    const response = isStream
      ? await client.responses.stream(request).finalResponse()
      : await client.responses.create(request);
    expect(bodies[0]).toMatchObject({ model: 'claude-x', max_tokens: 4096, system: 'Be brief.' });
    expect(response).toMatchObject({
      model: 'codex',
      output: [{ type: 'reasoning' }, { type: 'message' }, { type: 'function_call', call_id: 'toolu_1' }],
      usage: { input_tokens: 20, output_tokens: 5 },
    });
  });

  test.each([false, true])('custom tools of chat completions are functions there, stream: %s', async (isStream) => {
    const completion = await openai(await start()).chat.completions.create({
      model: 'gpt',
      messages: [{ role: 'user', content: 'Weather?' }],
      tools: [{ type: 'custom', custom: { name: 'weather' } }],
      tool_choice: { type: 'custom', custom: { name: 'weather' } },
      stream: isStream,
    });
    let calls: unknown[] | undefined = [];
    if ('choices' in completion) calls = completion.choices[0].message.tool_calls;
    else for await (const { choices } of completion) calls.push(...(choices[0].delta.tool_calls ?? []));
    // The upstream has called it with other arguments than `input`.
    const call = { id: 'toolu_1', type: 'custom', custom: { name: 'weather', input: '{"city":"Bonn"}' } };
    expect(calls).toEqual([isStream ? { index: 0, ...call } : call]);
    const schema = { type: 'object', properties: { input: { type: 'string' } }, required: ['input'] };
    expect(bodies).toMatchObject([
      { tools: [{ name: 'weather', input_schema: schema }], tool_choice: { type: 'tool', name: 'weather' } },
    ]);
  });

  test('messages pass, with the name of the model that the client sent', async () => {
    const running = await start();
    const client = anthropic(running);
    const message = await client.messages
      .stream({ model: 'mine', max_tokens: 10, messages: [{ role: 'user', content: 'a' }] })
      .finalMessage();
    expect(message).toMatchObject({
      model: 'mine',
      stop_reason: 'tool_use',
      content: [{ type: 'thinking' }, { type: 'text' }, {}],
    });
    await until(() => running.records.length === 1);
    expect(running.records[0].usage).toMatchObject({ promptTokens: 20, completionTokens: 5, cachedTokens: 8 });
  });

  test.each<[object, string]>([
    [{ n: 2 }, 'n'],
    [{ logprobs: true }, 'logprobs'],
    [{ presence_penalty: 1 }, 'presence_penalty'],
    [{ logit_bias: { 1: 1 } }, 'logit_bias'],
    [{ response_format: { type: 'json_object' } }, 'response_format'],
  ])('%j is refused', async (fields, param) => {
    const running = await start();
    const response = await post(running.url, { model: 'm', messages: [{ role: 'user', content: 'a' }], ...fields });
    expect([response.status, await response.json()]).toMatchObject([
      400,
      { error: { code: 'unsupported_value', param } },
    ]);
    expect(bodies).toEqual([]);
  });

  test('tool calls without arguments have those of an empty object', async () => {
    const head = { id: 'msg_1', type: 'message', role: 'assistant', model: 'claude-x' };
    const calls = ['toolu_1', 'toolu_2'].map((id) => ({ type: 'tool_use', id, name: 'now', input: {} }));
    const end = { stop_reason: 'tool_use', stop_sequence: null };
    const running = await startUpstream(
      withBody((body, response) => {
        if (body.stream !== true) return sendJson(response, { ...head, content: calls, ...end, usage: anthropicUsage });
        const blocks = calls.flatMap((call, index) => [
          { type: 'content_block_start', index, content_block: call },
          ...(index === 0
            ? []
            : [{ type: 'content_block_delta', index, delta: { type: 'input_json_delta', partial_json: '' } }]),
          { type: 'content_block_stop', index },
        ]);
        const events = [
          { type: 'message_start', message: { ...head, content: [], usage: anthropicUsage } },
          ...blocks,
          { type: 'message_delta', delta: end, usage: { output_tokens: 5 } },
          { type: 'message_stop' },
        ];
        sendEvents(response, ...events.map(named));
        response.end();
      }),
      { model: 'claude-x', interfaces: ['messages'] },
    );
    const client = openai(running);
    const tools = [{ type: 'function' as const, function: { name: 'now' } }];
    const chat = { model: 'm', messages: [{ role: 'user' as const, content: 'a' }], tools };
    const whole = await client.chat.completions.create(chat);
    const streamed = await client.chat.completions.stream(chat).finalChatCompletion();
    for (const { message } of [whole.choices[0], streamed.choices[0]])
      expect(message.tool_calls).toMatchObject([
        { id: 'toolu_1', function: { name: 'now', arguments: '{}' } },
        { id: 'toolu_2', function: { name: 'now', arguments: '{}' } },
      ]);
    const request = {
      model: 'm',
      input: 'a',
      tools: [{ type: 'function' as const, name: 'now', parameters: { type: 'object' }, strict: false }],
    };
    for (const { output } of [
      await client.responses.create(request),
      await client.responses.stream(request).finalResponse(),
    ])
      expect(output).toMatchObject([
        { type: 'function_call', call_id: 'toolu_1', arguments: '{}' },
        { type: 'function_call', call_id: 'toolu_2', arguments: '{}' },
      ]);
  });

  test('embeddings are not found', async () => {
    const running = await start();
    expect((await post(running.url, { model: 'm', input: 'a' }, '/v1/embeddings')).status).toBe(404);
  });
});

describe('a converted response that fails', () => {
  const ask = { model: 'm', max_tokens: 1, messages: [{ role: 'user', content: 'a' }] };

  test.each<[string, RequestListener]>([
    [
      'reports an error',
      (_request, response) => {
        sendEvents(response, chunk({ content: 'a' }), { error: { message: 'overloaded' } });
        response.end();
      },
    ],
    [
      'ends without a reason',
      (_request, response) => {
        sendEvents(response, chunk({ content: 'a' }));
        response.end(DONE);
      },
    ],
    [
      'is cut',
      (_request, response) => {
        for (const content of ['a', 'b', 'c']) sendEvents(response, chunk({ content }));
        breakOff(response);
      },
    ],
    [
      'is no JSON',
      (_request, response) => {
        sendEvents(response, chunk({ content: 'a' }), 'data: {"choices":\n\n');
        response.end();
      },
    ],
    [
      'has tool calls out of order',
      (_request, response) => {
        sendEvents(
          response,
          chunk({ content: 'a' }),
          chunk({ tool_calls: [{ index: 1e9, id: 'x', function: { name: 'f' } }] }),
        );
        response.end();
      },
    ],
  ])('a stream that %s ends with an error event', async (_what, listener) => {
    const running = await startUpstream(listener);
    const text = await (await post(running.url, { ...ask, stream: true }, '/v1/messages')).text();
    expect(text).toContain('"text":"a"');
    expect(text).toContain('event: error\n');
    expect(text).not.toContain('message_stop');
    await until(() => running.records.length === 1);
    expect(running.records[0].failures).toEqual(['cut']);
  });

  test.each<['chat' | 'messages', object]>([
    ['chat', {}],
    ['chat', { prompt_tokens: -5, completion_tokens: 3 }],
    ['chat', { prompt_tokens: 5, completion_tokens: 1e300 }],
    ['chat', { prompt_tokens: '5', completion_tokens: 3.5 }],
    ['messages', {}],
    ['messages', { input_tokens: 5 }],
    ['messages', { input_tokens: 5, output_tokens: -1 }],
  ])('the usage of %s is unknown, not 0, if it has no counts: %j', async (served, usage) => {
    const content = served === 'chat' ? 'Yo' : [{ type: 'text', text: 'Yo' }];
    const message = { role: 'assistant', content };
    const body =
      served === 'chat' ? { choices: [{ message, finish_reason: 'stop' }] } : { ...message, stop_reason: 'end_turn' };
    const running = await startUpstream((_request, response) => sendJson(response, { ...body, usage }), {
      interfaces: [served],
    });
    const path = served === 'chat' ? '/v1/messages' : '/v1/chat/completions';
    const response = await post(running.url, ask, path);
    expect([response.status, await response.text()]).toEqual([200, expect.stringContaining('Yo')]);
    await until(() => running.records.length === 1);
    expect(running.records[0].usage).toBeUndefined();
  });

  test('an endless stream ends with an error event', async () => {
    const comment = `:${'a'.repeat(2 ** 20)}\n\n`;
    const running = await startUpstream((_request, response) => {
      sendEvents(response, chunk({ content: 'a' }));
      response.on('error', () => {});
      const more = (): void => void (response.destroyed || response.write(comment, () => setImmediate(more)));
      more();
    });
    const response = await post(running.url, { model: 'm', input: 'a', stream: true }, '/v1/responses');
    expect(await response.text()).toContain('the stream is longer than 67108864 bytes');
    await until(() => running.records.length === 1);
    expect(running.records[0].failures).toEqual(['cut']);
  });

  test.each([
    ['an array', '[]'],
    ['no choices', '{"choices":[]}'],
    ['no JSON', 'x'],
  ])('%s becomes 502 in the form of the client', async (_what, body) => {
    const running = await startUpstream((_request, response) => {
      response.writeHead(200, { 'Content-Type': 'application/json' });
      response.end(body);
    });
    const response = await post(running.url, ask, '/v1/messages');
    expect([response.status, await response.json()]).toMatchObject([
      502,
      { type: 'error', error: { type: 'api_error' } },
    ]);
  });

  test('an error of the upstream has the form of the client', async () => {
    const running = await startUpstream((_request, response) =>
      sendJson(response, { error: { message: 'slow down', type: 'x', code: 'y' } }, 429),
    );
    const response = await post(running.url, ask, '/v1/messages');
    expect([response.status, await response.json()]).toMatchObject([
      429,
      { type: 'error', error: { type: 'rate_limit_error', message: 'slow down' } },
    ]);
  });

  test('withheld content is reported as such', async () => {
    const running = await startUpstream((_request, response) =>
      sendJson(response, { choices: [{ index: 0, message: { content: '' }, finish_reason: 'content_filter' }] }),
    );
    expect(await (await post(running.url, ask, '/v1/messages')).json()).toMatchObject({ stop_reason: 'refusal' });
    expect(await (await post(running.url, { model: 'm', input: 'a' }, '/v1/responses')).json()).toMatchObject({
      status: 'incomplete',
      incomplete_details: { reason: 'content_filter' },
    });
  });
});

test('a seed of 64 bits keeps its digits in a converted request', async () => {
  const texts: string[] = [];
  const { url } = await startUpstream((request, response) => {
    let text = '';
    request.on('data', (piece: Buffer) => (text += piece.toString()));
    request.on('end', () => {
      texts.push(text);
      sendJson(response, {});
    });
  });
  for (const seed of ['9007199254740993', '7', '9223372036854775807'])
    await fetch(`${url}/d/up/v1/responses`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: `{"model":"x","input":"Hi","seed":${seed}}`,
    });
  expect(texts.map((text) => /"seed":(-?\d+)[,}]/.exec(text)?.[1])).toEqual([
    '9007199254740993',
    '7',
    '9223372036854775807',
  ]);
  for (const text of texts) expect(() => JSON.parse(text) as unknown).not.toThrow();
});
