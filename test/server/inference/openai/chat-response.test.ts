/** Optional parts of responses and streams of POST /v1/chat/completions. */
import type { Engine } from '../../../../ts';
import type { App } from '../../../../server/inference/app';
import { DEFAULT_SETTINGS } from '../../../../server/inference/settings';
import { chatLogprobs, TokenWords } from '../../../../server/inference/openai/logprobs';
import { fake } from '../../../fakes/fake-addon';
import { TINY_TEMPLATE } from '../../../fakes/tiny-model';
import { keysOf, loadEngine, makeApp, type MemoryReply, MESSAGES, post, TOOLS } from './support';

let engine: Engine;
let thinker: Engine;
let app: App;
let thinkingApp: App;

beforeAll(async () => {
  engine = await loadEngine();
  app = makeApp(engine);
  thinker = await loadEngine({
    'tokenizer_config.json': { eos_token: '<|im_end|>', chat_template: `{#- <think></think> #}${TINY_TEMPLATE}` },
  });
  thinkingApp = makeApp(thinker);
});
beforeEach(() => {
  fake.reset();
  fake.answer = () => ({ text: 'ab' });
});
afterAll(() => Promise.all([engine.close(), thinker.close()]));

const send = (body: object, target = app): Promise<MemoryReply> =>
  post(target, '/v1/chat/completions', { messages: MESSAGES, ...body });
const chunksOf = ({ events }: MemoryReply): any[] => events.slice(0, -1);
const deltasOf = (reply: MemoryReply, index = 0): any[] =>
  chunksOf(reply)
    .map(({ choices }) => choices[0])
    .filter((choice) => choice?.index === index)
    .map(({ delta }) => delta);

test('returns exactly the keys of the specification', async () => {
  fake.answer = () => ({
    text: '<tool_call>\n{"name": "get_current_weather", "arguments": {"location": "Beijing"}}\n</tool_call>',
  });
  const body = {
    model: 'tiny',
    messages: [
      { role: 'system', content: 'You are a helpful assistant.' },
      { role: 'user', content: 'What is the weather in Beijing?' },
    ],
    temperature: 0.7,
    max_tokens: 512,
    stream: false,
    tools: [
      {
        type: 'function',
        function: {
          name: 'get_current_weather',
          description: 'The weather of a place',
          parameters: {
            type: 'object',
            properties: {
              location: { type: 'string', description: 'a city' },
              unit: { type: 'string', enum: ['celsius', 'fahrenheit'] },
            },
            required: ['location'],
          },
        },
      },
    ],
    tool_choice: 'auto',
  };
  const { json, text } = await post(app, '/v1/chat/completions', body);
  const {
    id,
    created,
    usage,
    choices: [
      {
        message: {
          tool_calls: [call],
        },
      },
    ],
  } = json;
  expect(text).toBe(
    JSON.stringify({
      id,
      object: 'chat.completion',
      created,
      model: 'tiny',
      choices: [
        {
          index: 0,
          message: {
            role: 'assistant',
            reasoning_content: null,
            content: '',
            tool_calls: [
              {
                id: call.id,
                type: 'function',
                function: { name: 'get_current_weather', arguments: '{"location": "Beijing"}' },
              },
            ],
          },
          logprobs: null,
          finish_reason: 'tool_calls',
          stop_reason: null,
        },
      ],
      usage: {
        prompt_tokens: usage.prompt_tokens,
        total_tokens: usage.prompt_tokens + usage.completion_tokens,
        completion_tokens: usage.completion_tokens,
        prompt_tokens_details: { cached_tokens: 0 },
      },
      prompt_logprobs: null,
    }),
  );
});

describe('token details', () => {
  test('prompt_logprobs is keyed by token id and starts with null', async () => {
    const { json } = await send({ prompt_logprobs: 2 });
    expect(json.prompt_logprobs).toHaveLength(21);
    expect(json.prompt_logprobs[0]).toBeNull();
    const [, second] = json.prompt_logprobs;
    expect(second).toEqual({
      117: { logprob: -0.5, rank: 1, decoded_token: 'u' },
      1: { logprob: -1.5, rank: 2, decoded_token: '\u0001' },
    });
    expect(Object.keys(second[117])).toEqual(['logprob', 'rank', 'decoded_token']);
  });

  test('return_token_ids and return_prompt_text add keys at the end', async () => {
    const { json } = await send({ return_token_ids: true, return_prompt_text: true });
    expect(keysOf(json)).toBe('id object created model choices usage prompt_logprobs prompt_token_ids prompt_text');
    expect(keysOf(json.choices[0])).toBe('index message logprobs finish_reason stop_reason token_ids');
    expect(json.choices[0].token_ids).toEqual([97, 98]);
    expect(json.prompt_token_ids).toEqual([...fake.requests[0].promptTokenIds]);
    expect(json.prompt_text).toBe('<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n');
  });

  test('a stream sends the prompt in the first chunk and tokens with their text', async () => {
    fake.answer = () => ({ text: 'é!' });
    const chunks = chunksOf(await send({ stream: true, return_token_ids: true, return_prompt_text: true, n: 2 }));
    expect(chunks[0].prompt_token_ids).toHaveLength(21);
    expect(chunks[0].prompt_text).toContain('Hi');
    expect(chunks.slice(1).some((chunk) => 'prompt_token_ids' in chunk)).toBe(false);
    expect(
      chunks
        .filter(({ choices: [choice] }) => choice.index === 1)
        .flatMap(({ choices: [choice] }) => choice.token_ids ?? []),
    ).toEqual([195, 169, 33]);
  });

  test('return_tokens_as_token_ids spells tokens as ids', async () => {
    const { json } = await send({ logprobs: true, top_logprobs: 2, return_tokens_as_token_ids: true });
    expect(json.choices[0].logprobs.content[0]).toEqual({
      token: 'token_id:97',
      logprob: -0.5,
      bytes: [97],
      top_logprobs: [
        { token: 'token_id:97', logprob: -0.5, bytes: [97] },
        { token: 'token_id:1', logprob: -1.5, bytes: [1] },
      ],
    });
  });

  test.each([false, true])(
    'tokens that a tool call swallows keep their log-probabilities, streaming: %s',
    async (stream) => {
      const text = 'I look. <tool_call>{"name": "f", "arguments": {}}</tool_call>';
      fake.answer = () => ({ text });
      const reply = await send({ logprobs: true, tools: TOOLS, stream });
      const content = stream
        ? chunksOf(reply).flatMap(({ choices: [choice] }) => choice.logprobs?.content ?? [])
        : reply.json.choices[0].logprobs.content;
      expect(Buffer.from(content.flatMap(({ bytes }: { bytes: number[] }) => bytes)).toString()).toBe(text);
    },
  );

  test('reports minus infinity as -9999', () => {
    expect(
      chatLogprobs([{ tokenId: 97, logprob: -Infinity, rank: 9, topLogprobs: [] }], new TokenWords(engine)),
    ).toEqual({ content: [{ token: 'a', logprob: -9999, bytes: [97], top_logprobs: [] }] });
  });
});

describe('tool calls', () => {
  const CALLS =
    '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>\n<tool_call>{"name": "g", "arguments": {}}</tool_call>';

  test('parallel_tool_calls false ends after the first call', async () => {
    fake.answer = () => ({ text: CALLS });
    for (const stream of [false, true]) {
      const reply = await send({ tools: TOOLS, parallel_tool_calls: false, stream });
      const calls = stream
        ? deltasOf(reply)
            .flatMap((delta) => delta.tool_calls ?? [])
            .filter(({ id }) => id !== undefined)
        : reply.json.choices[0].message.tool_calls;
      expect(calls.map((call: { function: { name: string } }) => call.function.name)).toEqual(['f']);
      const finish = stream ? chunksOf(reply).at(-1).choices[0].finish_reason : reply.json.choices[0].finish_reason;
      expect(finish).toBe('tool_calls');
    }
  });

  test.each<[choice: unknown, reason: string]>([
    ['required', 'tool_calls'],
    [{ type: 'function', function: { name: 'f' } }, 'stop'],
  ])('tool_choice %j finishes with %s', async (choice, reason) => {
    fake.answer = () => ({ text: '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>' });
    for (const stream of [false, true]) {
      const reply = await send({ tools: TOOLS, tool_choice: choice, stream });
      expect(reply.status).toBe(200);
      expect((stream ? chunksOf(reply).at(-1) : reply.json).choices[0].finish_reason).toBe(reason);
    }
    expect(fake.requests[0].grammar).not.toBeNull();
  });

  test('strict tools are constrained by their schema, and an unsupported schema is refused with its path', async () => {
    fake.answer = () => ({ text: 'ab' });
    const tool = (parameters: object) => [{ type: 'function', function: { name: 'f', strict: true, parameters } }];
    await send({ tools: tool({ type: 'object', properties: { a: { type: 'integer' } } }) });
    expect(fake.requests[0].grammar ?? null).not.toBeNull();
    const reply = await send({ tools: tool({ type: 'object', properties: { a: { contains: {} } } }) });
    expect([reply.status, reply.json.error.code, reply.json.error.param]).toEqual([
      400,
      'unsupported_value',
      'tools[0].function.parameters',
    ]);
    expect(reply.json.error.message).toContain('/properties/a/contains');
    const older = await send({ functions: [tool({ contains: {} })[0].function] });
    expect([older.json.error.code, older.json.error.param]).toEqual(['unsupported_value', 'functions[0].parameters']);
  });
});

describe('reasoning', () => {
  beforeEach(() => {
    fake.answer = () => ({ text: '<think>\nhm\n</think>\n\nYes' });
  });
  const think = (body: object) => send(body, thinkingApp);

  test('is sent under both names, and its tokens are counted', async () => {
    const { json } = await think({});
    expect(keysOf(json.choices[0].message)).toBe('role reasoning_content content tool_calls reasoning');
    expect(json.choices[0].message).toMatchObject({ reasoning_content: 'hm', content: 'Yes', reasoning: 'hm' });
    expect(keysOf(json.usage)).toBe(
      'prompt_tokens total_tokens completion_tokens prompt_tokens_details completion_tokens_details',
    );
    expect(json.usage.completion_tokens_details.reasoning_tokens).toBeGreaterThan(0);
  });

  test('comes before the text of a stream, in separate chunks', async () => {
    const reply = await think({ stream: true, stream_options: { include_usage: true } });
    const deltas = deltasOf(reply).slice(1, -1);
    expect(deltas.map((delta) => delta.reasoning_content ?? '').join('')).toBe('hm');
    expect(deltas.every((delta) => delta.reasoning_content === delta.reasoning)).toBe(true);
    expect(deltas.map((delta) => delta.content ?? '').join('')).toBe('Yes');
    expect(deltas.some((delta) => 'content' in delta && 'reasoning' in delta)).toBe(false);
    expect(chunksOf(reply).at(-1).usage.completion_tokens_details.reasoning_tokens).toBeGreaterThan(0);
  });

  test('is sent in one piece with stream_reasoning false', async () => {
    const deltas = deltasOf(await think({ stream: true, stream_reasoning: false }));
    expect(deltas.filter((delta) => 'reasoning' in delta)).toEqual([{ reasoning_content: 'hm', reasoning: 'hm' }]);
    expect(deltas.findIndex((delta) => 'reasoning' in delta)).toBeLessThan(
      deltas.findIndex((delta) => 'content' in delta && delta.content !== ''),
    );
  });

  test('is omitted with include_reasoning false', async () => {
    const { message } = (await think({ include_reasoning: false })).json.choices[0];
    expect([message.reasoning_content, message.content, 'reasoning' in message]).toEqual([null, 'Yes', false]);
    expect(
      deltasOf(await think({ include_reasoning: false, stream: true })).some((delta) => 'reasoning' in delta),
    ).toBe(false);
  });

  test.each([{ separate_reasoning: false }, { reasoning_format: 'none' }])(
    'stays in the text with %j',
    async (body) => {
      expect((await think(body)).json.choices[0].message).toMatchObject({
        reasoning_content: null,
        content: '<think>\nhm\n</think>\n\nYes',
      });
    },
  );

  test('that never closes leaves the content empty', async () => {
    fake.answer = () => ({ text: '<think>on and on' });
    expect((await think({ max_tokens: 4 })).json.choices[0]).toMatchObject({
      message: { content: '' },
      finish_reason: 'length',
    });
  });

  test('thinking_token_budget is passed to the engine', async () => {
    await think({ thinking_token_budget: 7 });
    expect(fake.requests[0].sampling.thinkingBudget).toMatchObject({ budget: 7 });
  });
});

describe('usage in a stream', () => {
  test('continuous usage counts the tokens up to each chunk', async () => {
    fake.answer = () => ({ text: 'aé<tool_call>{"name": "f"}</tool_call>' });
    const chunks = chunksOf(
      await send({
        stream: true,
        tools: TOOLS,
        n: 2,
        stream_options: { include_usage: true, continuous_usage_stats: true },
      }),
    );
    const counts = chunks.map(({ usage }) => usage.completion_tokens as number);
    expect(counts.slice(0, 2)).toEqual([0, 0]);
    expect(counts).toEqual([...counts].sort((a, b) => a - b));
    expect(counts.at(-2)).toBe(counts.at(-1));
    for (const { usage } of chunks) expect(usage.total_tokens).toBe(usage.prompt_tokens + usage.completion_tokens);
    // The number of cached tokens is known only at the end.
    expect(chunks.slice(0, -1).some(({ usage }) => 'prompt_tokens_details' in usage)).toBe(false);
    expect(chunks.at(-1)).toMatchObject({ choices: [], usage: { prompt_tokens_details: { cached_tokens: 0 } } });
  });

  test('is sent without being requested if the server is configured so', async () => {
    const forced = makeApp(engine, { settings: { ...DEFAULT_SETTINGS, forceIncludeUsage: true } });
    expect(chunksOf(await send({ stream: true }, forced)).at(-1)).toMatchObject({
      choices: [],
      usage: { completion_tokens: 2 },
    });
  });

  test('has no details without a prefix cache', async () => {
    const plain = await loadEngine({}, { prefixCache: false });
    expect((await send({}, makeApp(plain))).json.usage.prompt_tokens_details).toBeNull();
    await plain.close();
  });
});

test('writes the chunks of one step at once', async () => {
  fake.answer = () => ({ text: 'abcdef', tokensPerStep: 6 });
  const { writes } = await send({ stream: true });
  expect(writes).toHaveLength(3);
  expect(writes[1]).toContain('"finish_reason":"stop"');
});

test('stop_reason is null, the stop string or the stop token id', async () => {
  for (const stopReason of [undefined, 'x', 5]) {
    fake.answer = () => ({ text: 'ab', ...(stopReason === undefined ? {} : { stopReason }) });
    expect((await send({})).json.choices[0].stop_reason).toBe(stopReason ?? null);
    const finish = chunksOf(await send({ stream: true })).at(-1).choices[0];
    expect(finish).toEqual({
      index: 0,
      delta: {},
      logprobs: null,
      finish_reason: 'stop',
      stop_reason: stopReason ?? null,
    });
  }
});
