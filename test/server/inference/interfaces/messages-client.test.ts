/** /v1/messages with the official Anthropic client. */
import Anthropic from '@anthropic-ai/sdk';
import { Engine } from '../../../../ts';
import { fake } from '../../../fakes/fake-addon';
import { callText, loadTiny, log, type Served, serveTiny, until } from './support';

const HELLO = 'Hello from the fake engine. Größe 😀!';
const WEATHER: Anthropic.Tool = {
  name: 'get_weather',
  input_schema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
};
// A set of tools has no name.
const MCP = { type: 'mcp_toolset', mcp_server_name: 'x' } as never;
const BASE = { model: 'tiny', max_tokens: 1000 };
const ASK: Anthropic.MessageParam[] = [{ role: 'user', content: 'What is the weather?' }];

let engine: Engine;
let served: Served;
let client: Anthropic;
let prompts: string[];

beforeAll(async () => {
  engine = await loadTiny();
  served = await serveTiny(engine, { sse: { pingIntervalMs: 20, slowClientTimeoutMs: 60_000 } });
  client = served.anthropic;
});
beforeEach(() => {
  fake.reset();
  jest.clearAllMocks();
  prompts = [];
});
afterAll(async () => {
  await engine.close();
  await served.close();
});

/** Answers each request with the next text. */
function script(...texts: string[]): void {
  fake.answer = (prompt) => {
    prompts.push(prompt);
    return { text: texts[prompts.length - 1] };
  };
}

function send(body: object): Promise<Response> {
  return fetch(`${served.url}/v1/messages`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ ...BASE, messages: ASK, ...body }),
  });
}

/** The events of a stream as they are on the wire: the name and the data. */
async function eventsOf(body: object): Promise<{ name: string; data: any }[]> {
  const text = await (await send({ ...body, stream: true })).text();
  return text
    .trim()
    .split('\n\n')
    .map((event) => {
      const [, name, data] = /^event: (\w+)\ndata: (.*)$/.exec(event)!;
      return { name, data: JSON.parse(data) as any };
    });
}

test('a text gets a text, with usage', async () => {
  const { data, response } = await client.messages
    .create({ ...BASE, system: 'Be brief.', messages: [{ role: 'user', content: 'Hi' }] })
    .withResponse();
  expect(data).toMatchObject({
    type: 'message',
    role: 'assistant',
    model: 'tiny',
    content: [{ type: 'text', text: HELLO }],
    stop_reason: 'end_turn',
    stop_sequence: null,
    usage: { cache_creation_input_tokens: 0, cache_read_input_tokens: 0 },
  });
  expect(data.usage.output_tokens).toBeGreaterThan(0);
  expect(response.headers.get('request-id')).toBe(response.headers.get('x-request-id'));
  const { input_tokens: counted } = await client.messages.countTokens({
    model: 'tiny',
    system: 'Be brief.',
    messages: [{ role: 'user', content: 'Hi' }],
  });
  expect(counted).toBe(data.usage.input_tokens);
});

const RICH = `<think>\nhm\n</think>\n\nLet me look.\n${callText('get_weather', { city: 'Bern' })}\n${callText('get_weather', { city: 'Thun' })}`;

test('a stream has every event once, in order, and its parts make the message that is sent without a stream', async () => {
  script(RICH, RICH, RICH);
  const body = { tools: [WEATHER], thinking: { type: 'enabled' as const, budget_tokens: 100 } };
  const whole = await client.messages.create({ ...BASE, messages: ASK, ...body });
  expect(whole.content.map(({ type }) => type)).toEqual(['thinking', 'text', 'tool_use', 'tool_use']);
  expect(whole.content.slice(2)).toMatchObject([{ input: { city: 'Bern' } }, { input: { city: 'Thun' } }]);
  expect(whole.stop_reason).toBe('tool_use');

  const streamed = await client.messages.stream({ ...BASE, messages: ASK, ...body }).finalMessage();
  const comparable = ({ content, usage, stop_reason: reason }: Anthropic.Message) => ({
    content: content.map((block) => ({ ...block, ...('id' in block ? { id: '' } : {}), parsed_output: undefined })),
    usage: { ...usage },
    reason,
  });
  expect(comparable(streamed)).toEqual(comparable(whole));

  const events = await eventsOf(body);
  expect(events.map(({ data }) => data.type)).toEqual(events.map(({ name }) => name));
  const block = (...deltas: string[]) => ['content_block_start', ...deltas, 'content_block_stop'];
  expect(events[1].name).toBe('ping');
  const shown = events.filter(({ name }) => name !== 'ping').map(({ name, data }) => data.delta?.type ?? name);
  expect(shown.filter((name, i) => name !== shown[i - 1])).toEqual([
    'message_start',
    ...block('thinking_delta', 'signature_delta'),
    ...block('text_delta'),
    ...block('input_json_delta'),
    ...block('input_json_delta'),
    'message_delta',
    'message_stop',
  ]);
});

test('parallel results, thinking that is returned, and text beside results', async () => {
  script(RICH, 'Rain in both.');
  const first = await client.messages.create({
    ...BASE,
    messages: ASK,
    tools: [WEATHER],
    thinking: { type: 'enabled', budget_tokens: 1024 },
  });
  const [one, two] = first.content.filter((block) => block.type === 'tool_use');
  const second = await client.messages.create({
    ...BASE,
    tools: [WEATHER],
    messages: [
      ...ASK,
      { role: 'assistant', content: first.content },
      {
        role: 'user',
        content: [
          { type: 'tool_result', tool_use_id: one.id, content: 'rain' },
          { type: 'tool_result', tool_use_id: two.id, content: [{ type: 'text', text: 'more rain' }], is_error: false },
          { type: 'text', text: 'Sum it up.' },
        ],
      },
    ],
  });
  expect(second.content).toMatchObject([{ type: 'text', text: 'Rain in both.' }]);
  expect(prompts[1]).toMatch(
    /assistant\nLet me look\.\n?<think>hm<\/think><tool_call>.*Bern.*<\/tool_call><tool_call>.*Thun.*<\/tool_call><\|im_end\|>\n<\|im_start\|>user\n<tool_response>rain<\/tool_response><\|im_end\|>\n<\|im_start\|>user\n<tool_response>more rain<\/tool_response><\|im_end\|>\n<\|im_start\|>user\nSum it up\.<\|im_end\|>/,
  );
});

test('a message of the model at the end is continued', async () => {
  script(' is Bern.');
  await client.messages.create({
    ...BASE,
    messages: [...ASK, { role: 'assistant', content: [{ type: 'text', text: 'The city' }] }],
  });
  expect(prompts[0].endsWith('<|im_start|>assistant\nThe city')).toBe(true);
});

test('choices of tools', async () => {
  const call = callText('get_weather', { city: 'Bern' });
  const choose = async (choice: Anthropic.ToolChoice) =>
    client.messages.create({ ...BASE, messages: ASK, tools: [WEATHER], tool_choice: choice });
  script(call, call, `${call}\n${call}`, call);
  for (const choice of [{ type: 'any' }, { type: 'tool', name: 'get_weather' }] as const)
    expect((await choose(choice)).stop_reason).toBe('tool_use');
  expect((await choose({ type: 'auto', disable_parallel_tool_use: true })).content).toHaveLength(1);
  const none = await choose({ type: 'none' });
  expect([none.content[0].type, none.stop_reason]).toEqual(['text', 'end_turn']);
  expect(fake.requests.map(({ grammar }) => grammar !== null)).toEqual([true, true, false, false]);
});

test('stop sequences, and a message that max_tokens cuts', async () => {
  fake.answer = () => ({ text: 'one ', stopReason: 'two' });
  expect(await client.messages.create({ ...BASE, messages: ASK, stop_sequences: ['two'] })).toMatchObject({
    stop_reason: 'stop_sequence',
    stop_sequence: 'two',
  });
  expect(Array.from(fake.requests[0].sampling.stop)).toEqual(['two']);
  expect((await client.messages.create({ ...BASE, max_tokens: 2, messages: ASK })).stop_reason).toBe('max_tokens');
  // Agents ask for more than small contexts hold.
  expect(await (await send({ max_tokens: 900_000 })).json()).toMatchObject({ stop_reason: 'stop_sequence' });
});

test('structured output', async () => {
  script('{"city": "Bern"}');
  const schema = { type: 'object', properties: { city: { type: 'string' } }, additionalProperties: false };
  await client.messages.create({
    ...BASE,
    messages: ASK,
    output_config: { format: { type: 'json_schema', schema } },
  });
  expect(fake.grammars).toHaveLength(1);
  const response = await send({ output_config: { format: { type: 'json_schema', schema: { not: {} } } } });
  expect(await response.json()).toMatchObject({
    error: { message: expect.stringMatching(/^output_config\.format: /) as string },
  });
});

test('thinking is off unless the request asks for it', async () => {
  const template = `{#- <think></think> #}{{- '[' ~ enable_thinking ~ ' ' ~ reasoning_effort ~ ']' }}`;
  const { tinyModel } = await import('../../../fakes/tiny-model.js');
  const loaded = await Engine.load(
    tinyModel({ 'tokenizer_config.json': { eos_token: '<|im_end|>', chat_template: template } }),
  );
  const other = await serveTiny(loaded);
  script('a', 'b', 'c', 'd');
  for (const thinking of [undefined, { type: 'disabled' }, { type: 'enabled', budget_tokens: 5 }, { type: 'adaptive' }])
    await other.anthropic.messages.create({ ...BASE, messages: ASK, thinking: thinking as never });
  expect(prompts).toEqual(['[False none]', '[False none]', '[True high]', '[True high]']);
  expect(fake.requests.map(({ sampling }) => sampling.thinkingBudget !== null)).toEqual([false, false, true, false]);
  await other.close();
  await loaded.close();
});

test("tools of Anthropic's own types are left out with one log line", async () => {
  await client.messages.create({
    ...BASE,
    messages: ASK,
    tools: [{ type: 'web_search_20250305', name: 'web_search' }, MCP, WEATHER],
  });
  expect(log.info).toHaveBeenCalledTimes(1);
  await expect(
    client.messages.create({
      ...BASE,
      messages: ASK,
      tools: [{ type: 'web_search_20250305', name: 'web_search' }],
      tool_choice: { type: 'tool', name: 'web_search' },
    }),
  ).rejects.toMatchObject({ status: 400 });
});

test('documents of text are text for the model', async () => {
  script('Yes', 'Yes');
  const documents: Anthropic.DocumentBlockParam[] = [
    {
      type: 'document',
      title: 'Rope',
      context: 'A manual',
      source: { type: 'text', media_type: 'text/plain', data: 'Pull\nhard.' },
      cache_control: { type: 'ephemeral' },
    },
    {
      type: 'document',
      title: null,
      context: null,
      citations: { enabled: false },
      source: {
        type: 'content',
        content: [
          { type: 'text', text: 'One' },
          { type: 'text', text: 'Two' },
        ],
      },
    },
    { type: 'document', source: { type: 'content', content: 'Three' } },
  ];
  const texts = [
    '<document>\n<title>Rope</title>\n<context>A manual</context>\n<content>\nPull\nhard.\n</content>\n</document>\n',
    '<document>\n<content>\nOne\nTwo\n</content>\n</document>\n',
    '<document>\n<content>\nThree\n</content>\n</document>\n',
  ];
  await client.messages.create({
    ...BASE,
    messages: [{ role: 'user', content: [...documents, { type: 'text', text: 'Summarize.' }] }],
  });
  for (const text of texts) expect(prompts[0]).toContain(text);
  expect(prompts[0]).toMatch(/Rope[^]*One[^]*Three[^]*<\/document>\n+Summarize\./);
  await client.messages.create({
    ...BASE,
    messages: [
      ...ASK,
      { role: 'assistant', content: [{ type: 'tool_use', id: 'a', name: 'read', input: {} }] },
      { role: 'user', content: [{ type: 'tool_result', tool_use_id: 'a', content: [documents[0]] }] },
    ],
  });
  expect(prompts[1]).toContain(`<tool_response>${texts[0]}`);
});

test('search results are text for the model', async () => {
  script('Yes', 'Yes');
  const found: Anthropic.SearchResultBlockParam = {
    type: 'search_result',
    source: 'https://a.b/rope',
    title: 'Rope',
    content: [
      { type: 'text', text: 'Pull' },
      { type: 'text', text: 'hard.' },
    ],
    citations: { enabled: false },
  };
  const text =
    '<search_result>\n<source>https://a.b/rope</source>\n<title>Rope</title>\n<content>\nPull\nhard.\n</content>\n</search_result>\n';
  const content = [found, { type: 'text' as const, text: 'Summarize.' }];
  await client.messages.create({ ...BASE, messages: [{ role: 'user', content }] });
  expect(prompts[0]).toContain(`${text}\nSummarize.`);
  await client.messages.create({
    ...BASE,
    messages: [
      ...ASK,
      { role: 'assistant', content: [{ type: 'tool_use', id: 'a', name: 'search', input: {} }] },
      { role: 'user', content: [{ type: 'tool_result', tool_use_id: 'a', content: [found] }] },
    ],
  });
  expect(prompts[1]).toContain(`<tool_response>${text}`);
});

test('a request for no tokens fills the cache and writes nothing', async () => {
  const message = await client.messages.create({ ...BASE, max_tokens: 0, messages: ASK });
  expect(message).toMatchObject({ content: [], stop_reason: 'max_tokens', usage: { output_tokens: 0 } });
  const events = await eventsOf({ max_tokens: 0 });
  expect(events.map(({ name }) => name)).toEqual(['message_start', 'ping', 'message_delta', 'message_stop']);
});

test('a text with citations of another server is a text', async () => {
  script('Yes');
  const cited = { type: 'text', text: 'Earlier.', citations: [{ type: 'char_location', cited_text: 'a' }] };
  await send({ messages: [...ASK, { role: 'assistant', content: [cited] }, { role: 'user', content: 'And?' }] });
  expect(prompts[0]).toContain('Earlier.');
});

test.each<[string, object, RegExp]>([
  [
    'an image',
    { messages: [{ role: 'user', content: [{ type: 'image', source: { type: 'base64', data: 'AA==' } }] }] },
    // Claude Code leaves an image out if the error has these words.
    /^messages\[0\]\.content\[0\]\.type: .* got "image"\. Could not process image$/,
  ],
  [
    'an image in a result',
    {
      messages: [{ role: 'user', content: [{ type: 'tool_result', tool_use_id: 'x', content: [{ type: 'image' }] }] }],
    },
    /^messages\[0\]\.content\[0\]\.content\[0\]\.type: .* got "image"\. Could not process image$/,
  ],
  ...(
    [
      ['no source', {}, /^messages\[0\]\.content\[0\]\.source: /],
      ['a text as source', { source: 'a' }, /^messages\[0\]\.content\[0\]\.source: expected an object/],
      [
        'a PDF file',
        { source: { type: 'base64', media_type: 'application/pdf', data: 'AA==' } },
        /^messages\[0\]\.content\[0\]\.source\.type: .* got "base64"/,
      ],
      ['a URL', { source: { type: 'url', url: 'https://a.b/c.pdf' } }, /\.source\.type: .* got "url"/],
      ['a file', { source: { type: 'file', file_id: 'file_1' } }, /\.source\.type: .* got "file"/],
      ['no text', { source: { type: 'text', media_type: 'text/plain' } }, /\.source\.data: /],
      [
        'an image',
        { source: { type: 'content', content: [{ type: 'text', text: 'a' }, { type: 'image' }] } },
        /^messages\[0\]\.content\[0\]\.source\.content\[1\]\.type: .* got "image"/,
      ],
      [
        'citations',
        { source: { type: 'text', data: 'a' }, citations: { enabled: true } },
        /^messages\[0\]\.content\[0\]\.citations: /,
      ],
    ] as const
  ).map(([name, fields, message]): [string, object, RegExp] => [
    `a document with ${name}`,
    { messages: [{ role: 'user', content: [{ type: 'document', ...fields }] }] },
    message,
  ]),
  [
    'a document in the system prompt',
    { system: [{ type: 'document', source: { type: 'text', data: 'a' } }] },
    /^system\[0\]\.type: .* got "document"/,
  ],
  ...(
    [
      ['no source', { source: undefined }, /^messages\[0\]\.content\[0\]\.source: /],
      ['an object as source', { source: { type: 'text' } }, /\.source: expected a string/],
      ['no content', { content: undefined }, /^messages\[0\]\.content\[0\]\.content: /],
      ['an image', { content: [{ type: 'image' }] }, /\.content\[0\]\.content\[0\]\.type: .* got "image"/],
      ['citations', { citations: { enabled: true } }, /^messages\[0\]\.content\[0\]\.citations: /],
    ] as const
  ).map(([name, fields, message]): [string, object, RegExp] => [
    `a search result with ${name}`,
    {
      messages: [
        { role: 'user', content: [{ type: 'search_result', source: 'a', title: 'b', content: [], ...fields }] },
      ],
    },
    message,
  ]),
  ['no max_tokens', { max_tokens: null }, /^max_tokens: /],
  ['no messages', { messages: [] }, /^messages: /],
  ['a wrong role', { messages: [{ role: 'tool', content: 'x' }] }, /^messages\[0\]\.role: /],
  ['servers of tools', { mcp_servers: [{ type: 'url' }] }, /^mcp_servers: /],
  ['a wrong effort', { output_config: { effort: 'huge' } }, /^output_config\.effort: /],
  ['a served tool without a name', { tools: [{ input_schema: { type: 'object' } }] }, /^tools\[0\]\.name: /],
  ['a tool twice', { tools: [WEATHER, WEATHER] }, /^tools\[1\]\.name: /],
  ['a choice without tools', { tool_choice: { type: 'any' } }, /^tool_choice: /],
])('%s is refused with the name of the field', async (_name, body, message) => {
  const response = await send(body);
  expect(response.status).toBe(400);
  expect(await response.json()).toEqual({
    type: 'error',
    error: { type: 'invalid_request_error', message: expect.stringMatching(message) as string },
    request_id: response.headers.get('request-id'),
  });
});

test("errors are the client's classes", async () => {
  await expect(client.messages.create({ ...BASE, model: 'x', messages: ASK })).rejects.toMatchObject({
    constructor: Anthropic.NotFoundError,
    status: 404,
    type: 'not_found_error',
  });
  await expect(
    client.messages.create({ ...BASE, messages: [{ role: 'user', content: 'x'.repeat(300_000) }] }),
  ).rejects.toMatchObject({ constructor: Anthropic.BadRequestError });
  const wrongType = await fetch(`${served.url}/v1/messages`, {
    method: 'POST',
    body: 'x',
    headers: { 'Content-Type': 'text/plain' },
  });
  expect([wrongType.status, ((await wrongType.json()) as { type: string }).type]).toEqual([415, 'error']);
  const wrongMethod = await fetch(`${served.url}/v1/messages`);
  expect([wrongMethod.status, ((await wrongMethod.json()) as { type: string }).type]).toEqual([405, 'error']);
  // Other routes keep their envelope.
  const other = await fetch(`${served.url}/v1/messages/batches`, { method: 'POST' });
  expect([other.status, Object.keys((await other.json()) as object)]).toEqual([404, ['error']]);
});

test('an error in the middle of a stream', async () => {
  const events = await eventsOf({ messages: [{ role: 'user', content: 'boom' }] });
  expect(events.at(-1)).toMatchObject({
    name: 'error',
    data: { type: 'error', error: { type: 'api_error', message: 'The server could not finish this request' } },
  });
  await expect(
    client.messages.stream({ ...BASE, messages: [{ role: 'user', content: 'boom' }] }).finalMessage(),
  ).rejects.toThrow('The server could not finish this request');
});

test('a silent stream sends pings', async () => {
  fake.answer = () => ({ text: 'abcdefgh', stepMs: 100 });
  const names = (await eventsOf({})).map(({ name }) => name);
  expect(names).toContain('ping');
  expect(names.at(-1)).toBe('message_stop');
});

test.each([true, false])('a client that leaves ends the generation, streaming: %s', async (isStream) => {
  const controller = new AbortController();
  const reading = (async () => {
    const answer = await client.messages.create(
      { ...BASE, messages: [{ role: 'user', content: 'forever' }], stream: isStream },
      { signal: controller.signal },
    );
    if (isStream) for await (const _ of answer as AsyncIterable<unknown>) if (fake.requests.length > 0) break;
  })().catch(() => {});
  await until(() => fake.requests.length === 1);
  if (!isStream) controller.abort();
  await reading;
  await until(() => fake.aborted.length === 1);
  await until(() => engine.stats().numRunning === 0);
});

describe('threads are not stored, so the client sends the whole conversation', () => {
  test('in a tool runner', async () => {
    script(callText('get_weather', { city: 'Bonn' }), callText('get_weather', { city: 'Köln' }), 'It rains.');
    const run = jest.fn(({ city }: { city: string }) => `rain in ${city}`);
    const runner = client.beta.messages.toolRunner({
      ...BASE,
      messages: [{ role: 'user', content: 'What is the weather?' }],
      tools: [{ ...WEATHER, run, parse: (input: unknown) => input as { city: string } } as never],
    });
    const { content } = await runner;
    expect(content).toMatchObject([{ type: 'text', text: 'It rains.' }]);
    expect(run).toHaveBeenCalledTimes(2);
    expect(prompts).toHaveLength(3);
    for (const text of ['What is the weather?', 'rain in Bonn', 'rain in Köln']) expect(prompts[2]).toContain(text);
  });

  test('in a conversation', async () => {
    script('One', 'Two', 'Three');
    const thread = client.beta.messages.thread(BASE);
    for (const content of ['first', 'second', 'third']) await thread.send({ role: 'user', content });
    expect(prompts).toHaveLength(3);
    for (const text of ['first', 'One', 'second', 'Two', 'third']) expect(prompts[2]).toContain(text);
  });
});
