/** Grammars of tool calls, the automaton and the reader of calls together: what the automaton lets through is read as calls whose arguments validate. */
import Ajv2020 from 'ajv/dist/2020';
import addFormats from 'ajv-formats';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { loadAddon } from '../../ts/addon';
import type { NativeGrammar } from '../../ts/addon-types';
import { ChatTemplate } from '../../ts/text/chat-template';
import { type ChatMessage, type Tool, toTemplateMessage } from '../../ts/text/messages';
import {
  findToolCallFormat,
  TOOL_CALL_FORMATS,
  type ToolCallFormat,
  toolCallGrammar,
  type ToolCallGrammarOptions,
  ToolCallMachine,
} from '../../ts/text/tool-calls';

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

function randomFrom(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

/** A text of the grammar after `prefix`, as in json-schema.test.ts. */
function randomText(grammar: NativeGrammar, seed: number, prefix = '', maxBytes = 160): string {
  const random = randomFrom(seed * 7919 + 17);
  const matcher = grammar.matcher();
  const bytes: number[] = [...Buffer.from(prefix)];
  expect([prefix, matcher.accept(Buffer.from(prefix))]).toEqual([prefix, true]);
  while (!(matcher.canEnd() && (bytes.length >= maxBytes || random(3) === 0 || matcher.nextBytes().length === 0))) {
    const isClosing = bytes.length >= maxBytes || random(5) === 0;
    const next = isClosing ? matcher.closingBytes() : matcher.nextBytes();
    const plain = next.filter((byte) => byte < 0x80);
    const from = plain.length > 0 && random(4) > 0 ? plain : next;
    const byte = from[random(from.length)];
    expect(matcher.accept(Uint8Array.of(byte))).toBe(true);
    bytes.push(byte);
  }
  return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(bytes));
}

interface Answer {
  text: string;
  calls: { name: string; arguments: string }[];
}

function read(format: ToolCallFormat, text: string, tools: readonly Tool[], isConstrained: boolean): Answer {
  const machine = new ToolCallMachine(format, { tools, isConstrained });
  const answer: Answer = { text: '', calls: [] };
  for (const part of [...[...text].flatMap((char) => machine.push(char)), ...machine.end()]) {
    if (part.type === 'text') answer.text += part.text;
    else if (part.type === 'toolCall') answer.calls.push({ name: part.name, arguments: part.arguments });
    else if (part.type === 'toolCallStart') answer.calls.push({ name: part.name, arguments: '' });
    else answer.calls[answer.calls.length - 1].arguments += part.text;
  }
  return answer;
}

async function compile(
  format: ToolCallFormat,
  tools: readonly Tool[],
  options: ToolCallGrammarOptions,
): Promise<NativeGrammar> {
  return loadAddon().compileGrammar({ kind: 'rules', ...toolCallGrammar(format, tools, options) });
}

function accepts(grammar: NativeGrammar, text: string): boolean {
  const matcher = grammar.matcher();
  return matcher.accept(Buffer.from(text)) && matcher.canEnd();
}

function checkCalls({ calls }: Answer, tools: readonly Tool[], what: string): void {
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

  test('required calls are read, whole and while they grow, and validate', async () => {
    for (const parallel of [true, false]) {
      const grammar = await compile(format, tools, { mode: 'required', parallel });
      for (let seed = 1; seed <= 60; seed++) {
        const text = randomText(grammar, seed);
        const answer = read(format, text, tools, false);
        const what = `${name}, seed ${seed}: ${text}`;
        expect([what, answer.text]).toEqual([what, '']);
        expect([what, answer.calls.length]).toEqual([what, parallel ? Math.max(1, answer.calls.length) : 1]);
        checkCalls(answer, tools, what);
        expect(read(format, text, tools, true)).toEqual(answer);
      }
    }
  });

  test('several calls come when they may', async () => {
    const grammar = await compile(format, [PING, PONG], { mode: 'required', parallel: true });
    const numCalls = Array.from(
      { length: 40 },
      (_, seed) => read(format, randomText(grammar, seed), [PING, PONG], false).calls.length,
    );
    expect(Math.max(...numCalls)).toBeGreaterThan(1);
  });

  test('a named tool is called once', async () => {
    const grammar = await compile(format, tools, { mode: 'required', only: 'get_weather', parallel: true });
    for (let seed = 1; seed <= 20; seed++) {
      const answer = read(format, randomText(grammar, seed), tools, false);
      expect(answer.calls.map((call) => call.name)).toEqual(['get_weather']);
      checkCalls(answer, tools, name);
    }
  });

  test('strict tools keep to their schema, in the middle of text, too', async () => {
    const strict = [{ ...SEARCH, function: { ...SEARCH.function, strict: true } }, WEATHER];
    const grammar = await compile(format, strict, { mode: 'strict', parallel: true });
    const required = await compile(format, strict, { mode: 'required', only: 'search', parallel: true });
    const { bare, open } = format.written;
    for (const text of ['', 'Hello.', 'a < b, [1] and {"x": 1}', ' \n<b>', `x${open.slice(0, -1)}y`, '😀'])
      expect([text, accepts(grammar, text)]).toEqual([text, true]);
    for (let seed = 1; seed <= 20; seed++) {
      const calls = randomText(required, seed);
      for (const before of bare === undefined ? ['', 'Let me see. '] : ['']) {
        expect([before + calls, accepts(grammar, before + calls)]).toEqual([before + calls, true]);
        const text = randomText(grammar, seed, before + calls);
        const answer = read(format, text, strict, true);
        expect(read(format, text, strict, false)).toEqual(answer);
        expect(answer.text.startsWith(before.trim())).toBe(true);
        checkCalls({ ...answer, calls: answer.calls.filter((call) => call.name === 'search') }, strict, text);
        expect(answer.calls.length).toBeGreaterThan(0);
      }
      expect(accepts(grammar, `${calls.startsWith(open) ? 'x' : ''}${calls.replace('search', 'fetch')}`)).toBe(false);
    }
    expect(accepts(grammar, `${open}what?`)).toBe(false);
  });

  test('tools that are not strict take any arguments', async () => {
    const tools = [
      { ...WEATHER, function: { ...WEATHER.function, strict: true } },
      tool('other', { type: 'object', properties: { a: { not: {} } } }),
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
      const answer = read(format, text, tools, true);
      expect(answer.calls[0].name).toBe('other');
      expect(typeof JSON.parse(answer.calls[0].arguments)).toBe('object');
      expect(read(format, text, tools, false)).toEqual(answer);
    }
  });

  test('at most one call where calls may not be parallel', async () => {
    const grammar = await compile(format, [PING], { mode: 'strict', parallel: false });
    const one = randomText(await compile(format, [PING], { mode: 'required', parallel: false }), 1);
    expect(accepts(grammar, one)).toBe(true);
    expect(accepts(grammar, `${one}${format.written.between}${one}`)).toBe(false);
  });
});

test('JSON formats write any object where the schema says no more', async () => {
  for (const format of TOOL_CALL_FORMATS.filter(({ name }) => name !== 'pythonic' && name !== 'qwen3_coder')) {
    const grammar = await compile(format, [FREE], { mode: 'required', parallel: false });
    const texts = Array.from(
      { length: 30 },
      (_, seed) => read(format, randomText(grammar, seed), [FREE], false).calls[0].arguments,
    );
    expect(Math.max(...texts.map((text) => Object.keys(JSON.parse(text) as object).length))).toBeGreaterThan(0);
  }
});

test.each(readdirSync(TEMPLATES))('calls as the template of %s writes them are in the grammar', async (family) => {
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
  const begin = format.written.bare === undefined ? format.written.open : '{"name": "get_weather"';
  const start = whole.indexOf(begin, whole.indexOf('Hm?'));
  const text = whole.slice(start).replace(/(?:<\|im_end\|>\n|<\|eot_id\|>|<\/s>|<｜end▁of▁sentence｜>)$/, '');
  const grammar = await compile(format, TOOLS, { mode: 'required', parallel: true });
  expect([text, accepts(grammar, text)]).toEqual([text, true]);
});

describe('what cannot be held to is refused by place', () => {
  const named = (name: string) => TOOL_CALL_FORMATS.find((format) => format.name === name)!;
  const withArgument = (schema: unknown) => [PING, tool('f', { type: 'object', properties: { a: schema } })];

  test('patterns that the automaton cannot take', async () => {
    await expect(
      compile(named('hermes'), withArgument({ type: 'string', pattern: '(?=a)' }), {
        mode: 'required',
        parallel: true,
      }),
    ).rejects.toThrow(
      'tools[1].function.parameters: #/properties/a/pattern: lookaround is not supported at position 3',
    );
  });

  test.each<[format: string, tools: Tool[], message: string]>([
    [
      'hermes',
      withArgument({ not: {} }),
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
      withArgument({ not: {} }),
      'tools[1].function.parameters: #/properties/a/not: this keyword is not supported',
    ],
    [
      'pythonic',
      [tool('get-weather')],
      'tools[0].function.name: expected a name of Python: letters, digits, _ and dots between names, as pythonic calls write it, got "get-weather"',
    ],
    [
      'pythonic',
      [tool('f', { type: 'object', properties: { 'a b': {} } })],
      'tools[0].function.parameters: #/properties/a b: pythonic calls have arguments with names of Python only',
    ],
    [
      'pythonic',
      [tool('f', { anyOf: [{ type: 'object' }] })],
      'tools[0].function.parameters: #/anyOf: pythonic calls do not support it for all arguments',
    ],
    [
      'pythonic',
      [tool('f', { type: 'object', minProperties: 2 })],
      'tools[0].function.parameters: #/minProperties: pythonic calls do not support it for all arguments',
    ],
    [
      'qwen3_coder',
      withArgument({ type: 'string', pattern: '^a$' }),
      'tools[1].function.parameters: #/properties/a/pattern: qwen3_coder calls do not support it for text',
    ],
    [
      'qwen3_coder',
      withArgument({ anyOf: [{ type: 'string' }, { type: 'integer', minimum: 5 }] }),
      'tools[1].function.parameters: #/properties/a/anyOf/1: qwen3_coder calls do not support it beside text',
    ],
    [
      'qwen3_coder',
      withArgument({ enum: ['5', 5] }),
      'tools[1].function.parameters: #/properties/a: qwen3_coder calls cannot write the constant "5"',
    ],
    [
      'mistral_args',
      [tool('a b')],
      'tools[0].function.name: expected a name of ASCII letters, digits, _, . and -, as mistral_args calls write it, got "a b"',
    ],
    [
      'deepseek_v3',
      [tool('a<b')],
      'tools[0].function.name: expected a name without <, ` and blanks around it, as deepseek_v3 calls write it, got "a<b"',
    ],
  ])('%s: %j', (format, tools, message) => {
    expect(() => toolCallGrammar(named(format), tools, { mode: 'required', parallel: true })).toThrow(
      expect.objectContaining({ code: 'invalid_argument', message, param: message.slice(0, message.indexOf(':')) }),
    );
  });

  test('a named tool that is none of the tools', () => {
    expect(() => toolCallGrammar(named('hermes'), TOOLS, { mode: 'required', only: 'x', parallel: true })).toThrow(
      'toolChoice: expected the name of one of the tools, got "x"',
    );
  });
});
