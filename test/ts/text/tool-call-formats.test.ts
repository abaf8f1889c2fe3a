import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { ChatTemplate } from '../../../ts/text/chat-template';
import { type ChatMessage, toTemplateMessage } from '../../../ts/text/messages';
import type { Tool } from '../../../ts/text/messages';
import {
  findToolCallFormat,
  type OutputPart,
  TOOL_CALL_FORMATS,
  ToolCallParser,
  type ToolCallOptions,
} from '../../../ts/text/tool-calls';

const tool = (name: string, properties: Record<string, unknown> = {}): Tool => ({
  type: 'function',
  function: { name, parameters: { type: 'object', properties } },
});

const TOOLS = [
  tool('get', {
    city: { type: 'string' },
    n: { type: 'integer' },
    x: { type: 'number' },
    on: { type: 'boolean' },
    list: { type: 'array' },
    map: { type: 'object' },
    note: { anyOf: [{ type: 'string' }, { type: 'null' }] },
    any: {},
  }),
  tool('ping'),
  tool('write', { text: { type: 'string' } }),
];

interface Answer {
  text: string;
  calls: [name: string, args: string][];
}

function formatOf(name: string) {
  return findToolCallFormat(name, () => false)!;
}

function run(format: string, pieces: readonly string[], options: ToolCallOptions = { tools: TOOLS }): Answer {
  const machine = new ToolCallParser(formatOf(format), options);
  return collect([...pieces.flatMap((piece) => machine.push(piece)), ...machine.end()]);
}

function collect(parts: readonly OutputPart[]): Answer {
  const answer: Answer = { text: '', calls: [] };
  for (const part of parts) {
    if (part.type === 'text') answer.text += part.text;
    else if (part.type === 'toolCall') answer.calls.push([part.name, part.arguments]);
    else if (part.type === 'toolCallStart') answer.calls.push([part.name, '']);
    else answer.calls[answer.calls.length - 1][1] += part.text;
  }
  return answer;
}

/** Valid texts, their calls, and the text around the calls. */
type Good = [what: string, text: string, calls: [string, string][], content?: string];

const GOOD: Record<string, Good[]> = {
  llama3_json: [
    [
      'one call',
      '{"name": "get", "parameters": {"city": "Zürich 😀", "n": 1.0}}',
      [['get', '{"city": "Zürich 😀", "n": 1.0}']],
    ],
    ['with the tag', '<|python_tag|>{"name": "ping", "parameters": {}}', [['ping', '{}']]],
    ['text before the tag', 'I look. <|python_tag|>{"name": "ping", "parameters": {}}', [['ping', '{}']], 'I look.'],
    ['blanks around', '\n {"name": "ping", "parameters": { }}\n', [['ping', '{ }']]],
    [
      'several',
      '{"name": "ping", "parameters": {}}; {"name": "get", "parameters": {"city": "}; {"}}',
      [
        ['ping', '{}'],
        ['get', '{"city": "}; {"}'],
      ],
    ],
    [
      'several, tagged',
      '<|python_tag|>{"name": "ping", "parameters": {}};<|python_tag|>{"name": "ping"}',
      [
        ['ping', '{}'],
        ['ping', '{}'],
      ],
    ],
    ['a separator too many', '{"name": "ping", "parameters": {}}; ', [['ping', '{}']]],
    [
      'only blanks between',
      '{"name": "ping", "parameters": {}}\n{"name": "ping", "parameters": {}}',
      [
        ['ping', '{}'],
        ['ping', '{}'],
      ],
    ],
    ['no parameters', '{"name": "ping"}', [['ping', '{}']]],
    ['its type, too', '{"type": "function", "name": "get", "parameters": {"n": 1}}', [['get', '{"n": 1}']]],
    ['arguments by their other name', '{"name": "get", "arguments": {"n": 1}}', [['get', '{"n": 1}']]],
    ['no call after a call', '{"name": "ping", "parameters": {}}; and {"x": 1}', [['ping', '{}']], '; and {"x": 1}'],
  ],
  pythonic: [
    ['one call', '[get(city="Zürich 😀", n=1)]', [['get', '{"city": "Zürich 😀", "n": 1}']]],
    [
      'several',
      "[ping(), get(city='a'), ping( )]",
      [
        ['ping', '{}'],
        ['get', '{"city": "a"}'],
        ['ping', '{}'],
      ],
    ],
    [
      'on many lines, with commas at the end',
      '[\n  get(\n    city = "a",\n    n = 2,\n  ),\n]\n',
      [['get', '{"city": "a", "n": 2}']],
    ],
    ['between markers', 'Hm. <|python_start|>[ping()]<|python_end|>', [['ping', '{}']], 'Hm.'],
    ['cut within the closing marker', '<|python_start|>[ping()]<|python', [['ping', '{}']]],
    [
      'constants and numbers',
      '[get(any=[True, False, None, true, null, -1, +2, 1.50, .5, 5., 1e5, -2E-3, 1_000, 0x1F, 0b11, 0])]',
      [['get', '{"any": [true, false, null, true, null, -1, 2, 1.50, 0.5, 5.0, 1e5, -2E-3, 1000, 31, 3, 0]}']],
    ],
    [
      'nested values',
      '[get(map={"a": [1, {"b": (2, 3)}], \'c\': {}}, list=[])]',
      [['get', '{"map": {"a": [1, {"b": [2, 3]}], "c": {}}, "list": []}']],
    ],
    [
      'escapes',
      String.raw`[write(text='it\'s "x" \\ \n\t\x41\u00e9\U0001F600\101 \d \/')]`,
      [['write', String.raw`{"text": "it's \"x\" \\ \n\tAé😀A \\d /"}`]],
    ],
    ['halves of pairs', String.raw`[write(text="\ud83d\ude00")]`, [['write', String.raw`{"text": "\ud83d\ude00"}`]]],
    [
      'three quotes',
      '[write(text="""a\n"b" \'c\' ""\\"""")]',
      [['write', String.raw`{"text": "a\n\"b\" 'c' \"\"\""}`]],
    ],
    [
      'brackets and calls in a string',
      '[write(text="])}, ping(), [get(x=1)]")]',
      [['write', '{"text": "])}, ping(), [get(x=1)]"}']],
    ],
    [
      'lists in a row',
      '[ping()]\n[ping()]',
      [
        ['ping', '{}'],
        ['ping', '{}'],
      ],
    ],
  ],
  mistral: [
    [
      'an array',
      '[TOOL_CALLS] [{"name": "get", "arguments": {"city": "]"}}, {"name": "ping", "arguments": {}, "id": "abcdefghi"}]',
      [
        ['get', '{"city": "]"}'],
        ['ping', '{}'],
      ],
    ],
    ['without a blank', '[TOOL_CALLS][{"name": "ping", "arguments": { }}]', [['ping', '{ }']]],
    ['text before', 'Hm.\n[TOOL_CALLS][{"name": "ping"}]', [['ping', '{}']], 'Hm.'],
    ['text after', '[TOOL_CALLS][{"name": "ping"}] Done.', [['ping', '{}']], 'Done.'],
    ['an array that lacks its end', '[TOOL_CALLS][{"name": "ping", "arguments": {}}', [['ping', '{}']]],
    ['by name', '[TOOL_CALLS]get[ARGS]{"city": "[ARGS]{"}', [['get', '{"city": "[ARGS]{"}']]],
    [
      'by name, several',
      '[TOOL_CALLS]get[ARGS]{"n": 1}[TOOL_CALLS]ping[ARGS]{}',
      [
        ['get', '{"n": 1}'],
        ['ping', '{}'],
      ],
    ],
    [
      'by name, one marker',
      '[TOOL_CALLS]get[ARGS]{"n": 1}ping[ARGS]{} Done',
      [
        ['get', '{"n": 1}'],
        ['ping', '{}'],
      ],
      'Done',
    ],
    ['by name, with an id', '[TOOL_CALLS]get[CALL_ID]abcdefghi[ARGS]{"n": 1}', [['get', '{"n": 1}']]],
    ['by name, its marker hidden', '[TOOL_CALLS]get{"n": 1}', [['get', '{"n": 1}']]],
    ['a name that no tool has', '[TOOL_CALLS]other[ARGS]{}', [['other', '{}']]],
  ],
  deepseek_v3: [
    [
      'in a fence',
      '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get\n```json\n{"city": "```"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
      [['get', '{"city": "```"}']],
    ],
    [
      'several',
      '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get\n```json\n{"n": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
      [
        ['get', '{"n": 1}'],
        ['ping', '{}'],
      ],
    ],
    [
      'without a fence',
      '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
      [['ping', '{}']],
    ],
    [
      'text before, no ends',
      'Hm. <｜tool▁calls▁begin｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n```json\n{}\n``',
      [['ping', '{}']],
      'Hm.',
    ],
  ],
  deepseek_v31: [
    [
      'several',
      '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get<｜tool▁sep｜>{"n": 1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
      [
        ['get', '{"n": 1}'],
        ['ping', '{}'],
      ],
    ],
    [
      'text after',
      '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜> Done.',
      [['ping', '{}']],
      'Done.',
    ],
  ],
  qwen3_coder: [
    [
      'text',
      '<tool_call>\n<function=get>\n<parameter=city>\nZürich 😀\n</parameter>\n</function>\n</tool_call>',
      [['get', '{"city": "Zürich 😀"}']],
    ],
    [
      'all types',
      [
        '<tool_call>\n<function=get>',
        'city>\n 5 ',
        'n>\n 5 ',
        'x>1.50',
        'on>\nTrue',
        'list>\n[1,  "a"]',
        "map>{'a': None}",
        'note>\nnull',
        'any>\n{"b" : 1}',
      ]
        .join('\n</parameter>\n<parameter=')
        .replace('\n</parameter>', '') + '\n</parameter>\n</function>\n</tool_call>',
      [
        [
          'get',
          '{"city": " 5 ", "n": 5, "x": 1.50, "on": true, "list": [1,  "a"], "map": {"a": null}, "note": null, "any": {"b" : 1}}',
        ],
      ],
    ],
    [
      'what does not fit its type is text',
      '<tool_call><function=get><parameter=n>five</parameter><parameter=on>5</parameter></function></tool_call>',
      [['get', '{"n": "five", "on": "5"}']],
    ],
    [
      'arguments and functions without schema are text',
      '<tool_call><function=other><parameter=a>5</parameter></function></tool_call>',
      [['other', '{"a": "5"}']],
    ],
    [
      'code with line breaks, quotes and tags',
      '<tool_call>\n<function=write>\n<parameter=text>\n\nif (a < b) {\n\t"</tool_call>" </param>\n<</parameter>\n</function>\n</tool_call>',
      [['write', String.raw`{"text": "\nif (a < b) {\n\t\"</tool_call>\" </param>\n<"}`]],
    ],
    ['no arguments', '<tool_call>\n<function=ping>\n</function>\n</tool_call>', [['ping', '{}']]],
    [
      'several, without the outer marker',
      '<function=ping>\n</function>\n<function=ping></function>',
      [
        ['ping', '{}'],
        ['ping', '{}'],
      ],
    ],
    ['text around', 'Hm. <tool_call><function=ping></function></tool_call>\nDone.', [['ping', '{}']], 'Hm.\nDone.'],
    ['cut within the closing marker', '<tool_call><function=ping></function></tool', [['ping', '{}']]],
  ],
};

const BAD: Record<string, string[]> = {
  llama3_json: [
    'Hello',
    '{"name": "other", "parameters": {}}',
    '{"name": "get", "age": 5}',
    '{"city": "x"}',
    '{"name": "get", "parameters": [1]}',
    'See {"name": "get", "parameters": {}}',
    '{"name": "get", "parameters": {}} is it',
    '{"name": "get", "param',
    '<|python_tag|>print(1)',
    '<|python_tag',
    '[{"name": "get", "parameters": {}}]',
    '{"name": 5}',
    '{}',
    '; {"name": "ping"}',
    '<|python_tag|>{"name": "get", "parameters": {"a": tru}}',
  ],
  pythonic: [
    '[1, 2]',
    '[]',
    '[other()]',
    '[ping(), other()]',
    '[ping()] is it',
    'See [ping()]',
    '[ping()',
    '[ping(]',
    '[get(1)]',
    '[get(city=x)]',
    '[get(city="a)]',
    '[get(city="a\n")]',
    '[get(city=f"a")]',
    '[get(city=1+1)]',
    '[get(n=01)]',
    '[get(n=0x)]',
    '[get(n=.)]',
    '[get(map={1: 2})]',
    '[get(map={"a"})]',
    '[get(city="\\xZZ")]',
    '[get(city="\\N{DASH}")]',
    '[get(city="\\U00110000")]',
    '[get(city=__import__("os"))]',
    '[get(**{})]',
    '[.ping()]',
    '[ping.()]',
    `[get(any=${'['.repeat(300)}`,
    '<|python_start|>[ping()] x<|python_end|>',
    `[get(n=${'1'.repeat(500)})]`,
    '[ping(),, ping()]',
    '[get(city="a" "b")]',
  ],
  mistral: [
    '[TOOL_CALLS]',
    '[TOOL_CALLS] []',
    '[TOOL_CALLS][{"name": "ping"}, {"na',
    '[TOOL_CALLS][{"name": "ping"} {"name": "ping"}]',
    '[TOOL_CALLS]get',
    '[TOOL_CALLS]get[ARGS]',
    '[TOOL_CALLS]get[ARGS]{"a": 1',
    '[TOOL_CALLS]get[ARGS][1]',
    '[TOOL_CALLS]get it{}',
    'ping[ARGS]{}',
    '[TOOL_',
    '[INST]',
    `[TOOL_CALLS]${'a'.repeat(300)}{}`,
    '[TOOL_CALLS]get[CALL_ID][ARGS]{}',
    '[TOOL_CALLS][TOOL_CALL]',
  ],
  deepseek_v3: [
    '<｜tool▁calls▁begin｜>',
    '<｜tool▁calls▁begin｜>x',
    '<｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n{}<｜tool▁call▁end｜>',
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n```json\n{"a": }\n```<｜tool▁call▁end｜>',
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n```python\n{}```',
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n```json\n{} x```',
    '<｜tool▁calls▁end｜>',
    '<｜tool',
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜><｜tool▁sep｜>{}',
  ],
  deepseek_v31: [
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get<｜tool▁sep｜>{"n": 1',
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get{"n": 1}<｜tool▁call▁end｜>',
  ],
  qwen3_coder: [
    '<tool_call>{"name": "ping"}</tool_call>',
    '<tool_call><function=></function></tool_call>',
    '<tool_call><function=ping><parameter=a>5</function></tool_call>',
    '<tool_call><function=ping>x</function></tool_call>',
    '<tool_call><function=ping>',
    '<function',
    '<function=a<b></function>',
    '<tool_call><function=ping></function> x</tool_call>',
    '<tool_call><function=ping><parameter>1</parameter></function></tool_call>',
  ],
};

describe.each(Object.entries(GOOD))('%s', (format, cases) => {
  test.each(cases)('reads calls: %s', (_what, text, calls, content = '') => {
    expect(run(format, [text])).toEqual({ text: content, calls });
    expect(run(format, [...text])).toEqual({ text: content, calls });
  });

  test.each(BAD[format])('keeps text that is not a call: %j', (text) => {
    expect(run(format, [text])).toEqual({ text, calls: [] });
    expect(run(format, [...text])).toEqual({ text, calls: [] });
  });

  test('accepts any function without a list of tools', () => {
    for (const [, text, calls] of cases)
      expect(run(format, [text], {}).calls.map(([name]) => name)).toEqual(calls.map(([name]) => name));
  });
});

describe('streamed calls', () => {
  test.each<[format: string, pieces: string[], parts: OutputPart[][]]>([
    [
      'hermes',
      ['<tool_call>\n{"name": "get"', ', "arguments": {"ci', 'ty": "a}', '"}', '}\n</tool_call>'],
      [
        [{ type: 'toolCallStart', name: 'get' }],
        [{ type: 'toolCallArguments', text: '{"ci' }],
        [{ type: 'toolCallArguments', text: 'ty": "a}' }],
        [{ type: 'toolCallArguments', text: '"}' }],
        [],
      ],
    ],
    [
      'pythonic',
      ['[get', '(', 'city="a', 'b", n=', '5)', ']'],
      [
        [],
        [
          { type: 'toolCallStart', name: 'get' },
          { type: 'toolCallArguments', text: '{' },
        ],
        [{ type: 'toolCallArguments', text: '"city": "a' }],
        [{ type: 'toolCallArguments', text: 'b", "n": ' }],
        [{ type: 'toolCallArguments', text: '5}' }],
        [],
      ],
    ],
    [
      'qwen3_coder',
      [
        '<tool_call>\n<function=write',
        '>',
        '\n<parameter=text>\nab',
        '\n',
        'c\n</para',
        'meter>\n</function>\n</tool_call>',
      ],
      [
        [],
        [{ type: 'toolCallStart', name: 'write' }],
        [{ type: 'toolCallArguments', text: '{"text": "ab' }],
        [],
        [{ type: 'toolCallArguments', text: '\\nc' }],
        [{ type: 'toolCallArguments', text: '"}' }],
      ],
    ],
    [
      'mistral',
      ['[TOOL_CALLS]ping[ARGS]', '{', '}'],
      [
        [{ type: 'toolCallStart', name: 'ping' }],
        [{ type: 'toolCallArguments', text: '{' }],
        [{ type: 'toolCallArguments', text: '}' }],
      ],
    ],
    [
      'llama3_json',
      ['{"name": "ping"', '}'],
      [[{ type: 'toolCallStart', name: 'ping' }], [{ type: 'toolCallArguments', text: '{}' }]],
    ],
  ])('%s', (format, pieces, parts) => {
    const machine = new ToolCallParser(formatOf(format), { tools: TOOLS, isConstrained: true });
    expect(pieces.map((piece) => machine.push(piece))).toEqual(parts);
    expect(machine.end()).toEqual([]);
  });

  test.each(Object.entries(GOOD))('equal the buffered calls: %s', (format, cases) => {
    for (const [what, text, calls, content = ''] of cases.filter((entry) => !entry[0].includes('outer marker'))) {
      expect([what, run(format, [...text], { tools: TOOLS, isConstrained: true })]).toEqual([
        what,
        { text: content, calls },
      ]);
    }
  });

  test('keep the emitted part of a call that is cut', () => {
    expect(run('hermes', ['<tool_call>{"name": "get", "arguments": {"a": '], { isConstrained: true })).toEqual({
      text: '',
      calls: [['get', '{"a": ']],
    });
    expect(run('hermes', ['<tool_call>{"nam'], { isConstrained: true })).toEqual({
      text: '<tool_call>{"nam',
      calls: [],
    });
  });

  test('treat unexpected characters after a call as text', () => {
    expect(
      run('hermes', ['<tool_call>{"name": "get", "arguments": {}} oh </tool_call>'], { isConstrained: true }),
    ).toEqual({ text: '} oh </tool_call>', calls: [['get', '{}']] });
  });
});

describe('chunking', () => {
  const texts = [
    ...Object.values(GOOD).flatMap((cases) => cases.map(([, text]) => text)),
    ...Object.values(BAD).flat(),
  ];
  const pieces = [
    'Hi',
    ' ',
    '\n',
    '<',
    '[',
    '{',
    '}',
    ']',
    ';',
    ',',
    '"',
    "'",
    '(',
    ')',
    '=',
    ':',
    '\\',
    'é',
    '😀',
    'ping()',
    'get(',
    'name',
    '"name"',
    '{"name": "ping"}',
    '</parameter>',
    '```',
    '```json',
    'True',
    '-1.5',
    ...TOOL_CALL_FORMATS.flatMap(({ markers }) => markers),
    ...texts.filter((text) => text.length < 60),
  ];

  test.each(TOOL_CALL_FORMATS.map(({ name }) => [name]))('does not change the result of %s', (format) => {
    const random = makeRandom(format.length * 101 + 7);
    for (let round = 0; round < 1500; round++) {
      const text =
        round % 2 === 0
          ? cut(texts[random(texts.length)], random)
          : Array.from({ length: 1 + random(9) }, () => pieces[random(pieces.length)]).join('');
      for (const isConstrained of [false, true]) {
        const options = { tools: TOOLS, isConstrained };
        const whole = run(format, [text], options);
        expect([text, run(format, split(text, random), options)]).toEqual([text, whole]);
        if (whole.calls.length === 0) expect(whole.text).toBe(text);
        if (!isConstrained) for (const [, args] of whole.calls) expect(typeof JSON.parse(args)).toBe('object');
      }
    }
  });
});

describe('detection of the format', () => {
  const find = (name: string, template: string) => findToolCallFormat(name, (text) => template.includes(text))?.name;

  test.each([
    ['qwen', 'hermes'],
    ['qwen25', 'hermes'],
    ['qwen3', 'hermes'],
    ['hermes', 'hermes'],
    ['llama3_json', 'llama3_json'],
    ['llama3.1', 'llama3_json'],
    ['llama4_json', 'llama3_json'],
    ['llama4_pythonic', 'pythonic'],
    ['pythonic', 'pythonic'],
    ['mistral', 'mistral'],
    ['deepseek_v3', 'deepseek_v3'],
    ['deepseek_v31', 'deepseek_v31'],
    ['qwen3_coder', 'qwen3_coder'],
    ['qwen3_xml', 'qwen3_coder'],
  ])('finds the name %s', (name, format) => {
    expect(find(name, '')).toBe(format);
  });

  const templates = join(__dirname, '../../oracle/fixtures/templates');
  const FORMAT_OF_FAMILY: Record<string, string | undefined> = {
    'deepseek-v3': 'deepseek_v3',
    'llama3.1': 'llama3_json',
    'mistral-nemo': 'mistral',
    'mistral-v3': 'mistral',
    'qwen2.5': 'hermes',
    qwen3: 'hermes',
    'qwen3.5': 'qwen3_coder',
    llama2: undefined,
    smollm2: undefined,
  };

  test.each(readdirSync(templates))(
    'detects the format of the real template of %s and reads the calls that it renders',
    async (family) => {
      const template = await ChatTemplate.load(join(templates, family));
      const format = findToolCallFormat('auto', (text) => template.mentions(text));
      expect([family, format?.name]).toEqual([family, FORMAT_OF_FAMILY[family]]);
      if (format === undefined) return;
      const args = { city: 'Zürich "x" 😀', n: 2, list: [1, { a: null }], on: true };
      const calls = (family === 'llama3.1' ? ['get'] : ['get', 'get']).map((name, i) => ({
        id: `call_0123456789abcdef${i}`,
        name,
        arguments: JSON.stringify(args),
      }));
      const messages: ChatMessage[] = [
        { role: 'user', content: 'Hm?' },
        { role: 'assistant', content: null, toolCalls: calls },
      ];
      const render = (shown: ChatMessage[], addGenerationPrompt: boolean) =>
        template.render(
          shown.map((message) => toTemplateMessage(message, template.traits, format.toPromptId)),
          { tools: TOOLS, addGenerationPrompt },
        );
      const [prompt, whole] = [
        await render(messages.slice(0, 1), format.syntax.unmarked !== undefined),
        await render(messages, false),
      ];
      expect(whole.startsWith(prompt)).toBe(true);
      const answer = run(format.name, [whole.slice(prompt.length)]);
      expect([whole, answer.calls.map(([name, text]) => [name, JSON.parse(text) as unknown])]).toEqual([
        whole,
        calls.map(({ name }) => [name, args]),
      ]);
    },
  );

  test.each([
    ['<tool_call>name\n<arg_key>', undefined],
    ['<seed:tool_call><function=f><parameter=a>', undefined],
    ['<tool_call>\n<function=f>\n<parameter=a>', 'qwen3_coder'],
    ['[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}', 'mistral_args'],
    ['<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>', 'deepseek_v31'],
    ['<|header_start|> [func_name1(params_name1=params_value1)]', 'pythonic'],
    ['<|header_start|> "parameters": ', 'llama3_json'],
    ['', undefined],
  ])('detects the format of the template %j', (template, format) => {
    expect(find('auto', template)).toBe(format);
  });

  test('the name mistral covers both formats of Mistral', () => {
    expect(find('mistral', '[TOOL_CALLS] [ARGS]')).toBe('mistral_args');
    expect(find('hermes', '[TOOL_CALLS] [ARGS]')).toBe('hermes');
  });

  test('refuses an unknown name', () => {
    expect(() => find('gpt', '')).toThrow(
      expect.objectContaining({
        code: 'invalid_argument',
        param: 'toolCallFormat',
        message: expect.stringMatching(/^toolCallFormat: expected one of auto, .*llama3_json, got "gpt"$/) as string,
      }),
    );
  });

  test('names and aliases are unique', () => {
    const names = TOOL_CALL_FORMATS.flatMap(({ name, aliases }) => [name, ...aliases]);
    expect(new Set(names).size).toBe(names.length);
  });

  test('the first character of each marker does not occur in the rest of it', () => {
    for (const marker of TOOL_CALL_FORMATS.flatMap(({ markers }) => markers))
      expect(marker.lastIndexOf(marker[0])).toBe(0);
  });
});

test('ids of Mistral calls have nine letters and digits', () => {
  const { newId, toPromptId } = formatOf('mistral');
  expect(Array.from({ length: 50 }, () => newId!()).every((id) => /^[A-Za-z0-9]{9}$/.test(id))).toBe(true);
  expect(toPromptId!('a1B2c3D4e')).toBe('a1B2c3D4e');
  expect(toPromptId!('call_0123456789abcdef')).toMatch(/^[A-Za-z0-9]{9}$/);
  expect(toPromptId!('call_0123456789abcdef')).toBe(toPromptId!('call_0123456789abcdef'));
  expect(toPromptId!('call_0123456789abcdee')).not.toBe(toPromptId!('call_0123456789abcdef'));
});

/** Returns the text, a prefix of it, or a prefix and a suffix, one third of the time each. */
function cut(text: string, random: (below: number) => number): string {
  const end = random(text.length + 1);
  if (random(3) === 0) return text;
  const prefix = text.slice(0, end);
  return random(2) === 0 ? prefix : prefix + text.slice(random(text.length + 1));
}

function split(text: string, random: (below: number) => number): string[] {
  const pieces: string[] = [];
  const chars = [...text];
  for (let at = 0; at < chars.length;) {
    const length = 1 + random(6);
    pieces.push(chars.slice(at, at + length).join(''));
    at += length;
  }
  return pieces;
}

/** Park-Miller generator, so that every run has the same cases. */
function makeRandom(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (state * 48271) % 2147483647;
    return state % below;
  };
}
