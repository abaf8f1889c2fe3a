/** Tool call grammars, automaton and parser together: accepted texts parse as calls whose arguments validate. */
import Ajv2020 from 'ajv/dist/2020';
import addFormats from 'ajv-formats';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { loadAddon } from '../../ts/addon';
import type { NativeGrammar } from '../../ts/addon-types';
import { ChatTemplate } from '../../ts/text/chat-template';
import { eitherGrammar } from '../../ts/text/grammar';
import { schemaToGrammar } from '../../ts/text/json-schema';
import { type ChatMessage, type Tool, toTemplateMessage } from '../../ts/text/messages';
import {
  findToolCallFormat,
  TOOL_CALL_FORMATS,
  type ToolCallFormat,
  toolCallGrammar,
  type ToolCallGrammarOptions,
  ToolCallParser,
} from '../../ts/text/tool-calls';
import { accepts, randomText as randomGrammarText } from './grammar-texts';

const TEMPLATES = join(__dirname, '../oracle/fixtures/templates');
const ajv = new Ajv2020({ strict: false, allowUnionTypes: true });
addFormats(ajv);

const tool = (name: string, parameters?: Record<string, unknown>, strict?: boolean): Tool => ({
  type: 'function',
  function: { name, ...(parameters === undefined ? {} : { parameters }), ...(strict === undefined ? {} : { strict }) },
});

const WEATHER = tool('get_weather', {
  type: 'object',
  properties: {
    city: { type: 'string' },
    unit: { type: 'string', enum: ['celsius', 'fahrenheit'] },
    days: { type: 'integer', minimum: 1, maximum: 14 },
  },
  required: ['city'],
  additionalProperties: false,
});
const SEARCH = tool('search', {
  type: 'object',
  properties: {
    query: { type: 'string', minLength: 1, maxLength: 12 },
    filters: {
      type: 'array',
      items: {
        type: 'object',
        properties: { field: { type: 'string' }, max: { type: ['number', 'null'] }, exact: { type: 'boolean' } },
        required: ['field'],
      },
      maxItems: 2,
    },
    after: { anyOf: [{ type: 'string' }, { type: 'null' }] },
    mode: { anyOf: [{ enum: ['fast', 'None given', 'deep'] }, { type: 'null' }] },
    exact: { type: 'boolean' },
    day: { type: 'string', format: 'date' },
  },
});
const TREE = tool('tree.grow', {
  $defs: {
    node: {
      type: 'object',
      properties: {
        value: { type: ['integer', 'boolean', 'null'] },
        children: { type: 'array', items: { $ref: '#/$defs/node' }, maxItems: 2 },
      },
      required: ['value'],
      additionalProperties: false,
    },
  },
  type: 'object',
  properties: { root: { $ref: '#/$defs/node' }, extra: {} },
  required: ['root'],
});
const FREE = tool('free', { type: 'object' });
const PING = tool('ping');
const PONG = tool('pong', { type: 'object', properties: {} });
const TOOLS = [WEATHER, SEARCH, TREE, PING, PONG];

/** Texts of tool calls need more bytes than JSON documents. */
const MAX_BYTES = 160;
const randomText = (grammar: NativeGrammar, seed: number, prefix = ''): string =>
  randomGrammarText(grammar, seed, MAX_BYTES, prefix);

interface Reply {
  text: string;
  calls: { name: string; arguments: string }[];
}

function read(
  format: ToolCallFormat,
  text: string,
  tools: readonly Tool[],
  isConstrained: boolean,
  isCallsOrText = false,
): Reply {
  const parser = new ToolCallParser(format, { tools, isConstrained, isCallsOrText });
  const reply: Reply = { text: '', calls: [] };
  for (const part of [...[...text].flatMap((char) => parser.push(char)), ...parser.end()]) {
    if (part.type === 'text') reply.text += part.text;
    else if (part.type === 'toolCallStart') reply.calls.push({ name: part.name, arguments: '' });
    else if (part.type === 'toolCallArguments') reply.calls[reply.calls.length - 1].arguments += part.text;
  }
  return reply;
}

async function compile(
  format: ToolCallFormat,
  tools: readonly Tool[],
  options: ToolCallGrammarOptions,
): Promise<NativeGrammar> {
  return loadAddon().compileGrammar({ kind: 'rules', ...toolCallGrammar(format, tools, options) });
}

function checkCalls({ calls }: Reply, tools: readonly Tool[], what: string): void {
  for (const call of calls) {
    const found = tools.find((candidate) => candidate.function.name === call.name);
    if (found === undefined) throw new Error(`${what}: no such tool: ${call.name}`);
    const schema = found.function.parameters ?? { type: 'object', maxProperties: 0 };
    if (!ajv.validate(schema, JSON.parse(call.arguments)))
      throw new Error(`${what}: ${call.name}(${call.arguments}): ${ajv.errorsText()}`);
  }
}

describe.each(TOOL_CALL_FORMATS.map((format) => [format.name, format] as const))('%s', (name, format) => {
  const tools = TOOLS;

  test('required calls parse and validate, from the complete text and while streaming', async () => {
    for (const parallel of [true, false]) {
      const grammar = await compile(format, tools, { mode: 'required', parallel });
      for (let seed = 1; seed <= 60; seed++) {
        const text = randomText(grammar, seed);
        const reply = read(format, text, tools, false);
        const what = `${name}, seed ${seed}: ${text}`;
        expect([what, reply.text]).toEqual([what, '']);
        expect([what, reply.calls.length]).toEqual([what, parallel ? Math.max(1, reply.calls.length) : 1]);
        checkCalls(reply, tools, what);
        expect(read(format, text, tools, true)).toEqual(reply);
      }
    }
  });

  test('parallel calls can produce several calls', async () => {
    const grammar = await compile(format, [PING, PONG], { mode: 'required', parallel: true });
    const numCalls = Array.from(
      { length: 40 },
      (_, seed) => read(format, randomText(grammar, seed), [PING, PONG], false).calls.length,
    );
    expect(Math.max(...numCalls) > 1).toBe(format.syntax.isSingle !== true);
  });

  test('a named tool is called exactly once', async () => {
    const grammar = await compile(format, tools, { mode: 'required', only: 'get_weather', parallel: true });
    for (let seed = 1; seed <= 20; seed++) {
      const reply = read(format, randomText(grammar, seed), tools, false);
      expect(reply.calls.map((call) => call.name)).toEqual(['get_weather']);
      checkCalls(reply, tools, name);
    }
  });

  test('arguments of strict tools validate, also after free text', async () => {
    const strict = [{ ...SEARCH, function: { ...SEARCH.function, strict: true } }, WEATHER];
    const grammar = await compile(format, strict, { mode: 'strict', parallel: true });
    const required = await compile(format, strict, { mode: 'required', only: 'search', parallel: true });
    const { unmarked, open, withText } = format.syntax;
    if (withText !== undefined) return;
    for (const text of ['', 'Hello.', 'a < b, [1] and {"x": 1}', ' \n<b>', `x${open.slice(0, -1)}y`, '😀'])
      expect([text, accepts(grammar, text)]).toEqual([text, true]);
    for (let seed = 1; seed <= 20; seed++) {
      const calls = randomText(required, seed);
      for (const before of unmarked === undefined ? ['', 'Let me see. '] : ['']) {
        expect([before + calls, accepts(grammar, before + calls)]).toEqual([before + calls, true]);
        const text = randomText(grammar, seed, before + calls);
        const reply = read(format, text, strict, true);
        expect(read(format, text, strict, false)).toEqual(reply);
        expect(reply.text.startsWith(before.trim())).toBe(true);
        checkCalls({ ...reply, calls: reply.calls.filter((call) => call.name === 'search') }, strict, text);
        expect(reply.calls.length).toBeGreaterThan(0);
      }
      expect(accepts(grammar, `${calls.startsWith(open) ? 'x' : ''}${calls.replace('search', 'fetch')}`)).toBe(false);
    }
    expect(accepts(grammar, `${open}what?`)).toBe(false);
  });

  test('tools that are not strict accept any arguments', async () => {
    const tools = [
      { ...WEATHER, function: { ...WEATHER.function, strict: true } },
      tool('other', { type: 'object', properties: { a: { not: { type: 'string' } } } }),
    ];
    const grammar = await compile(format, tools, { mode: 'strict', parallel: true });
    const [call] = [
      randomText(
        await compile(
          format,
          [tool('other', { type: 'object', properties: { b: { type: 'object' } }, required: ['b'] })],
          { mode: 'required', parallel: false },
        ),
        3,
      ),
    ];
    expect([call, accepts(grammar, call)]).toEqual([call, true]);
    const start = call.slice(0, call.indexOf('other') + 'other'.length);
    for (let seed = 1; seed <= 20; seed++) {
      const text = randomText(grammar, seed, start);
      const reply = read(format, text, tools, true);
      expect(reply.calls[0].name).toBe('other');
      expect(typeof JSON.parse(reply.calls[0].arguments)).toBe('object');
      expect(read(format, text, tools, false)).toEqual(reply);
    }
  });

  test('calls or an answer in a format, but not both', async () => {
    const schema = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };
    const calls = toolCallGrammar(format, tools, { mode: 'chosen', parallel: true });
    const grammar = await loadAddon().compileGrammar({
      kind: 'rules',
      ...eitherGrammar(calls, schemaToGrammar(schema)),
    });
    const answer = await loadAddon().compileGrammar({ kind: 'rules', ...schemaToGrammar(schema) });
    const required = await compile(format, tools, { mode: 'required', parallel: true });
    const readEither = (text: string) => read(format, text, tools, false, true);
    for (let seed = 1; seed <= 20; seed++) {
      const text = randomText(answer, seed);
      expect([text, accepts(grammar, text), readEither(text)]).toEqual([text, true, { text, calls: [] }]);
      const call = randomText(required, seed);
      expect([call, accepts(grammar, call)]).toEqual([call, true]);
      checkCalls(readEither(call), tools, call);
      expect(accepts(grammar, `Well. ${call}`)).toBe(false);
      expect(accepts(grammar, `${text}${call}`)).toBe(false);
    }
    const marked = JSON.stringify({ city: `${format.syntax.open}<function=ping></function></tool_call>` });
    expect([accepts(grammar, marked), readEither(marked)]).toEqual([true, { text: marked, calls: [] }]);
  });

  test('without parallel calls there is at most one call', async () => {
    const grammar = await compile(format, [PING], { mode: 'strict', parallel: false });
    const one = randomText(await compile(format, [PING], { mode: 'required', parallel: false }), 1);
    expect(accepts(grammar, one)).toBe(true);
    expect(accepts(grammar, `${one}${format.syntax.between}${one}`)).toBe(false);
  });
});

test('a completion of Harmony is a final message, or a call that may follow a message to the user', async () => {
  const format = TOOL_CALL_FORMATS.find(({ name }) => name === 'harmony')!;
  const grammar = await compile(format, [{ ...WEATHER, function: { ...WEATHER.function, strict: true } }], {
    mode: 'strict',
    parallel: true,
  });
  const call = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Bern"}';
  const preamble = '<|channel|>commentary<|message|>I look.<|end|><|start|>assistant';
  for (const [text, isAccepted] of [
    ['<|channel|>final<|message|>Hello, <b> & "x".', true],
    [call, true],
    [preamble + call, true],
    [' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Bern", "days": 3}', true],
    ['Hello', false],
    [preamble, false],
    [call.replace('"Bern"', '5'), false],
    [call.replace('get_weather', 'search'), false],
    [`${call}<|call|><|start|>assistant${call}`, false],
  ] as const)
    expect([text, accepts(grammar, text)]).toEqual([text, isAccepted]);
});

test('Gemma calls write nested values in its own syntax', async () => {
  const format = TOOL_CALL_FORMATS.find(({ name }) => name === 'gemma4')!;
  const options = { mode: 'required', parallel: false } as const;
  const nested = tool('f', {
    type: 'object',
    properties: {
      list: {
        type: 'array',
        items: { type: 'object', properties: { 'a-b': { enum: ['x "y"', 5, null, { k: 'v' }] } } },
      },
      map: { type: 'object', additionalProperties: { type: 'integer' } },
      code: { type: 'string', pattern: '^[a-z]+$', maxLength: 4 },
      short: { type: 'string', maxLength: 3 },
      picked: { enum: ['ab', 'cd'], pattern: '^a' },
      free: {},
    },
  });
  const grammar = await compile(format, [nested], options);
  const quoted = (text: string) => `<|"|>${text}<|"|>`;
  for (const [args, isAccepted] of [
    ['{}', true],
    [`{list:[{a-b:${quoted('x "y"')}},{a-b:{k:${quoted('v')}}},{}],map:{x:1,y_2:-2}}`, true],
    [`{code:${quoted('abc')},short:${quoted('a"b')},free:{a:[${quoted('\n{}<|"')},true,null,1.5]}}`, true],
    ['{code:"abc"}', false],
    [`{picked:${quoted('ab')}}`, true],
    [`{picked:${quoted('cd')}}`, false],
    [`{code:${quoted('ABC')}}`, false],
    [`{short:${quoted('abcd')}}`, false],
    ['{"map":{}}', false],
    ['{map:{a b:1}}', false],
  ] as const) {
    const text = `<|tool_call>call:f${args}<tool_call|>`;
    expect([text, accepts(grammar, text)]).toEqual([text, isAccepted]);
    if (isAccepted) checkCalls(read(format, text, [nested], true), [nested], text);
  }
  for (const schema of [{ enum: ['a<|"|>b'] }, { type: 'object', properties: { 'a b': {} } }])
    expect(() => toolCallGrammar(format, [tool('f', { type: 'object', properties: { x: schema } })], options)).toThrow(
      /gemma cannot write/,
    );
});

test('JSON formats accept any object for a schema without properties', async () => {
  const isJson = ({ name }: ToolCallFormat) =>
    !['pythonic', 'lfm2', 'olmo3', 'qwen3_coder', 'seed_oss', 'glm45', 'hy3'].includes(name);
  for (const format of TOOL_CALL_FORMATS.filter(isJson)) {
    const grammar = await compile(format, [FREE], { mode: 'required', parallel: false });
    const texts = Array.from(
      { length: 30 },
      (_, seed) => read(format, randomText(grammar, seed), [FREE], false).calls[0].arguments,
    );
    expect(Math.max(...texts.map((text) => Object.keys(JSON.parse(text) as object).length))).toBeGreaterThan(0);
  }
});

test.each(readdirSync(TEMPLATES))('the grammar accepts calls as the template of %s writes them', async (family) => {
  const template = await ChatTemplate.load(join(TEMPLATES, family));
  const format = findToolCallFormat('auto', (text) => template.mentions(text));
  if (format === undefined) return;
  const calls = [
    { name: 'get_weather', arguments: { city: 'Zürich', days: 2 } },
    { name: 'ping', arguments: {} },
  ]
    .slice(0, family === 'llama3.1' ? 1 : 2)
    .map((call, i) => ({ ...call, id: `abcdefgh${i}` }));
  const messages: ChatMessage[] = [
    { role: 'user', content: 'Hm?' },
    { role: 'assistant', content: null, toolCalls: calls },
  ];
  const whole = await template.render(
    messages.map((message) => toTemplateMessage(message, template.traits)),
    { tools: TOOLS, addGenerationPrompt: false },
  );
  const begin = format.syntax.unmarked === undefined ? format.syntax.open : '{"name": "get_weather"';
  const start = whole.indexOf(begin, whole.indexOf('Hm?'));
  const text = whole.slice(start).replace(/(?:<\|im_end\|>\n|<\|eot_id\|>|<\/s>|<｜end▁of▁sentence｜>)$/, '');
  const grammar = await compile(format, TOOLS, { mode: 'required', parallel: true });
  expect([text, accepts(grammar, text)]).toEqual([text, true]);
});

describe('an unsupported schema is refused with its path', () => {
  const named = (name: string) => TOOL_CALL_FORMATS.find((format) => format.name === name)!;
  const withArgument = (schema: unknown) => [PING, tool('f', { type: 'object', properties: { a: schema } })];

  test('a pattern that the automaton does not support', async () => {
    await expect(
      compile(named('hermes'), withArgument({ type: 'string', pattern: '(?<=a)b' }), {
        mode: 'required',
        parallel: true,
      }),
    ).rejects.toThrow(
      'tools[1].function.parameters: #/properties/a/pattern: lookbehind is not supported at position 4',
    );
  });

  test.each<[format: string, tools: Tool[], message: string]>([
    [
      'hermes',
      withArgument({ not: { type: 'string' } }),
      'tools[1].function.parameters: #/properties/a/not: this keyword is not supported',
    ],
    [
      'hermes',
      [tool('f', { type: 'string' })],
      'tools[0].function.parameters: #/type: expected "object": arguments are an object',
    ],
    [
      'hermes',
      [tool('f', { type: 'object', required: ['a'], properties: { a: false } })],
      'tools[0].function.parameters: #/required: the property "a" is not allowed',
    ],
    [
      'pythonic',
      withArgument({ not: { type: 'string' } }),
      'tools[1].function.parameters: #/properties/a/not: this keyword is not supported',
    ],
    [
      'pythonic',
      [tool('get-weather')],
      'tools[0].function.name: expected Python names of letters, digits and _, joined by dots (tool call format pythonic), got "get-weather"',
    ],
    [
      'pythonic',
      [tool('f', { type: 'object', properties: { 'a b': {} } })],
      'tools[0].function.parameters: #/properties/a b: pythonic calls support only Python names for arguments',
    ],
    [
      'pythonic',
      [tool('f', { anyOf: [{ type: 'object' }] })],
      'tools[0].function.parameters: #/anyOf: not supported by pythonic calls for the arguments',
    ],
    [
      'pythonic',
      [tool('f', { type: 'object', minProperties: 2 })],
      'tools[0].function.parameters: #/minProperties: not supported by pythonic calls for the arguments',
    ],
    [
      'qwen3_coder',
      withArgument({ type: ['string', 'integer'], minimum: 5 }),
      'tools[1].function.parameters: #/properties/a/minimum: not supported by qwen3_coder calls for text',
    ],
    [
      'qwen3_coder',
      withArgument({ anyOf: [{ type: 'string' }, { type: 'integer', minimum: 5 }] }),
      'tools[1].function.parameters: #/properties/a/anyOf/1: not supported by qwen3_coder calls as an alternative to text',
    ],
    [
      'qwen3_coder',
      withArgument({ enum: ['5', 5] }),
      'tools[1].function.parameters: #/properties/a: qwen3_coder calls cannot write the constant "5"',
    ],
    [
      'mistral_args',
      [tool('a b')],
      'tools[0].function.name: expected a name of ASCII letters, digits, _, . and - (tool call format mistral_args), got "a b"',
    ],
    [
      'glm45',
      withArgument({ type: ['string', 'integer'], minimum: 5 }),
      'tools[1].function.parameters: #/properties/a/minimum: not supported by glm45 calls for text',
    ],
    [
      'glm45',
      [tool('a<b')],
      'tools[0].function.name: expected a name without <, > or line breaks, and without blanks around it (tool call format glm45), got "a<b"',
    ],
    [
      'harmony',
      [tool('a b')],
      'tools[0].function.name: expected a name without < and blanks (tool call format harmony), got "a b"',
    ],
    [
      'gemma4',
      [tool('a{')],
      'tools[0].function.name: expected a name without <, { and blanks (tool call format gemma4), got "a{"',
    ],
    [
      'lfm2',
      [tool('get-weather')],
      'tools[0].function.name: expected Python names of letters, digits and _, joined by dots (tool call format lfm2), got "get-weather"',
    ],
    [
      'deepseek_v3',
      [tool('a<b')],
      'tools[0].function.name: expected a name without <, ` and surrounding blanks (tool call format deepseek_v3), got "a<b"',
    ],
  ])('%s: %j', (format, tools, message) => {
    expect(() => toolCallGrammar(named(format), tools, { mode: 'required', parallel: true })).toThrow(
      expect.objectContaining({ code: 'invalid_argument', message, param: message.slice(0, message.indexOf(':')) }),
    );
  });

  test('a named tool that is not in the list', () => {
    expect(() => toolCallGrammar(named('hermes'), TOOLS, { mode: 'required', only: 'x', parallel: true })).toThrow(
      'toolChoice: expected the name of one of the tools, got "x"',
    );
  });
});
