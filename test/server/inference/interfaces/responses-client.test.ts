/** /v1/responses with the official OpenAI client. */
import OpenAI from 'openai';
import type { ResponseInputItem, ResponseStreamEvent } from 'openai/resources/responses/responses';
import type { Engine } from '../../../../ts';
import { fake } from '../../../fakes/fake-addon';
import { callText, loadTiny, log, type Served, serveTiny, until } from './support';

const HELLO = 'Hello from the fake engine. Größe 😀!';
const WEATHER: OpenAI.Responses.Tool = {
  type: 'function',
  name: 'get_weather',
  parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  strict: false,
};

let engine: Engine;
let served: Served;
let client: OpenAI;
let prompts: string[];

beforeAll(async () => {
  engine = await loadTiny();
  served = await serveTiny(engine);
  client = served.openai;
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

async function eventsOf(body: object): Promise<ResponseStreamEvent[]> {
  const events: ResponseStreamEvent[] = [];
  const stream = await client.responses.create({
    model: 'tiny',
    ...body,
    stream: true,
  } as OpenAI.Responses.ResponseCreateParamsStreaming);
  for await (const event of stream) events.push(event);
  return events;
}

/** A response without what differs between two equal requests. */
function comparable({ id: _id, created_at: _created, output, ...rest }: OpenAI.Responses.Response): object {
  return {
    ...rest,
    output_text: undefined,
    output: output.map((item) => ({ ...item, id: '', ...('call_id' in item ? { call_id: '' } : {}) })),
  };
}

test('a response that was not made in the background cannot be cancelled', async () => {
  const { id } = await client.responses.create({ model: 'tiny', input: 'Hi' });
  await expect(client.responses.cancel(id)).rejects.toMatchObject({
    status: 400,
    type: 'invalid_request_error',
    message: expect.stringContaining('cancel') as string,
  });
  expect((await client.responses.retrieve(id)).status).toBe('completed');
  await expect(client.responses.cancel('resp_1')).rejects.toMatchObject({ status: 404, code: 'response_not_found' });
});

test('compacting is not implemented, and the client does not retry it', async () => {
  const compacting = client.responses.compact({ model: 'tiny' as never, input: 'Hi' }, { maxRetries: 1 });
  await expect(compacting).rejects.toMatchObject({ status: 501, code: 'not_implemented' });
});

test('a text gets a text, with usage', async () => {
  const response = await client.responses.create({ model: 'tiny', input: 'Hi', instructions: 'Be brief.' });
  expect(response).toMatchObject({
    object: 'response',
    status: 'completed',
    output_text: HELLO,
    instructions: 'Be brief.',
    store: true,
    error: null,
    incomplete_details: null,
    tool_choice: 'auto',
    tools: [],
    text: { format: { type: 'text' } },
    output: [
      { type: 'message', role: 'assistant', status: 'completed', content: [{ type: 'output_text', annotations: [] }] },
    ],
  });
  const usage = response.usage!;
  expect(usage.total_tokens).toBe(usage.input_tokens + usage.output_tokens);
  expect(usage.input_tokens_details).toEqual({ cached_tokens: 0, cache_write_tokens: 0 });
  expect(usage.output_tokens).toBeGreaterThan(0);
});

const RICH = `<think>\nhm\n</think>\n\nLet me look.\n${callText('get_weather', { city: 'Bern' })}\n${callText('get_weather', { city: 'Thun' })}`;

type Logprobs = { token: string; bytes: number[]; logprob: number; top_logprobs: object[] }[];

test.each([
  ['of the alternatives asked for', { top_logprobs: 2 }, 2],
  ['of the tokens alone', { include: ['message.output_text.logprobs'] }, 0],
])('log-probabilities %s spell the text, without reasoning and calls', async (_name, fields, numTop) => {
  const text = RICH.replace('Let me look.', 'Größe 😀!');
  script(text, text);
  const body = { input: 'Hi', tools: [WEATHER], ...(fields as object) };
  const whole = await client.responses.create({ model: 'tiny', ...body });
  expect(whole).toMatchObject({ top_logprobs: numTop });
  const message = whole.output.find(({ type }) => type === 'message') as OpenAI.Responses.ResponseOutputMessage;
  const part = message.content[0] as OpenAI.Responses.ResponseOutputText;
  const spelled = (logprobs: Logprobs) => Buffer.from(logprobs.flatMap(({ bytes }) => bytes)).toString();
  expect(part.text).toContain('Größe 😀!');
  expect(spelled(part.logprobs as Logprobs)).toBe(part.text);
  for (const { logprob, top_logprobs: top } of part.logprobs as Logprobs) {
    expect(logprob).toBeLessThanOrEqual(0);
    expect(top).toHaveLength(numTop);
  }
  const deltas = (await eventsOf(body)).filter(({ type }) => type === 'response.output_text.delta');
  expect(deltas.flatMap((event) => (event as { logprobs?: object[] }).logprobs)).toEqual(part.logprobs);
});

test('a response without a request for log-probabilities has none', async () => {
  script('Hello');
  const { output, top_logprobs: top } = await client.responses.create({ model: 'tiny', input: 'Hi' });
  expect(output[0]).toMatchObject({ content: [{ type: 'output_text', text: 'Hello', logprobs: [] }] });
  expect(top).toBe(0);
});

test('a stream has every event once, in order, and ends with the response that is sent without a stream', async () => {
  script(RICH, RICH);
  const body = { input: 'What is the weather?', tools: [WEATHER], reasoning: { effort: 'high' as const } };
  const whole = await client.responses.create({ model: 'tiny', ...body });
  const events = await eventsOf(body);
  expect(events.map(({ sequence_number: number }) => number)).toEqual(events.map((_, i) => i));
  const types = events.map(({ type }) => type).filter((type, i, all) => type !== all[i - 1]);
  const call = [
    'response.output_item.added',
    'response.function_call_arguments.delta',
    'response.function_call_arguments.done',
    'response.output_item.done',
  ];
  const content = (type: string) => [
    'response.output_item.added',
    'response.content_part.added',
    `response.${type}.delta`,
    `response.${type}.done`,
    'response.content_part.done',
    'response.output_item.done',
  ];
  expect(types).toEqual([
    'response.created',
    'response.in_progress',
    ...content('reasoning_text'),
    ...content('output_text'),
    ...call,
    ...call,
    'response.completed',
  ]);
  const last = events.at(-1) as OpenAI.Responses.ResponseCompletedEvent;
  expect(comparable(last.response)).toEqual(comparable(whole));
  expect(whole.output.map(({ type }) => type)).toEqual(['reasoning', 'message', 'function_call', 'function_call']);
  expect(whole.usage!.output_tokens_details.reasoning_tokens).toBeGreaterThan(0);
  // The deltas of each item add up to it.
  const deltas = (index: number) =>
    events
      .flatMap((event) =>
        'delta' in event && 'output_index' in event && event.output_index === index ? [event.delta] : [],
      )
      .join('');
  expect([deltas(0), deltas(1), deltas(2), deltas(3)]).toEqual([
    'hm',
    expect.stringMatching(/^Let me look\.\n?$/),
    '{"city":"Bern"}',
    '{"city":"Thun"}',
  ]);
});

test("the client's own accumulator of a stream returns the same response", async () => {
  script(RICH);
  const response = await client.responses
    .stream({ model: 'tiny', input: 'What is the weather?', tools: [WEATHER] })
    .finalResponse();
  expect(response.output.filter((item) => item.type === 'function_call').map(({ arguments: args }) => args)).toEqual([
    '{"city":"Bern"}',
    '{"city":"Thun"}',
  ]);
});

test.each([true, false])('parallel calls and their results, stored: %s', async (isStored) => {
  script(RICH, 'Rain in both.');
  const first = await client.responses.create({
    model: 'tiny',
    input: 'What is the weather?',
    tools: [WEATHER],
    store: isStored,
  });
  const calls = first.output.filter((item) => item.type === 'function_call');
  const results = calls.map(({ call_id: id }, i): ResponseInputItem => ({
    type: 'function_call_output',
    call_id: id,
    output: i === 0 ? 'rain' : [{ type: 'input_text', text: 'more rain' }],
  }));
  const second = await client.responses.create({
    model: 'tiny',
    tools: [WEATHER],
    ...(isStored
      ? { previous_response_id: first.id, input: results }
      : {
          store: false,
          input: [
            { role: 'user', content: 'What is the weather?' },
            ...(first.output as ResponseInputItem[]),
            ...results,
          ],
        }),
  });
  expect([second.output_text, second.previous_response_id]).toEqual(['Rain in both.', isStored ? first.id : null]);
  const [, turn] = prompts[1].split('<|im_start|>user\nWhat is the weather?<|im_end|>\n');
  expect(turn).toMatch(
    /^<\|im_start\|>assistant\nLet me look\.\n?<think>hm<\/think><tool_call>.*Bern.*<\/tool_call><tool_call>.*Thun.*<\/tool_call><\|im_end\|>\n<\|im_start\|>user\n<tool_response>rain<\/tool_response><\|im_end\|>\n<\|im_start\|>user\n<tool_response>more rain<\/tool_response>/,
  );
});

test('a custom tool is a function for the model and a custom_tool_call for the client', async () => {
  const patch = '*** Begin Patch\n"quoted"\n*** End Patch';
  const tools: OpenAI.Responses.Tool[] = [
    {
      type: 'custom',
      name: 'apply_patch',
      description: 'Edits files',
      format: { type: 'grammar', syntax: 'lark', definition: 'start: begin' },
    },
  ];
  script(callText('apply_patch', { input: patch }), callText('apply_patch', { input: patch }), 'Done');
  const first = await client.responses.create({ model: 'tiny', input: 'Patch it', tools });
  const [call] = first.output as OpenAI.Responses.ResponseCustomToolCall[];
  expect(call).toMatchObject({ type: 'custom_tool_call', name: 'apply_patch', input: patch, status: 'completed' });
  expect(prompts[0]).toContain('start: begin');
  const events = await eventsOf({ input: 'Patch it', tools });
  expect(events.find(({ type }) => type === 'response.custom_tool_call_input.done')).toMatchObject({ input: patch });
  await client.responses.create({
    model: 'tiny',
    tools,
    input: [
      { role: 'user', content: 'Patch it' },
      call,
      { type: 'custom_tool_call_output', call_id: call.call_id, output: 'ok' },
    ],
  });
  expect(prompts[2]).toContain(
    `<tool_call>${JSON.stringify({ name: 'apply_patch', arguments: { input: patch } })
      .replace(/([:,])"/g, '$1 "')
      .replace(':{', ': {')}`,
  );
  expect(prompts[2]).toContain('<tool_response>ok</tool_response>');
});

test('the count of input tokens is that of the same request', async () => {
  const first = await client.responses.create({ model: 'tiny', input: 'Hi', instructions: 'Be brief.' });
  const bodies = [
    { input: 'Hi', instructions: 'Be brief.' },
    { input: [{ role: 'user' as const, content: 'Hi' }], tools: [WEATHER], reasoning: { effort: 'high' as const } },
    { input: 'More', previous_response_id: first.id },
    { input: 'JSON', text: { format: { type: 'json_object' as const } }, truncation: 'disabled' as const },
    { input: 'Hi', truncation: 'auto' as const },
  ];
  const counts: number[] = [];
  for (const body of bodies) {
    const counted = await client.responses.inputTokens.count({ model: 'tiny', ...body });
    const { usage } = await client.responses.create({ model: 'tiny', ...body });
    expect(counted).toEqual({ object: 'response.input_tokens', input_tokens: usage?.input_tokens });
    counts.push(counted.input_tokens);
  }
  expect(counts[0]).toBe(first.usage?.input_tokens);
  expect(new Set(counts).size).toBe(counts.length);
});

test.each<[string, OpenAI.Responses.InputTokenCountParams, number, string | null]>([
  ['without input', { model: 'tiny' }, 400, 'input'],
  ['with an empty input', { model: 'tiny', input: [] }, 400, 'input'],
  ['for a conversation', { model: 'tiny', input: 'Hi', conversation: 'conv_1' }, 400, 'conversation'],
  ['for another model', { model: 'other', input: 'Hi' }, 404, 'model'],
  ['after an unknown response', { input: 'Hi', previous_response_id: 'resp_1' }, 404, 'previous_response_id'],
  ['with a tool without a name', { input: 'Hi', tools: [{ type: 'custom' } as never] }, 400, 'tools[0].name'],
])('a count %s is refused as a response is', async (_name, body, status, param) => {
  const expected = { status, param };
  await expect(client.responses.inputTokens.count(body)).rejects.toMatchObject(expected);
  await expect(client.responses.create({ model: 'tiny', ...body } as never)).rejects.toMatchObject(expected);
});

test('other tools are left out with one log line; only a choice that names one is refused', async () => {
  const tools: OpenAI.Responses.Tool[] = [{ type: 'web_search' }, WEATHER, { type: 'local_shell' }];
  await client.responses.create({ model: 'tiny', input: 'Hi', tools });
  expect(log.info).toHaveBeenCalledTimes(1);
  expect(log.info).toHaveBeenCalledWith(
    expect.objectContaining({ types: ['web_search', 'local_shell'] }),
    expect.any(String),
  );
  await expect(
    client.responses.create({ model: 'tiny', input: 'Hi', tools, tool_choice: { type: 'web_search_preview' } }),
  ).rejects.toMatchObject({ status: 400, param: 'tool_choice' });
  script(callText('get_weather', { city: 'Bern' }));
  const { output } = await client.responses.create({
    model: 'tiny',
    input: 'Hi',
    tools,
    tool_choice: { type: 'function', name: 'get_weather' },
  });
  expect(output.map(({ type }) => type)).toEqual(['function_call']);
});

test('an invalid tool is named by its place in the request', async () => {
  await expect(
    client.responses.create({
      model: 'tiny',
      input: 'Hi',
      tools: [{ type: 'web_search' }, WEATHER, { ...WEATHER }],
    }),
  ).rejects.toMatchObject({ status: 400, param: 'tools[2].name' });
  await expect(
    client.responses.create({
      model: 'tiny',
      input: 'Hi',
      tools: [{ type: 'web_search' }, { ...WEATHER, strict: true, parameters: { type: 'object', not: {} } }],
    }),
  ).rejects.toMatchObject({
    status: 400,
    code: 'unsupported_value',
    param: expect.stringMatching(/^tools\[1\]\.parameters/),
  });
});

test('structured output: the text follows a schema', async () => {
  script('{"city": "Bern"}');
  const schema = {
    type: 'object',
    properties: { city: { type: 'string' } },
    required: ['city'],
    additionalProperties: false,
  };
  const format = { type: 'json_schema' as const, name: 'city', schema, strict: true };
  const response = await client.responses.parse({ model: 'tiny', input: 'Which city?', text: { format } });
  expect(JSON.parse(response.output_text)).toEqual({ city: 'Bern' });
  expect(fake.grammars).toHaveLength(1);
  await expect(
    client.responses.create({ model: 'tiny', input: 'x', text: { format: { ...format, schema: { not: {} } } } }),
  ).rejects.toMatchObject({ status: 400, code: 'unsupported_value', param: 'text.format' });
});

test('stored responses: retrieved, listed by their input, continued, deleted', async () => {
  const first = await client.responses.create({ model: 'tiny', input: 'My name is Ada.', instructions: 'Be kind.' });
  script('Ada.');
  const second = await client.responses.create({
    model: 'tiny',
    input: [{ role: 'user', content: [{ type: 'input_text', text: 'What is my name?' }] }],
    previous_response_id: first.id,
  });
  expect(prompts[0]).not.toContain('Be kind.');
  expect(prompts[0]).toMatch(
    /user\nMy name is Ada\.<\|im_end\|>\n<\|im_start\|>assistant\nHello from.*<\|im_end\|>\n<\|im_start\|>user\nWhat is my name\?/,
  );
  expect(await client.responses.retrieve(second.id)).toEqual(second);
  const { data } = await client.responses.inputItems.list(second.id);
  expect(data).toMatchObject([{ type: 'message', role: 'user', content: [{ type: 'input_text' }] }]);
  await client.responses.delete(second.id);
  await expect(client.responses.retrieve(second.id)).rejects.toMatchObject({
    constructor: OpenAI.NotFoundError,
    code: 'response_not_found',
  });
  await expect(
    client.responses.create({ model: 'tiny', input: 'x', previous_response_id: second.id }),
  ).rejects.toMatchObject({ status: 404, param: 'previous_response_id' });
});

test('labels of a request come back with its response', async () => {
  const labels = {
    metadata: Object.fromEntries(Array.from({ length: 16 }, (_, i) => [`${i}`.padEnd(64, 'k'), 'v'.repeat(512)])),
    user: 'ada',
    prompt_cache_key: '0199-session',
    safety_identifier: 'x'.repeat(512),
  };
  const response = await client.responses.create({ model: 'tiny', input: 'Hi', ...labels });
  expect(response).toMatchObject(labels);
  expect(await client.responses.create({ model: 'tiny', input: 'Hi', metadata: null })).toMatchObject({ metadata: {} });
});

test('input items come in pages, in both orders', async () => {
  const input = Array.from({ length: 5 }, (_, i): ResponseInputItem => ({ role: 'user', content: `item ${i}` }));
  const { id } = await client.responses.create({ model: 'tiny', input });
  const texts = async (query: OpenAI.Responses.InputItemListParams) => {
    const found: unknown[] = [];
    for await (const item of client.responses.inputItems.list(id, { limit: 2, ...query }))
      found.push((item as OpenAI.Responses.ResponseInputMessageItem).content);
    return found.flat().map((part) => (part as OpenAI.Responses.ResponseInputText).text);
  };
  expect(await texts({ order: 'asc' })).toEqual(['item 0', 'item 1', 'item 2', 'item 3', 'item 4']);
  expect(await texts({})).toEqual(['item 4', 'item 3', 'item 2', 'item 1', 'item 0']);
  await expect(texts({ after: `item_${id.slice('resp_'.length)}0005` })).rejects.toMatchObject({ param: 'after' });
  await expect(texts({ limit: 0 })).rejects.toMatchObject({ status: 400, param: 'limit' });
});

test('listed messages have the whole form, also if the request has shorter ones', async () => {
  const input: ResponseInputItem[] = [
    { role: 'user', content: 'Hi' },
    { role: 'assistant', content: 'Hello' },
    { type: 'message', role: 'user', content: [{ type: 'input_text', text: 'Bye' }] },
    { type: 'function_call_output', call_id: 'a', output: '1' },
  ];
  const { id } = await client.responses.create({ model: 'tiny', input });
  const { data } = await client.responses.inputItems.list(id, { order: 'asc' });
  const message = { type: 'message', status: 'completed' };
  expect(data.map(({ id: _id, ...item }) => item)).toEqual([
    { ...message, role: 'user', content: [{ type: 'input_text', text: 'Hi' }] },
    { ...message, role: 'assistant', content: [{ type: 'output_text', text: 'Hello', annotations: [] }] },
    { ...message, role: 'user', content: [{ type: 'input_text', text: 'Bye' }] },
    { type: 'function_call_output', call_id: 'a', output: '1' },
  ]);
});

test('a reference to an output item stands for the item', async () => {
  const { output } = await client.responses.create({ model: 'tiny', input: 'Hi' });
  script('Bye');
  await client.responses.create({
    model: 'tiny',
    input: [
      { role: 'user', content: 'Hi' },
      { type: 'item_reference', id: output[0].id! },
      { role: 'user', content: 'And?' },
    ],
  });
  expect(prompts[0]).toContain(`<|im_start|>assistant\n${HELLO}<|im_end|>`);
});

test('store: false keeps nothing', async () => {
  const { id, ...rest } = await client.responses.create({ model: 'tiny', input: 'Hi', store: false });
  expect(rest).toMatchObject({ store: false });
  await expect(client.responses.retrieve(id)).rejects.toMatchObject({ status: 404 });
});

test('a response that max_output_tokens cuts is incomplete', async () => {
  const {
    status,
    incomplete_details: details,
    output,
  } = await client.responses.create({
    model: 'tiny',
    input: 'Hi',
    max_output_tokens: 3,
  });
  expect([status, details, output[0].type === 'message' && output[0].status]).toEqual([
    'incomplete',
    { reason: 'max_output_tokens' },
    'incomplete',
  ]);
  const events = await eventsOf({ input: 'Hi', max_output_tokens: 3 });
  expect(events.at(-1)!.type).toBe('response.incomplete');
  // A limit beyond the context is the rest of the context.
  expect((await client.responses.create({ model: 'tiny', input: 'Hi', max_output_tokens: 900_000 })).status).toBe(
    'completed',
  );
});

test('an image is refused by its name and place', async () => {
  await expect(
    client.responses.create({
      model: 'tiny',
      input: [
        {
          role: 'user',
          content: [
            { type: 'input_text', text: 'What is this?' },
            { type: 'input_image', image_url: 'data:image/png;base64,AA==', detail: 'auto' },
          ],
        },
      ],
    }),
  ).rejects.toMatchObject({
    status: 400,
    code: 'unsupported_value',
    param: 'input[0].content[1].type',
    message: expect.stringContaining('input_image'),
  });
});

test.each<[string, object, string]>([
  ['a background response', { background: true }, 'background'],
  ['a conversation', { conversation: 'conv_1' }, 'conversation'],
  ['a stored prompt', { prompt: { id: 'p' } }, 'prompt'],
  ['more alternatives than the limit', { top_logprobs: 21 }, 'top_logprobs'],
  ['a number of alternatives below zero', { top_logprobs: -1 }, 'top_logprobs'],
  ['truncation', { truncation: 'middle' }, 'truncation'],
  ['stream options without a stream', { stream_options: { include_obfuscation: false } }, 'stream_options'],
  ['an item of an unknown type', { input: [{ type: 'computer_call' }] }, 'input[0].type'],
  ['a call without its id', { input: [{ type: 'function_call', name: 'f', arguments: '{}' }] }, 'input[0].call_id'],
  ['no input', { input: [] }, 'input'],
  ['a wrong field of an item', { input: [{ role: 'robot', content: 'x' }] }, 'input[0].role'],
  ['a wrong temperature', { temperature: 3 }, 'temperature'],
  ['metadata that is a text', { metadata: 'x' }, 'metadata'],
  ['metadata that is a list', { metadata: ['x'] }, 'metadata'],
  ['a value of metadata that is no text', { metadata: { a: 1 } }, 'metadata'],
  ['a long value of metadata', { metadata: { a: 'x'.repeat(513) } }, 'metadata'],
  ['a long key of metadata', { metadata: { ['k'.repeat(65)]: '' } }, 'metadata'],
  ['too much metadata', { metadata: Object.fromEntries(Array.from({ length: 17 }, (_, i) => [i, ''])) }, 'metadata'],
  ['a user that is no text', { user: { name: 'x' } }, 'user'],
  ['a long key of the cache', { prompt_cache_key: 'x'.repeat(513) }, 'prompt_cache_key'],
  ['a long identifier', { safety_identifier: 'x'.repeat(513) }, 'safety_identifier'],
  ['a choice without tools', { tool_choice: 'required' }, 'tool_choice'],
])('%s is refused', async (_name, body, param) => {
  await expect(client.responses.create({ model: 'tiny', input: 'Hi', ...body } as never)).rejects.toMatchObject({
    constructor: OpenAI.BadRequestError,
    param,
  });
});

test('an unknown model and a prompt that is too long are refused; instructions alone are enough', async () => {
  await expect(client.responses.create({ model: 'x', input: 'Hi' })).rejects.toMatchObject({
    status: 404,
    code: 'model_not_found',
  });
  await expect(client.responses.create({ model: 'tiny', input: 'x'.repeat(300_000) })).rejects.toMatchObject({
    status: 400,
    code: 'context_length_exceeded',
    param: 'input',
  });
  expect((await client.responses.create({ model: 'tiny', instructions: 'Hi', input: [] })).status).toBe('completed');
});

test('an error in the middle of a stream ends it with response.failed and an error', async () => {
  const types: string[] = [];
  await expect(
    (async () => {
      const stream = await client.responses.create({ model: 'tiny', input: 'boom', stream: true });
      for await (const event of stream) types.push(event.type);
    })(),
  ).rejects.toThrow('The server could not finish this request');
  expect(types.slice(-2)).toEqual(['response.output_text.delta', 'response.failed']);
});

test.each([true, false])('a client that leaves ends the generation, streaming: %s', async (isStream) => {
  const controller = new AbortController();
  const reading = (async () => {
    const answer = await client.responses.create(
      { model: 'tiny', input: 'forever', stream: isStream },
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

test('a server without a store says so', async () => {
  const bare = await serveTiny(engine, { responses: undefined });
  const { id, ...rest } = await bare.openai.responses.create({ model: 'tiny', input: 'Hi' });
  expect(rest).toMatchObject({ store: false });
  await expect(bare.openai.responses.retrieve(id)).rejects.toMatchObject({ status: 404 });
  await expect(
    bare.openai.responses.create({ model: 'tiny', input: 'Hi', previous_response_id: id }),
  ).rejects.toMatchObject({ status: 400, param: 'previous_response_id', message: expect.stringContaining('store') });
  await bare.close();
});
