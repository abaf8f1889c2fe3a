/** Chats with a model whose template is that of gpt-oss, and whose tokenizer has its special tokens. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { type ChatEvent, type ChatMessage, type ChatOptions, Engine, type GenerationResult, type Tool } from '../../ts';
import { fake, type FakeGrammar } from '../fakes/fake-addon';
import { TINY_CONFIG, tinyModel, tinyTokenizer } from '../fakes/tiny-model';

const SPECIALS = [
  '<|startoftext|>',
  '<|endoftext|>',
  '<|return|>',
  '<|constrain|>',
  '<|channel|>',
  '<|start|>',
  '<|end|>',
  '<|message|>',
  '<|call|>',
];
const FIRST_SPECIAL = 256;
const idOf = (token: string): number => FIRST_SPECIAL + SPECIALS.indexOf(token);

const { templates } = JSON.parse(
  gunzipSync(readFileSync(join(__dirname, '../oracle/fixtures/chat-templates.json.gz'))).toString(),
) as { templates: { name: string; source: string }[] };
const TEMPLATE = templates.find(({ name }) => name === 'openai-gpt-oss-120b')!.source;

const messages: ChatMessage[] = [{ role: 'user', content: 'x' }];
const tools: Tool[] = [
  {
    type: 'function',
    function: {
      name: 'f',
      description: 'F.',
      parameters: { type: 'object', properties: { a: { type: 'integer' } }, required: ['a'] },
    },
  },
];
const NEXT = '<|end|><|start|>assistant';
const THOUGHT = '<|channel|>analysis<|message|>Hm.';
const FINAL = '<|channel|>final<|message|>Yes.';
const CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}';

let engine: Engine;

function harmonyModel(): string {
  const tokenizer = tinyTokenizer();
  const added = SPECIALS.map((content, i) => ({
    id: FIRST_SPECIAL + i,
    content,
    single_word: false,
    lstrip: false,
    rstrip: false,
    normalized: false,
    special: true,
  }));
  return tinyModel({
    'config.json': { ...TINY_CONFIG, eos_token_id: idOf('<|return|>') },
    'generation_config.json': { eos_token_id: [idOf('<|return|>'), idOf('<|end|>')] },
    'tokenizer.json': { ...tokenizer, added_tokens: added },
    'chat_template.jinja': TEMPLATE,
  });
}

function ask(text: string, options: ChatOptions = {}): Promise<GenerationResult> {
  fake.answer = () => ({ text });
  return engine.chat(messages, options).result();
}

beforeAll(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../fakes/fake-addon');
  engine = await Engine.load(harmonyModel());
});
beforeEach(() => fake.reset());
afterAll(() => engine.close());

test('detects both formats, and the tokens that end a turn: not the one that ends a message', () => {
  expect(engine.info).toMatchObject({ toolCallFormat: 'harmony', reasoningFormat: 'harmony' });
  expect([...engine.info.eosTokenIds].sort()).toEqual([idOf('<|return|>'), idOf('<|call|>')]);
});

test('splits the channels and counts the tokens of the reasoning', async () => {
  const { choices, usage } = await ask(`${THOUGHT}${NEXT}${FINAL}`);
  expect(choices[0]).toMatchObject({ reasoning: 'Hm.', text: 'Yes.', toolCalls: [], finishReason: 'stop' });
  expect(usage.reasoningTokens).toBe(3);
});

test('streams reasoning, text before a call, and the arguments', async () => {
  const preamble = '<|channel|>commentary<|message|>I look.';
  fake.answer = () => ({ text: `${THOUGHT}${NEXT}${preamble}${NEXT}${CALL}` });
  const events: ChatEvent[] = [];
  for await (const event of engine.chat(messages, { tools })) events.push(event);
  const texts = (type: string) =>
    events.flatMap((event) =>
      event.type === type && 'textDelta' in event && event.textDelta !== '' ? [event.textDelta] : [],
    );
  expect(texts('reasoning')).toEqual(['H', 'm', '.']);
  expect(texts('delta').join('')).toBe('I look.');
  const calls = events.filter((event) => event.type === 'toolCall');
  expect(calls[0]).toMatchObject({ name: 'f', argumentsDelta: '' });
  expect(calls.map(({ argumentsDelta }) => argumentsDelta)).toEqual(['', ...'{"a": 1}']);
  expect(events.at(-1)).toMatchObject({ type: 'finish', finishReason: 'tool_calls', usage: { reasoningTokens: 3 } });
});

test.each<[what: string, text: string, content: string]>([
  [
    'an unknown function',
    '<|channel|>commentary to=functions.g json<|message|>{}',
    '<|start|>assistant<|channel|>commentary to=functions.g json<|message|>{}',
  ],
  [
    'a builtin tool',
    '<|channel|>commentary to=python code<|message|>1+1',
    '<|start|>assistant<|channel|>commentary to=python code<|message|>1+1',
  ],
  ['text without a channel', 'Hello', 'Hello'],
])('a message to %s is text', async (_what, text, content) => {
  expect((await ask(text, { tools })).choices[0]).toMatchObject({ text: content, toolCalls: [] });
});

test('a message of the analysis to a builtin tool is reasoning', async () => {
  const { choices } = await ask(`<|channel|>analysis to=python code<|message|>1+1${NEXT}${FINAL}`, { tools });
  expect(choices[0]).toMatchObject({ text: 'Yes.', toolCalls: [] });
  expect(choices[0].reasoning).toContain('to=python code<|message|>1+1');
});

test('reasoning can stay in the text, with all markers', async () => {
  const text = `${THOUGHT}${NEXT}${FINAL}`;
  expect((await ask(text, { separateReasoning: false })).choices[0]).toMatchObject({ text });
});

test('a structured answer stands in the final channel', async () => {
  const structuredOutput = { type: 'regex', pattern: 'ab' } as const;
  await ask('<|channel|>final<|message|>ab', { structuredOutput });
  const { source } = fake.requests[0].grammar as FakeGrammar;
  const { root, rules } = source as unknown as { root: string; rules: { name: string; expr: { items: unknown[] } }[] };
  expect(rules.find(({ name }) => name === root)!.expr.items).toMatchObject([
    { kind: 'repeat', min: 0, max: null },
    { kind: 'rule', name: 'prefix root' },
  ]);
  expect(rules.find(({ name }) => name === 'prefix root')!.expr.items).toMatchObject([
    { kind: 'literal', text: '<|channel|>final<|message|>' },
    { kind: 'rule', name: 'root' },
  ]);
});

test('required calls stand in the commentary channel', async () => {
  const { choices } = await ask(`${THOUGHT}${NEXT}${CALL}`, { tools, toolChoice: 'required' });
  expect(choices[0]).toMatchObject({ reasoning: 'Hm.', text: '', toolCalls: [{ name: 'f', arguments: '{"a": 1}' }] });
  expect(JSON.stringify((fake.requests[0].grammar as FakeGrammar).source)).toContain('commentary to=functions.f');
});

test('the thinking budget ends a message of the analysis', async () => {
  await ask(FINAL, { thinkingBudget: 5 });
  const { openIds, closeIds, isInside } = fake.requests[0].sampling.thinkingBudget!;
  expect([openIds[0], openIds.at(-1), [...closeIds], isInside]).toEqual([
    idOf('<|channel|>'),
    idOf('<|message|>'),
    [idOf('<|end|>')],
    false,
  ]);
});

describe('history', () => {
  const call = (id: string, a: number) => ({ id, name: 'f', arguments: { a } });
  const render = (history: ChatMessage[], options: ChatOptions = {}): Promise<string> =>
    engine
      .renderChat([...messages, ...history], { tools, ...options })
      .then((prompt) => prompt.slice(prompt.indexOf('<|start|>user')));

  test('keeps the reasoning of a call while there is no final message, and drops it afterwards', async () => {
    const turn: ChatMessage[] = [
      { role: 'assistant', reasoning: 'Hm.', toolCalls: [call('1', 1)] },
      { role: 'tool', toolCallId: '1', content: 'one' },
    ];
    const written =
      '<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>' +
      '<|start|>functions.f to=assistant<|channel|>commentary<|message|>"one"<|end|>';
    expect(await render(turn)).toBe(
      `<|start|>user<|message|>x<|end|><|start|>assistant${THOUGHT}<|end|>${written}<|start|>assistant`,
    );
    expect(await render([...turn, { role: 'assistant', content: 'Yes.' }, { role: 'user', content: 'y' }])).toBe(
      `<|start|>user<|message|>x<|end|>${written}<|start|>assistant${FINAL}<|end|><|start|>user<|message|>y<|end|><|start|>assistant`,
    );
  });

  test('writes several calls of one message one by one, each with its result', async () => {
    const prompt = await render([
      {
        role: 'assistant',
        content: 'I look.',
        reasoning: 'Hm.',
        toolCalls: [call('1', 1), call('2', 2), call('3', 3)],
      },
      { role: 'tool', toolCallId: '2', content: 'two' },
      { role: 'tool', toolCallId: '1', content: 'one' },
      { role: 'user', content: 'y' },
    ]);
    const parts = [
      'Hm.\nI look.<|end|>',
      '{"a": 1}<|call|>',
      '"one"<|end|>',
      '{"a": 2}<|call|>',
      '"two"<|end|>',
      '{"a": 3}<|call|>',
      'y<|end|>',
    ];
    const places = parts.map((part) => prompt.indexOf(part));
    expect([prompt, places.every((at, i) => at > (places[i - 1] ?? -1))]).toEqual([prompt, true]);
  });

  test('joins all instructions in the developer message', async () => {
    const prompt = await engine.renderChat([
      { role: 'system', content: 'Be brief.' },
      { role: 'developer', content: 'Be kind.' },
      ...messages,
      { role: 'system', content: 'Be exact.' },
    ]);
    expect(prompt).toContain(
      '<|start|>developer<|message|># Instructions\n\nBe brief.\n\nBe kind.\n\nBe exact.\n\n<|end|><|start|>user<|message|>x<|end|>',
    );
  });

  test('a continued message is text', async () => {
    fake.answer = () => ({ text: ' two<|end|> three' });
    const history: ChatMessage[] = [...messages, { role: 'assistant', content: 'One,' }];
    const { choices } = await engine.chat(history, { continueFinalMessage: true }).result();
    expect(choices[0]).toMatchObject({ text: ' two<|end|> three' });
    expect(choices[0]).not.toHaveProperty('reasoning');
  });
});

test('the effort of reasoning reaches the system message', async () => {
  for (const [effort, word] of [
    ['none', 'low'],
    ['high', 'high'],
  ] as const)
    expect(await engine.renderChat(messages, { reasoningEffort: effort })).toContain(`Reasoning: ${word}\n`);
  const templateKwargs = { reasoning_effort: 'medium' };
  expect(await engine.renderChat(messages, { reasoningEffort: 'high', templateKwargs })).toContain(
    'Reasoning: medium\n',
  );
});

test('a model of another format hides the special tokens of Harmony', async () => {
  const tokenizer = tinyTokenizer() as { added_tokens: { content: string }[] };
  tokenizer.added_tokens[1].content = '<|message|>';
  const other = await Engine.load(tinyModel({ 'tokenizer.json': tokenizer }));
  fake.answer = () => ({ text: 'a<|message|>b' });
  expect((await other.chat(messages).result()).choices[0].text).toBe('ab');
  await other.close();
});
