/** Custom tools of chat completions with the official OpenAI client. */
import type OpenAI from 'openai';
import type { Engine } from '../../../../ts';
import { fake } from '../../../fakes/fake-addon';
import { callText, loadTiny, type Served, serveTiny } from './support';

type Params = OpenAI.Chat.ChatCompletionCreateParamsNonStreaming;

const PATCH = '*** Begin Patch\n"quoted" \\ é\n*** End Patch';
const GRAMMAR = 'start: begin';
const PATCH_TOOL: OpenAI.Chat.ChatCompletionTool = {
  type: 'custom',
  custom: {
    name: 'apply_patch',
    description: 'Edits files',
    format: { type: 'grammar', grammar: { syntax: 'lark', definition: GRAMMAR } },
  },
};
const NOTE_TOOL: OpenAI.Chat.ChatCompletionTool = {
  type: 'custom',
  custom: { name: 'note', format: { type: 'text' } },
};
const WEATHER_TOOL: OpenAI.Chat.ChatCompletionTool = {
  type: 'function',
  function: { name: 'get_weather', parameters: { type: 'object', properties: { city: { type: 'string' } } } },
};
const BODY: Params = {
  model: 'tiny',
  messages: [{ role: 'user', content: 'Go' }],
  tools: [WEATHER_TOOL, PATCH_TOOL, NOTE_TOOL],
};
/** Two calls of custom tools around one of a function. */
const CALLS = [
  callText('apply_patch', { input: PATCH }),
  callText('get_weather', { city: 'Bern' }),
  callText('note', { input: 'done' }),
].join('\n');
const WIRE_CALLS = [
  { id: expect.any(String), type: 'custom', custom: { name: 'apply_patch', input: PATCH } },
  { id: expect.any(String), type: 'function', function: { name: 'get_weather', arguments: '{"city":"Bern"}' } },
  { id: expect.any(String), type: 'custom', custom: { name: 'note', input: 'done' } },
];

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
  prompts = [];
});
afterAll(async () => {
  await engine.close();
  await served.close();
});

function answer(text: string): void {
  fake.answer = (prompt) => {
    prompts.push(prompt);
    return { text };
  };
}

test('calls of custom tools have the type custom and the text of the model', async () => {
  answer(CALLS);
  const { choices } = await client.chat.completions.create(BODY);
  expect(choices[0].message.tool_calls).toEqual(WIRE_CALLS);
  expect(choices[0].finish_reason).toBe('tool_calls');
  expect(prompts[0]).toContain(GRAMMAR);
  expect(prompts[0]).toContain('Edits files');
});

test('in a stream, a call of a custom tool is one delta', async () => {
  answer(CALLS);
  const deltas: OpenAI.Chat.ChatCompletionChunk.Choice.Delta.ToolCall[] = [];
  for await (const { choices } of await client.chat.completions.create({ ...BODY, stream: true, n: 2 }))
    if (choices[0].index === 1) deltas.push(...(choices[0].delta.tool_calls ?? []));
  const custom = deltas.filter(({ type }) => (type as string) === 'custom');
  expect(custom).toEqual([
    { index: 0, ...WIRE_CALLS[0] },
    { index: 2, ...WIRE_CALLS[2] },
  ]);
  const args = deltas.filter(({ index }) => index === 1).map((delta) => delta.function?.arguments ?? '');
  expect(args.join('')).toBe('{"city":"Bern"}');
});

test('the input of a call that the limit cuts is what the model wrote', async () => {
  answer(callText('note', { input: 'a long text'.repeat(100) }));
  const { choices } = await client.chat.completions.create({ ...BODY, max_tokens: 100 });
  expect(choices[0].finish_reason).toBe('length');
  const [call] = choices[0].message.tool_calls as OpenAI.Chat.ChatCompletionMessageCustomToolCall[];
  expect(call.custom).toEqual({ name: 'note', input: expect.stringMatching(/^\{"input": ?"a long text/) });
});

test('earlier calls of custom tools are calls of the function with one string', async () => {
  answer('Done');
  const call = { id: 'call_1', type: 'custom', custom: { name: 'apply_patch', input: PATCH } } as const;
  await client.chat.completions.create({
    ...BODY,
    messages: [
      ...BODY.messages,
      { role: 'assistant', content: null, tool_calls: [call] },
      { role: 'tool', tool_call_id: 'call_1', content: 'ok' },
    ],
  });
  expect(prompts[0]).toContain(
    `<tool_call>{"name": "apply_patch", "arguments": {"input": ${JSON.stringify(PATCH)}}}</tool_call>`,
  );
  expect(prompts[0]).toContain('<tool_response>ok</tool_response>');
});

test.each<[string, Params['tool_choice']]>([
  ['a named choice', { type: 'custom', custom: { name: 'apply_patch' } }],
  [
    'the only allowed tool',
    {
      type: 'allowed_tools',
      allowed_tools: { mode: 'required', tools: [{ type: 'custom', custom: { name: 'apply_patch' } }] },
    },
  ],
])('%s makes the model call that tool', async (_name, choice) => {
  answer(callText('apply_patch', { input: PATCH }));
  const { choices } = await client.chat.completions.create({ ...BODY, tool_choice: choice });
  expect(choices[0].message.tool_calls).toEqual(WIRE_CALLS.slice(0, 1));
});

const regexTool = (definition: string): OpenAI.Chat.ChatCompletionTool => ({
  type: 'custom',
  custom: { name: 'code', format: { type: 'grammar', grammar: { syntax: 'regex', definition } } },
});

// Named groups as Rust and Python write them.
test.each([
  ['[A-Z]+|[0-9]', '^(?:[A-Z]+|[0-9])$'],
  ['(?P<month>[0-9]+)', '^(?:(?<month>[0-9]+))$'],
  ['[(?P<]+\\(?P<', '^(?:[(?P<]+\\(?P<)$'],
])('the regular expression %s constrains the text', async (definition, pattern) => {
  answer('Hello');
  await client.chat.completions.create({ ...BODY, tools: [regexTool(definition)] });
  expect(fake.requests[0].grammar ?? null).not.toBeNull();
  expect(prompts[0]).toContain(JSON.stringify(pattern).slice(1, -1));
});

test.each(['(', 'a)|(b', '(?<1>x)'])('the regular expression %s is refused', async (definition) => {
  await expect(
    client.chat.completions.create({ ...BODY, tools: [WEATHER_TOOL, regexTool(definition)] }),
  ).rejects.toMatchObject({ status: 400, param: 'tools[1].custom.format.grammar.definition' });
  const format = { type: 'grammar', syntax: 'regex', definition } as const;
  await expect(
    client.responses.create({ model: 'tiny', input: 'Go', tools: [{ type: 'custom', name: 'code', format }] }),
  ).rejects.toMatchObject({ status: 400, param: 'tools[0].format.definition' });
});

test('/tokenize counts custom tools', async () => {
  const response = await fetch(`${served.url}/tokenize`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ messages: BODY.messages, tools: [PATCH_TOOL] }),
  });
  const { tokens } = (await response.json()) as { tokens: number[] };
  expect(engine.detokenize(tokens, { skipSpecialTokens: false })).toContain(GRAMMAR);
});
