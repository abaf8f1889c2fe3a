/** Tests of chat options: the request that they produce, and how the completion is parsed. */
import { z } from 'zod';
import {
  type ChatEvent,
  type ChatOptions,
  Engine,
  type EngineOptions,
  type Generation,
  type GenerationResult,
  type Tool,
} from '../../ts';
import type { NativeRequest } from '../../ts/addon-types';
import { Tokenizer } from '../../ts/text/tokenizer';
import { fake, type FakeGrammar } from '../fakes/fake-addon';
import { tinyModel, tinyTokenizer } from '../fakes/tiny-model';

const THINKING_TEMPLATE =
  "{% for m in messages %}{{ m.role + ':' + m.content + '\\n' }}{% endfor %}{{ 'assistant:' }}{% if state is defined %}{{ state }}{% endif %}{# <think> </think> <tool_call> #}";
const MISTRAL_TEMPLATE =
  '[AVAILABLE_TOOLS]{% for m in messages %}{{ m.role }}{% if m.tool_calls %}[TOOL_CALLS]{{ m.tool_calls[0].id }}{% endif %}{% if m.tool_call_id %} answers {{ m.tool_call_id }}{% endif %}{% endfor %}';
const messages = [{ role: 'user', content: 'x' }] as const;
const schema = { type: 'object', properties: { a: { type: 'integer' } }, required: ['a'] };
const tools: Tool[] = [
  { type: 'function', function: { name: 'f', parameters: schema } },
  { type: 'function', function: { name: 'g' } },
];
const call = (name: string, args = '{"a": 1}'): string =>
  `<tool_call>\n{"name": "${name}", "arguments": ${args}}\n</tool_call>`;

const engines: Engine[] = [];
let engine: Engine;
let thinker: Engine;

async function load(dir: string, options: EngineOptions = {}): Promise<Engine> {
  const loaded = await Engine.load(dir, options);
  engines.push(loaded);
  return loaded;
}

async function collect(generation: Generation<ChatEvent>): Promise<ChatEvent[]> {
  const events: ChatEvent[] = [];
  for await (const event of generation) events.push(event);
  return events;
}

function ask(options: ChatOptions, on = engine): Promise<GenerationResult> {
  return on.chat(messages, options).result();
}

function lastRequest(): NativeRequest {
  return fake.requests.at(-1)!;
}

function sourceOf({ grammar }: NativeRequest): unknown {
  return (grammar as FakeGrammar | null)?.source;
}

beforeAll(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../fakes/fake-addon');
  engine = await load(tinyModel());
  thinker = await load(tinyModel({ 'chat_template.jinja': THINKING_TEMPLATE }));
});
beforeEach(() => fake.reset());
afterAll(() => Promise.all(engines.map((each) => each.close())));

describe('tool choice', () => {
  test('required calls use a grammar and are streamed', async () => {
    fake.answer = () => ({ text: `${call('f')}\n${call('g', '{}')}` });
    const generation = engine.chat(messages, { tools, toolChoice: 'required' });
    const events = await collect(generation);
    const [first, ...rest] = events.filter((event) => event.type === 'toolCall');
    expect(first).toMatchObject({ callIndex: 0, name: 'f', argumentsDelta: '' });
    expect(rest.length).toBeGreaterThan(3);
    const {
      choices: [choice],
    } = await generation.result();
    expect(choice).toMatchObject({
      text: '',
      toolCalls: [
        { name: 'f', arguments: '{"a": 1}' },
        { name: 'g', arguments: '{}' },
      ],
      finishReason: 'tool_calls',
    });
    expect(sourceOf(lastRequest())).toMatchObject({ kind: 'rules' });
  });

  test('merges the events of a call for a slow reader and keeps all tokens', async () => {
    fake.answer = () => ({ text: `${call('f')}\n${call('g', '{}')}` });
    const generation = engine.chat(messages, { tools, toolChoice: 'required' });
    const {
      choices: [choice],
    } = await generation.result();
    const events = await collect(generation);
    expect(events.filter((event) => event.type === 'toolCall')).toMatchObject([
      { callIndex: 0, argumentsDelta: '{"a": 1}' },
      { callIndex: 1, argumentsDelta: '{}' },
    ]);
    expect(events.flatMap((event) => (event.type === 'delta' ? event.tokenIds : []))).toEqual(choice.tokenIds);
    expect(events.length).toBeLessThan(7);
  });

  test('a named call finishes with stop', async () => {
    fake.answer = () => ({ text: call('f') });
    const {
      choices: [choice],
    } = await ask({ tools, toolChoice: { name: 'f' } });
    expect(choice).toMatchObject({ toolCalls: [{ name: 'f' }], finishReason: 'stop' });
  });

  test.each(['required', { name: 'f' }] as const)(
    'a call cut by the length limit finishes with length: %j',
    async (toolChoice) => {
      fake.answer = () => ({ text: call('f') });
      const {
        choices: [choice],
      } = await ask({ tools, toolChoice, maxTokens: 33 });
      expect(choice.finishReason).toBe('length');
      expect(choice.toolCalls).toMatchObject([{ name: 'f', arguments: expect.stringMatching(/^\{"/) as string }]);
    },
  );

  test.each<[text: string, args: string, finishReason: string]>([
    ['<tool_call>\n{"name": "f", "arguments": {"a": ', '{"a": ', 'stop'],
    ['<tool_call>\n{"name": "f", "argu', '', 'stop'],
    [`${call('g', '{}')}\n<tool_call>\n{"name": "f", "arguments": {"a": 1`, '{"a": 1', 'stop'],
    ['<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool', '{"a": 1}', 'tool_calls'],
  ])('a call finishes with tool_calls only if it is complete: %j', async (text, args, finishReason) => {
    fake.answer = () => ({ text, stopReason: 'Paris' });
    const {
      choices: [choice],
    } = await ask({ tools, stop: ['Paris'] });
    expect(choice.toolCalls.at(-1)).toMatchObject({ name: 'f', arguments: args });
    expect(choice).toMatchObject({ finishReason, stopReason: 'Paris' });
  });

  test('each combination of tool choice, tools and schemas has its own grammar, compiled once', async () => {
    const fresh = await load(tinyModel());
    fake.answer = () => ({ text: call('f') });
    const other: Tool[] = [{ type: 'function', function: { name: 'f', parameters: { ...schema, required: [] } } }];
    for (const options of [
      { tools, toolChoice: 'required' },
      { tools, toolChoice: 'required', parallelToolCalls: false },
      { tools, toolChoice: { name: 'f' } },
      { tools, toolChoice: { name: 'g' } },
      { tools: other, toolChoice: 'required' },
    ] as const) {
      await ask(options, fresh);
      await ask(options, fresh);
    }
    expect(fake.grammars).toHaveLength(5);
    expect(new Set(fake.grammars.map((source) => JSON.stringify(source))).size).toBe(5);
  });

  test('the prompt lacks the dialect of a schema, and a schema object of a library is refused', async () => {
    const ofTool = (parameters: object): Tool[] => [{ type: 'function', function: { name: 'f', parameters } } as Tool];
    const withDialect = ofTool({ $schema: 'https://json-schema.org/draft/2020-12/schema', ...schema });
    const prompts = [];
    for (const given of [withDialect, ofTool(schema)]) {
      await ask({ tools: given });
      prompts.push(lastRequest().promptTokenIds);
    }
    expect(prompts[0]).toEqual(prompts[1]);
    expect(withDialect[0].function.parameters).toHaveProperty('$schema');
    await expect(ask({ tools: ofTool(z.object({ a: z.string() })) })).rejects.toMatchObject({
      param: 'tools[0].function.parameters',
      message: expect.stringContaining('z.toJSONSchema(schema)'),
    });
  });

  test('a misspelt option of a chat is an error that names the option', async () => {
    const call = engine.chat([{ role: 'user', content: 'Hi' }], { tools, toolchoice: 'none' } as never);
    await expect(call.result()).rejects.toMatchObject({
      param: 'options.toolchoice',
      message: expect.stringContaining('Did you mean toolChoice?') as string,
    });
  });

  test('with auto, only strict tools use a grammar', async () => {
    fake.answer = () => ({ text: `Well. ${call('f')}` });
    await ask({ tools });
    expect(lastRequest().grammar).toBeNull();
    const strict = tools.map((tool) => ({
      ...tool,
      function: { ...tool.function, strict: tool.function.name === 'f' },
    }));
    const {
      choices: [choice],
    } = await ask({ tools: strict });
    expect(sourceOf(lastRequest())).toMatchObject({ kind: 'rules' });
    expect(choice).toMatchObject({ text: 'Well.', toolCalls: [{ name: 'f' }], finishReason: 'tool_calls' });
    await ask({ tools: strict, toolChoice: 'none' });
    expect(lastRequest().grammar).toBeNull();
  });

  test('without parallel calls, each choice stops after its first call', async () => {
    fake.answer = (_prompt, _request, index) => ({
      text: index === 0 ? `Hm. ${call('f')} ${call('g').repeat(100)}` : 'No call here.',
    });
    const generation = engine.chat(messages, { tools, parallelToolCalls: false, n: 2, logprobs: 0 });
    const events = await collect(generation);
    expect(fake.stopped).toEqual([[expect.any(Number), 0]]);
    const { choices, usage } = await generation.result();
    expect(choices[0]).toMatchObject({
      text: 'Hm.',
      toolCalls: [{ name: 'f', arguments: '{"a": 1}' }],
      finishReason: 'tool_calls',
      stopReason: null,
    });
    expect(choices[1]).toMatchObject({ text: 'No call here.', toolCalls: [], finishReason: 'stop' });
    expect(usage.completionTokens).toBe(choices[0].tokenIds.length + choices[1].tokenIds.length);
    expect(choices[0].logprobs).toHaveLength(choices[0].tokenIds.length);
    expect(events.filter((event) => event.type === 'finish')).toHaveLength(2);
    expect(
      events.map((event) => (event.type === 'toolCall' ? `${event.callIndex}${event.argumentsDelta}` : '')).join(''),
    ).toBe('00{0"0a0"0:0 010}');
  });

  test('drops a second call in the same step', async () => {
    fake.answer = () => ({ text: `${call('f')}${call('g')} and more`, tokensPerStep: 1000 });
    const {
      choices: [choice],
    } = await ask({ tools, parallelToolCalls: false });
    expect(choice).toMatchObject({ text: '', toolCalls: [{ name: 'f' }], finishReason: 'tool_calls' });
  });

  test.each<[string, ChatOptions, string, RegExp]>([
    [
      'an unknown tool choice',
      { tools, toolChoice: 'sometimes' as never },
      'toolChoice',
      /one of auto, none, required/,
    ],
    ['required without tools', { toolChoice: 'required' }, 'toolChoice', /without tools, got "required"/],
    ['a named call without tools', { tools: [], toolChoice: { name: 'f' } }, 'toolChoice.name', /one of the tools/],
    ['a name of an unknown tool', { tools, toolChoice: { name: 'h' } }, 'toolChoice.name', /one of the tools, got "h"/],
    ['a tool choice without a name', { tools, toolChoice: {} as never }, 'toolChoice.name', /a string/],
    [
      'parallelToolCalls that is not a boolean',
      { tools, parallelToolCalls: 1 as never },
      'parallelToolCalls',
      /true or false/,
    ],
    [
      'an unsupported schema',
      {
        tools: [
          {
            type: 'function',
            function: { name: 'f', parameters: { type: 'object', properties: { a: { contains: {} } } } },
          },
        ],
        toolChoice: 'required',
      },
      'tools[0].function.parameters',
      /#\/properties\/a\/contains/,
    ],
    [
      'a GBNF grammar with tools',
      { tools, structuredOutput: { type: 'grammar', grammar: 'root ::= "a"' } },
      'structuredOutput.grammar',
      /no GBNF grammar with tools that may be called/,
    ],
    [
      'a wrong structured output with required calls',
      { tools, toolChoice: 'required', structuredOutput: { type: 'xml' } as never },
      'structuredOutput.type',
      /got "xml"/,
    ],
    [
      'an unsupported schema of the answer beside tools',
      { tools, structuredOutput: { type: 'json', schema: { not: { type: 'string' } } } },
      'structuredOutput.schema',
      /#\/not/,
    ],
  ])('refuses %s', async (_name, options, param, message) => {
    await expect(ask(options)).rejects.toMatchObject({
      code: 'invalid_argument',
      param,
      message: expect.stringMatching(message) as string,
    });
    expect(fake.requests).toHaveLength(0);
  });

  describe('with structured output', () => {
    const structuredOutput = { type: 'json', schema: { type: 'object' } } as const;

    test('an answer may hold the text of a call', async () => {
      const text = JSON.stringify({ a: call('f') });
      fake.answer = () => ({ text });
      const {
        choices: [choice],
      } = await ask({ tools, structuredOutput });
      expect(choice).toMatchObject({ text, toolCalls: [], finishReason: 'stop' });
      expect(sourceOf(lastRequest())).toMatchObject({ kind: 'rules', root: 'either' });
    });

    test('calls take the place of the answer', async () => {
      fake.answer = () => ({ text: `${call('f')}\n${call('g', '{}')}` });
      const {
        choices: [choice],
      } = await ask({ tools, structuredOutput });
      expect(choice).toMatchObject({
        text: '',
        toolCalls: [{ name: 'f' }, { name: 'g' }],
        finishReason: 'tool_calls',
      });
    });

    test.each([['required'], [{ name: 'f' }]] as const)(
      'calls that must come need no answer: %j',
      async (toolChoice) => {
        fake.answer = () => ({ text: call('f') });
        expect((await ask({ tools, toolChoice, structuredOutput })).choices[0].toolCalls).toMatchObject([
          { name: 'f' },
        ]);
        const { grammar } = lastRequest();
        await ask({ tools, toolChoice });
        expect(lastRequest().grammar).toBe(grammar);
      },
    );

    test('without a known format of calls, the text is the answer', async () => {
      const plain = await load(tinyModel(), { chatTemplate: '{% for m in messages %}{{ m.content }}{% endfor %}' });
      fake.answer = () => ({ text: '{}' });
      expect((await ask({ tools, structuredOutput }, plain)).choices[0]).toMatchObject({ text: '{}', toolCalls: [] });
      const { grammar } = lastRequest();
      await ask({ structuredOutput }, plain);
      expect(lastRequest().grammar).toBe(grammar);
    });
  });

  test('a model without a detected format refuses required calls unless toolCallFormat is set', async () => {
    const template = '{% for m in messages %}{{ m.content }}{% endfor %}';
    const plain = await load(tinyModel(), { chatTemplate: template });
    expect(plain.info.toolCallFormat).toBeNull();
    expect(await plain.renderChat(messages)).toBe('x');
    await expect(ask({ tools, toolChoice: 'required' }, plain)).rejects.toMatchObject({
      code: 'invalid_argument',
      param: 'toolChoice',
    });
    const configured = await load(tinyModel(), { chatTemplate: template, toolCallFormat: 'hermes' });
    fake.answer = () => ({ text: call('f') });
    expect((await ask({ tools, toolChoice: 'required' }, configured)).choices[0].toolCalls).toHaveLength(1);
    await expect(Engine.load(tinyModel(), { toolCallFormat: 'x' })).rejects.toMatchObject({
      param: 'toolCallFormat',
      message: expect.stringMatching(/one of auto, .*hermes.*, got "x"/) as string,
    });
  });

  test('uses tool call ids in the form of the format', async () => {
    const mistral = await load(tinyModel(), { chatTemplate: MISTRAL_TEMPLATE });
    expect(mistral.info.toolCallFormat).toMatch(/^mistral/);
    fake.answer = () => ({ text: '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]' });
    expect((await ask({ tools }, mistral)).choices[0].toolCalls[0].id).toMatch(/^[A-Za-z0-9]{9}$/);
    const prompt = await mistral.renderChat([
      ...messages,
      { role: 'assistant', toolCalls: [{ id: 'call_123456789012', name: 'f', arguments: '{}' }] },
      { role: 'tool', toolCallId: 'call_123456789012', content: '1' },
    ]);
    expect(prompt).toMatch(/\[TOOL_CALLS\]([A-Za-z0-9]{9})tool answers \1$/);
  });
});

describe('reasoning', () => {
  const inside = { templateKwargs: { state: '<think>\n' } };
  const after = { templateKwargs: { state: '<think>\n\n</think>\n\n' } };

  test('counts reasoning tokens of every choice', async () => {
    fake.answer = () => ({ text: '<think>\nHm.\n</think>\n\nYes.' });
    const generation = thinker.chat(messages, { n: 2 });
    const events = await collect(generation);
    expect(events.filter((event) => event.type === 'finish')).toMatchObject([
      { usage: { reasoningTokens: 5 } },
      { usage: { reasoningTokens: 5 } },
    ]);
    expect((await generation.result()).usage).toMatchObject({ reasoningTokens: 10 });
    expect((await ask(after, thinker)).usage.reasoningTokens).toBe(0);
    expect((await ask({})).usage).not.toHaveProperty('reasoningTokens');
    expect((await thinker.generate('x').result()).usage).not.toHaveProperty('reasoningTokens');
  });

  test('can stay in the text, and tool calls inside it do not count', async () => {
    fake.answer = () => ({ text: `\n<think>\nTo ${call('f')}?\n</think>\n\n${call('g', '{}')}` });
    const {
      choices: [choice],
      usage,
    } = await ask({ separateReasoning: false, tools }, thinker);
    expect(choice.text).toBe(`\n<think>\nTo ${call('f')}?\n</think>`);
    expect(choice.toolCalls).toMatchObject([{ name: 'g' }]);
    expect(choice).not.toHaveProperty('reasoning');
    expect(usage.reasoningTokens).toBeGreaterThan(10);
  });

  test('the format can be set or disabled', async () => {
    fake.answer = () => ({ text: '<think>a</think>b' });
    const off = await load(tinyModel({ 'chat_template.jinja': THINKING_TEMPLATE }), { reasoningFormat: 'none' });
    expect([off.info.reasoningFormat, thinker.info.reasoningFormat, engine.info.reasoningFormat]).toEqual([
      null,
      'think',
      null,
    ]);
    expect((await ask({}, off)).choices[0].text).toBe('<think>a</think>b');
    const on = await load(tinyModel(), { reasoningFormat: 'qwen3' });
    expect((await ask({}, on)).choices[0]).toMatchObject({ reasoning: 'a', text: 'b' });
    await expect(Engine.load(tinyModel(), { reasoningFormat: 'x' })).rejects.toMatchObject({
      param: 'reasoningFormat',
      expected: expect.stringMatching(/^one of auto, none, harmony, .*think$/) as string,
    });
  });

  test('passes the thinking budget, the markers and the state of the prompt to the addon', async () => {
    await ask({ thinkingBudget: 7 }, thinker);
    expect(lastRequest().sampling.thinkingBudget).toEqual({
      budget: 7,
      openIds: Int32Array.of(261),
      closeIds: Int32Array.of(262),
      isInside: false,
    });
    await ask({ thinkingBudget: 0, ...inside }, thinker);
    expect(lastRequest().sampling.thinkingBudget).toMatchObject({ budget: 0, isInside: true });
    await ask({ thinkingBudget: 7, ...after }, thinker);
    expect(lastRequest().sampling.thinkingBudget).toBeNull();
    await ask({ thinkingBudget: 7 });
    expect(lastRequest().sampling.thinkingBudget).toBeNull();
    await expect(ask({ thinkingBudget: -1 }, thinker)).rejects.toMatchObject({ param: 'thinkingBudget' });
  });

  test('tokenizes the markers again after a failure', async () => {
    const fresh = await load(tinyModel({ 'chat_template.jinja': THINKING_TEMPLATE }));
    const failing = jest
      .spyOn(Tokenizer.prototype, 'encode')
      .mockImplementation((text) =>
        text === '</think>' ? Promise.reject(new Error('no memory')) : Promise.resolve(Int32Array.of(1)),
      );
    await expect(ask({ thinkingBudget: 7 }, fresh)).rejects.toThrow('no memory');
    failing.mockRestore();
    await ask({ thinkingBudget: 7 }, fresh);
    expect(lastRequest().sampling.thinkingBudget).toMatchObject({ budget: 7 });
  });

  test('structured output starts after the reasoning', async () => {
    const structuredOutput = { type: 'regex', pattern: 'ab' } as const;
    fake.answer = () => ({ text: '<think>Hm.</think>\n\nab' });
    expect((await ask({ structuredOutput }, thinker)).choices[0]).toMatchObject({ reasoning: 'Hm.', text: 'ab' });
    await ask({ structuredOutput, ...inside }, thinker);
    await ask({ structuredOutput, ...after }, thinker);
    await ask({ structuredOutput: { type: 'grammar', grammar: 'root ::= "ab"' }, ...inside }, thinker);
    const [before, opened, closed, gbnf] = fake.requests.map(sourceOf) as {
      root: string;
      rules: { name: string; expr: { items?: unknown[] } }[];
      prefix?: unknown;
    }[];
    const reasoning = {
      kind: 'sequence',
      items: [
        { kind: 'until', text: '</think>' },
        { kind: 'repeat', min: 0, max: 2 },
      ],
    };
    expect(before.rules.at(-1)!.expr.items).toMatchObject([
      { kind: 'repeat', min: 0, max: 1, item: { items: [{}, { kind: 'literal', text: '<think>' }, reasoning] } },
      { kind: 'rule', name: 'root' },
    ]);
    expect(opened.rules.at(-1)!.expr.items).toMatchObject([reasoning, { kind: 'rule', name: 'root' }]);
    expect(closed.rules).toMatchObject([
      { name: 'root', expr: { kind: 'regex', pattern: 'ab', isSearch: false, isJsonString: false } },
    ]);
    expect(gbnf.prefix).toMatchObject(reasoning);
  });

  test('required calls come after the reasoning', async () => {
    fake.answer = () => ({ text: `Hm.\n</think>\n${call('f')}` });
    const {
      choices: [choice],
    } = await ask({ tools, toolChoice: 'required', ...inside }, thinker);
    expect(choice).toMatchObject({
      reasoning: 'Hm.',
      text: '',
      toolCalls: [{ name: 'f' }],
      finishReason: 'tool_calls',
    });
    expect(sourceOf(lastRequest())).toMatchObject({ root: 'prefix root' });
  });
});

test('addSpecialTokens runs the post-processor on the prompt', async () => {
  const post = {
    type: 'TemplateProcessing',
    single: [{ SpecialToken: { id: '<|endoftext|>', type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }],
    pair: [{ Sequence: { id: 'A', type_id: 0 } }, { Sequence: { id: 'B', type_id: 1 } }],
    special_tokens: { '<|endoftext|>': { id: '<|endoftext|>', ids: [256], tokens: ['<|endoftext|>'] } },
  };
  const on = await load(tinyModel({ 'tokenizer.json': { ...tinyTokenizer(), post_processor: post } }));
  await ask({}, on);
  expect(lastRequest().promptTokenIds[0]).toBe(257);
  await ask({ addSpecialTokens: true }, on);
  expect([...lastRequest().promptTokenIds.subarray(0, 2)]).toEqual([256, 257]);
});
