/** The official OpenAI client over both transports. */
import OpenAI from 'openai';
import { Engine } from '../../../../ts';
import { App } from '../../../../server/inference/app';
import { createTransport } from '../../../../server/http/create-transport';
import type { Transport } from '../../../../server/http/transport';
import { fake } from '../../../fakes/fake-addon';
import { tinyModel } from '../../../fakes/tiny-model';

const tools: OpenAI.ChatCompletionTool[] = [
  {
    type: 'function',
    function: {
      name: 'get_weather',
      parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
    },
  },
];

describe.each(['uws', 'node'] as const)('over %s', (name) => {
  let engine: Engine;
  let transport: Transport;
  let client: OpenAI;

  beforeAll(async () => {
    process.env.CAPSTAN_ADDON = require.resolve('../../../fakes/fake-addon');
    engine = await Engine.load(tinyModel());
    const log = { debug: jest.fn(), info: jest.fn(), warn: jest.fn(), error: jest.fn() };
    const app = new App({
      servedNames: ['tiny'],
      healthStallTimeoutMs: 1000,
      sse: { pingIntervalMs: 20, slowClientTimeoutMs: 60_000 },
      log: log as never,
    });
    app.serve(engine);
    transport = await createTransport(name, {
      handler: (request, reply) => app.handle(request, reply),
      maxBodyBytes: 1 << 20,
      bodyTimeoutMs: 60_000,
    });
    const port = await transport.listen('127.0.0.1', 0);
    client = new OpenAI({ baseURL: `http://127.0.0.1:${port}/v1`, apiKey: 'any', maxRetries: 0 });
  });
  beforeEach(() => fake.reset());
  afterAll(async () => {
    await engine.close();
    await transport.close();
  });

  test('chats', async () => {
    const answer = await client.chat.completions.create({ model: 'tiny', messages: [{ role: 'user', content: 'Hi' }] });
    expect(answer.choices[0].message.content).toBe('Hello from the fake engine. Größe 😀!');
    expect(answer.usage!.total_tokens).toBe(answer.usage!.prompt_tokens + answer.usage!.completion_tokens);
  });

  test('streams, with usage', async () => {
    const stream = await client.chat.completions.create({
      model: 'tiny',
      messages: [{ role: 'user', content: 'Hi' }],
      stream: true,
      stream_options: { include_usage: true },
    });
    let text = '';
    let usage: OpenAI.CompletionUsage | null | undefined;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta.content ?? '';
      usage = chunk.usage ?? usage;
    }
    expect(text).toBe('Hello from the fake engine. Größe 😀!');
    expect(usage!.completion_tokens).toBeGreaterThan(0);
  });

  test.each([false, true])('completes a tool-call round trip, streaming: %s', async (isStream) => {
    const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: 'What is the weather in Bern?' }];
    const ask = async () =>
      isStream
        ? client.chat.completions.stream({ model: 'tiny', messages, tools }).finalChatCompletion()
        : client.chat.completions.create({ model: 'tiny', messages, tools });
    const {
      choices: [first],
    } = await ask();
    expect(first.finish_reason).toBe('tool_calls');
    const [call] = first.message.tool_calls!;
    expect(call).toMatchObject({ type: 'function', function: { name: 'get_weather', arguments: '{"city": "Bern"}' } });
    messages.push(first.message, { role: 'tool', tool_call_id: call.id, content: '{"degrees": 21}' });
    const {
      choices: [second],
    } = await ask();
    expect([second.finish_reason, second.message.content]).toEqual(['stop', 'It is 21 degrees in Bern.']);
  });

  test('reads the refusals of earlier answers', async () => {
    const send = (content: OpenAI.ChatCompletionAssistantMessageParam['content']) =>
      client.chat.completions.create({
        model: 'tiny',
        messages: [
          { role: 'user', content: 'Hi' },
          { role: 'assistant', content },
          { role: 'user', content: 'Why?' },
        ],
      });
    await send([{ type: 'refusal', refusal: 'I cannot do that.' }]);
    await send('I cannot do that.');
    const [parts, text] = fake.requests.map(({ promptTokenIds }) => [...promptTokenIds]);
    expect(parts).toEqual(text);
    await expect(send([{ type: 'refusal' } as never])).rejects.toMatchObject({
      status: 400,
      param: 'messages[1].content[0].refusal',
    });
  });

  test('a streamed tool call has no empty text before it', async () => {
    fake.answer = () => ({
      text: '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>',
    });
    const deltasOf = async (sent: object) => {
      const stream = await client.chat.completions.create({
        model: 'tiny',
        messages: [{ role: 'user', content: 'What is the weather in Bern?' }],
        stream: true,
        ...sent,
      });
      const deltas: OpenAI.ChatCompletionChunk.Choice.Delta[] = [];
      for await (const chunk of stream) deltas.push(chunk.choices[0].delta);
      return deltas;
    };
    const [first, second, ...rest] = await deltasOf({ tools });
    expect(first).toEqual({ role: 'assistant', content: null });
    expect(second.tool_calls![0]).toMatchObject({ index: 0, type: 'function', function: { name: 'get_weather' } });
    expect(rest.some((delta) => 'content' in delta)).toBe(false);
    for (const sent of [{}, { tools: [] }, { tools, tool_choice: 'none' }])
      expect((await deltasOf(sent))[0]).toEqual({ role: 'assistant', content: '' });
  });

  test.each(['required', { type: 'function', function: { name: 'get_weather' } }] as const)(
    'forces a call: %j',
    async (choice) => {
      const {
        choices: [{ message, finish_reason: reason }],
      } = await client.chat.completions.create({
        model: 'tiny',
        messages: [{ role: 'user', content: 'What is the weather in Bern?' }],
        tools,
        tool_choice: choice,
      });
      expect(message.tool_calls![0]).toMatchObject({ type: 'function', function: { name: 'get_weather' } });
      expect(reason).toBe(typeof choice === 'string' ? 'tool_calls' : 'stop');
    },
  );

  test('parses structured output and runs tools', async () => {
    fake.answer = () => ({ text: '{"city": "Bern", "degrees": 21}' });
    const schema = {
      type: 'object',
      properties: { city: { type: 'string' }, degrees: { type: 'integer' } },
      required: ['city', 'degrees'],
      additionalProperties: false,
    };
    const format = { type: 'json_schema' as const, json_schema: { name: 'weather', strict: true, schema } };
    const answer = await client.chat.completions.create({
      model: 'tiny',
      messages: [{ role: 'user', content: 'Weather?' }],
      response_format: format,
    });
    expect(JSON.parse(answer.choices[0].message.content!)).toEqual({ city: 'Bern', degrees: 21 });
    expect(fake.requests[0].grammar).toBeDefined();
    fake.reset();
    const called: unknown[] = [];
    const run = client.chat.completions.runTools({
      model: 'tiny',
      messages: [{ role: 'user', content: 'What is the weather in Bern?' }],
      tools: [
        {
          type: 'function',
          function: {
            name: 'get_weather',
            description: 'd',
            parameters: { type: 'object' },
            parse: JSON.parse,
            function: (args: unknown) => {
              called.push(args);
              return '21';
            },
          },
        },
      ],
    });
    expect(await run.finalContent()).toBe('It is 21 degrees in Bern.');
    expect(called).toEqual([{ city: 'Bern' }]);
  });

  test('gets log-probabilities and several choices', async () => {
    const { choices } = await client.chat.completions.create({
      model: 'tiny',
      messages: [{ role: 'user', content: 'Hi' }],
      n: 2,
      logprobs: true,
      top_logprobs: 1,
    });
    expect(choices.map(({ index }) => index)).toEqual([0, 1]);
    expect(choices[1].logprobs!.content!.map(({ token }) => token).join('')).toContain('Hello from');
  });

  test('completes texts, scores them, and streams', async () => {
    const answer = await client.completions.create({ model: 'tiny', prompt: ['a', 'b'], max_tokens: 5 });
    expect(answer.choices.map(({ index, text, finish_reason: reason }) => [index, text, reason])).toEqual([
      [0, 'Hello', 'length'],
      [1, 'Hello', 'length'],
    ]);
    const scored = await client.completions.create({
      model: 'tiny',
      prompt: 'abc',
      max_tokens: 0,
      echo: true,
      logprobs: 1,
    });
    expect([scored.choices[0].text, scored.choices[0].logprobs!.tokens, scored.usage!.completion_tokens]).toEqual([
      'abc',
      ['a', 'b', 'c'],
      0,
    ]);
    const stream = await client.completions.create({ model: 'tiny', prompt: 'a', stream: true, max_tokens: 100 });
    let text = '';
    for await (const chunk of stream) text += chunk.choices[0].text;
    expect(text).toBe('Hello from the fake engine. Größe 😀!');
  });

  test('lists models', async () => {
    const { data } = await client.models.list();
    expect(data.map((model) => model.id)).toEqual(['tiny']);
    expect((await client.models.retrieve('tiny')).object).toBe('model');
  });

  test('raises the error classes of the client', async () => {
    const create = (body: object) =>
      client.chat.completions.create({
        model: 'tiny',
        messages: [{ role: 'user', content: 'Hi' }],
        ...body,
      } as OpenAI.ChatCompletionCreateParamsNonStreaming);
    await expect(create({ model: 'x' })).rejects.toMatchObject({
      constructor: OpenAI.NotFoundError,
      status: 404,
      code: 'model_not_found',
      param: 'model',
      type: 'invalid_request_error',
    });
    await expect(create({ temperature: 5 })).rejects.toMatchObject({
      constructor: OpenAI.BadRequestError,
      code: 'invalid_value',
      param: 'temperature',
    });
    await expect(create({ max_tokens: 100_000 })).rejects.toMatchObject({
      constructor: OpenAI.BadRequestError,
      code: 'context_length_exceeded',
      param: 'max_tokens',
    });
    await expect(
      create({ response_format: { type: 'json_schema', json_schema: { name: 'x', schema: { not: {} } } } }),
    ).rejects.toMatchObject({
      constructor: OpenAI.BadRequestError,
      code: 'unsupported_value',
      param: 'response_format',
    });
    await expect(client.embeddings.create({ model: 'tiny', input: 'a' })).rejects.toMatchObject({
      constructor: OpenAI.BadRequestError,
      code: 'unsupported_task',
    });
    await expect(client.completions.create({ model: 'tiny', prompt: '' })).rejects.toMatchObject({
      constructor: OpenAI.BadRequestError,
      param: 'prompt',
    });
    await expect(create({ messages: [{ role: 'user', content: 'boom' }] })).rejects.toMatchObject({
      constructor: OpenAI.InternalServerError,
      code: 'internal_error',
    });
  });

  test('raises an error in the middle of a stream', async () => {
    const stream = await client.chat.completions.create({
      model: 'tiny',
      messages: [{ role: 'user', content: 'boom' }],
      stream: true,
    });
    let text = '';
    await expect(
      (async () => {
        for await (const chunk of stream) text += chunk.choices[0].delta.content ?? '';
      })(),
    ).rejects.toThrow('The server could not finish this request');
    expect(text).toBe('so far so');
  });

  test('skips the comments of a silent stream', async () => {
    fake.answer = () => ({ text: 'ab', stepMs: 100 });
    const stream = await client.chat.completions.create({
      model: 'tiny',
      messages: [{ role: 'user', content: 'Hi' }],
      stream: true,
    });
    let text = '';
    for await (const chunk of stream) text += chunk.choices[0].delta.content ?? '';
    expect(text).toBe('ab');
  });

  test.each([true, false])('aborts the generation when the client disconnects, streaming: %s', async (isStream) => {
    const controller = new AbortController();
    const answer = client.chat.completions.create(
      { model: 'tiny', messages: [{ role: 'user', content: 'forever' }], stream: isStream },
      { signal: controller.signal },
    );
    const reading = (async () => {
      const stream = await answer;
      if (isStream) for await (const _ of stream as AsyncIterable<unknown>) controller.abort();
    })().catch(() => {});
    while (fake.requests.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
    if (!isStream) controller.abort();
    await reading;
    for (let waited = 0; engine.stats().numRunning > 0 && waited < 60_000; waited += 10)
      await new Promise((resolve) => setTimeout(resolve, 10));
    expect(engine.stats().numRunning).toBe(0);
    expect(fake.aborted).toHaveLength(1);
  });

  test('keeps many concurrent streams apart', async () => {
    fake.answer = (prompt) => ({ text: `You said ${/user\n(.*?)<\|im_end\|>/s.exec(prompt)![1]}. `.repeat(5) });
    const answers = await Promise.all(
      Array.from({ length: 32 }, async (_, i) => {
        const stream = await client.chat.completions.create({
          model: 'tiny',
          messages: [{ role: 'user', content: `number ${i}` }],
          stream: true,
        });
        let text = '';
        for await (const chunk of stream) text += chunk.choices[0].delta.content ?? '';
        return text;
      }),
    );
    answers.forEach((text, i) => expect(text).toBe(`You said number ${i}. `.repeat(5)));
  });
});
