import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { ChatTemplate } from '../../../ts/text/chat-template';
import { type ChatMessage, toTemplateMessage } from '../../../ts/text/messages';
import { findToolCallFormat, type OutputPart, TOOL_CALL_FORMATS, ToolCallParser } from '../../../ts/text/tool-calls';
import { numCases } from '../../fakes/sample';
import { cut, formatOf, GOOD, makeRandom, run, split, TOOLS } from './tool-call-cases';
import { FAMILY_BAD } from './tool-call-families';

const BAD: Record<string, string[]> = {
  ...FAMILY_BAD,
  llama3_json: [
    'Hello',
    '{"name": "other", "parameters": {}}',
    '{"name": "get", "age": 5}',
    '{"city": "x"}',
    '{"name": "get", "parameters": [1]}',
    'See {"name": "get", "parameters": {}}',
    '{"name": "get", "param',
    '<|python_tag|>print(1)',
    '<|python_tag',
    '[{"name": "get", "parameters": {}}]',
    '{"name": 5}',
    '{}',
    '; {"name": "ping"}',
  ],
  pythonic: ['[1, 2]', '[]', '[other()]', 'See [ping()]', '[.ping()]', '[ping.()]'],
  mistral: [
    '[TOOL_CALLS]',
    '[TOOL_CALLS]other[ARGS]{}',
    '[TOOL_CALLS] []',
    '[TOOL_CALLS]get',
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
    '<｜tool▁calls▁end｜>',
    '<｜tool',
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜><｜tool▁sep｜>{}',
  ],
  deepseek_v31: [
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>other<｜tool▁sep｜>{}<｜tool▁call▁end｜>',
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get{"n": 1}<｜tool▁call▁end｜>',
  ],
  qwen3_coder: [
    '<tool_call>{"name": "ping"}</tool_call>',
    '<tool_call><function=other><parameter=a>5</parameter></function></tool_call>',
    '<function=other></function>',
    '<tool_call><function=></function></tool_call>',
    '<function',
    '<function=a<b></function>',
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

  test('reads the same calls under a grammar', () => {
    for (const [what, text, calls, content = ''] of cases.filter((entry) => !entry[0].includes('outer marker')))
      expect([what, run(format, [...text], { tools: TOOLS, isConstrained: true })]).toEqual([
        what,
        { text: content, calls },
      ]);
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
        [{ type: 'toolCallArguments', text: '"}' }, { type: 'toolCallEnd' }],
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
        [{ type: 'toolCallArguments', text: '5}' }, { type: 'toolCallEnd' }],
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
        [{ type: 'toolCallArguments', text: '"}' }, { type: 'toolCallEnd' }],
      ],
    ],
    [
      'qwen3_coder',
      ['<function=get><parameter=note>', 'No', 'pe', '</parameter><parameter=list>[1,', '2]</parameter>'],
      [
        [
          { type: 'toolCallStart', name: 'get' },
          { type: 'toolCallArguments', text: '{"note": ' },
        ],
        [],
        [{ type: 'toolCallArguments', text: '"Nope' }],
        [{ type: 'toolCallArguments', text: '", "list": ' }],
        [{ type: 'toolCallArguments', text: '[1,2]' }],
      ],
    ],
    [
      'deepseek_v3',
      ['<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get', '\n', '```json\n{"n"', ':1}', '\n```'],
      [
        [],
        [{ type: 'toolCallStart', name: 'get' }],
        [{ type: 'toolCallArguments', text: '{"n"' }],
        [{ type: 'toolCallArguments', text: ':1}' }, { type: 'toolCallEnd' }],
        [],
      ],
    ],
    [
      'mistral',
      ['[TOOL_CALLS] [{"name": "get"', ', "arguments": {"n', '": 1', '}', '}]'],
      [
        [{ type: 'toolCallStart', name: 'get' }],
        [{ type: 'toolCallArguments', text: '{"n' }],
        [{ type: 'toolCallArguments', text: '": 1' }],
        [{ type: 'toolCallArguments', text: '}' }, { type: 'toolCallEnd' }],
        [],
      ],
    ],
    [
      'mistral',
      ['[TOOL_CALLS]ping[ARGS]', '{', '}'],
      [
        [{ type: 'toolCallStart', name: 'ping' }],
        [{ type: 'toolCallArguments', text: '{' }],
        [{ type: 'toolCallArguments', text: '}' }, { type: 'toolCallEnd' }],
      ],
    ],
    [
      'llama3_json',
      ['{"name": "get"', ', "parameters": ', '{', '"n": 1', '}', '}'],
      [
        [],
        [],
        [
          { type: 'toolCallStart', name: 'get' },
          { type: 'toolCallArguments', text: '{' },
        ],
        [{ type: 'toolCallArguments', text: '"n": 1' }],
        [{ type: 'toolCallArguments', text: '}' }, { type: 'toolCallEnd' }],
        [],
      ],
    ],
    [
      'harmony',
      ['<|channel|>commentary to=functions.get', ' <|constrain|>json<|message|>', '{"ci', 'ty": "a"}', '<|call|>'],
      [
        [],
        [{ type: 'toolCallStart', name: 'get' }],
        [{ type: 'toolCallArguments', text: '{"ci' }],
        [{ type: 'toolCallArguments', text: 'ty": "a"}' }, { type: 'toolCallEnd' }],
        [],
      ],
    ],
    [
      'gemma4',
      ['<|tool_call>call:get', '{city:<|"|>a', 'b<', '|"|>,n', ':5', '}<tool_call|>'],
      [
        [],
        [
          { type: 'toolCallStart', name: 'get' },
          { type: 'toolCallArguments', text: '{"city": "a' },
        ],
        [{ type: 'toolCallArguments', text: 'b' }],
        [{ type: 'toolCallArguments', text: '", ' }],
        [{ type: 'toolCallArguments', text: '"n": ' }],
        [{ type: 'toolCallArguments', text: '5}' }, { type: 'toolCallEnd' }],
      ],
    ],
    [
      'seed_oss',
      [
        '<seed:tool_call><function=write>',
        '<parameter=text>ab',
        '\n',
        'c</para',
        'meter></function>',
        '</seed:tool_call>',
      ],
      [
        [{ type: 'toolCallStart', name: 'write' }],
        [{ type: 'toolCallArguments', text: '{"text": "ab' }],
        [{ type: 'toolCallArguments', text: '\\n' }],
        [{ type: 'toolCallArguments', text: 'c' }],
        [{ type: 'toolCallArguments', text: '"}' }, { type: 'toolCallEnd' }],
        [],
      ],
    ],
    [
      'glm45',
      ['<tool_call>write\n<arg', '_key>text</arg_key>\n<arg_value>a', 'b', '</arg_value>\n</tool_call>'],
      [
        [{ type: 'toolCallStart', name: 'write' }],
        [{ type: 'toolCallArguments', text: '{"text": "a' }],
        [{ type: 'toolCallArguments', text: 'b' }],
        [{ type: 'toolCallArguments', text: '"}' }, { type: 'toolCallEnd' }],
      ],
    ],
    [
      'hy3',
      [
        '<tool_calls:opensource>\n<tool_call:opensource>write<tool_sep:opensource>',
        '<arg_key:opensource>text</arg_key:opensource><arg_value:opensource>a',
      ],
      [[{ type: 'toolCallStart', name: 'write' }], [{ type: 'toolCallArguments', text: '{"text": "a' }]],
    ],
    [
      'granite',
      ['<|tool_call|>[{"name": "get"', ', "arguments": {"n', '": 1', '}}', ']'],
      [
        [{ type: 'toolCallStart', name: 'get' }],
        [{ type: 'toolCallArguments', text: '{"n' }],
        [{ type: 'toolCallArguments', text: '": 1' }],
        [{ type: 'toolCallArguments', text: '}' }, { type: 'toolCallEnd' }],
        [],
      ],
    ],
    [
      'phi4_mini_json',
      ['<|tool_call|>[{"name": "get"', ', "arguments": {', '}}]', '<|/tool_call|>'],
      [
        [{ type: 'toolCallStart', name: 'get' }],
        [{ type: 'toolCallArguments', text: '{' }],
        [{ type: 'toolCallArguments', text: '}' }, { type: 'toolCallEnd' }],
        [],
      ],
    ],
    [
      'hunyuan_a13b',
      ['<tool_calls>[{"name": "get"', ', "arguments": {', '}}]', '</tool_calls>'],
      [
        [{ type: 'toolCallStart', name: 'get' }],
        [{ type: 'toolCallArguments', text: '{' }],
        [{ type: 'toolCallArguments', text: '}' }, { type: 'toolCallEnd' }],
        [],
      ],
    ],
    [
      'cohere_command',
      [
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get"',
        ', "parameters": {',
        '}}\n]',
        '<|END_ACTION|>',
      ],
      [
        [{ type: 'toolCallStart', name: 'get' }],
        [{ type: 'toolCallArguments', text: '{' }],
        [{ type: 'toolCallArguments', text: '}' }, { type: 'toolCallEnd' }],
        [],
      ],
    ],
    [
      'apertus',
      ['<|tools_prefix|>[{"get', '": {', '}}]', '<|tools_suffix|>'],
      [
        [],
        [
          { type: 'toolCallStart', name: 'get' },
          { type: 'toolCallArguments', text: '{' },
        ],
        [{ type: 'toolCallArguments', text: '}' }, { type: 'toolCallEnd' }],
        [],
      ],
    ],
    [
      'lfm2',
      ['<|tool_call_start|>[get(', 'city="a', 'b")', ']<|tool_call_end|>'],
      [
        [
          { type: 'toolCallStart', name: 'get' },
          { type: 'toolCallArguments', text: '{' },
        ],
        [{ type: 'toolCallArguments', text: '"city": "a' }],
        [{ type: 'toolCallArguments', text: 'b"}' }, { type: 'toolCallEnd' }],
        [],
      ],
    ],
    [
      'olmo3',
      ['<function_calls>\nget(', 'city="a', 'b")', '\n</function_calls>'],
      [
        [
          { type: 'toolCallStart', name: 'get' },
          { type: 'toolCallArguments', text: '{' },
        ],
        [{ type: 'toolCallArguments', text: '"city": "a' }],
        [{ type: 'toolCallArguments', text: 'b"}' }, { type: 'toolCallEnd' }],
        [],
      ],
    ],
  ])('%s', (format, pieces, parts) => {
    const machine = new ToolCallParser(formatOf(format), { tools: TOOLS });
    expect(pieces.map((piece) => machine.push(piece))).toEqual(parts);
    expect(machine.end()).toEqual([]);
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
    for (let round = 0; round < numCases(1500, 300); round++) {
      const text =
        round % 2 === 0
          ? cut(texts[random(texts.length)], random)
          : Array.from({ length: 1 + random(9) }, () => pieces[random(pieces.length)]).join('');
      for (const isConstrained of [false, true]) {
        const options = { tools: TOOLS, isConstrained };
        const whole = run(format, [text], options);
        expect([text, run(format, split(text, random), options)]).toEqual([text, whole]);
        // An empty list after a marker is dropped.
        if (whole.calls.length === 0 && !/>\s*\[\s*\]/.test(text)) expect(whole.text).toBe(text);
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
    ['openai', 'harmony'],
    ['glm47', 'glm45'],
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
    ['<tool_call>name\n<arg_key>k</arg_key>\n<arg_value>v</arg_value>', 'glm45'],
    ['<seed:tool_call><function=f><parameter=a>', 'seed_oss'],
    ['<|start|>assistant<|channel|>analysis<|message|>', 'harmony'],
    ["'<|tool_call>call:' + name + '{'", 'gemma4'],
    ["'<tool_sep{}>'.format(':opensource')", 'hy3'],
    ['respond only with <|tool_call|> followed by a JSON list', 'granite'],
    ["'<|tool|>' + message['tools'] + '<|/tool|>'", 'phi4_mini_json'],
    ['functools[{"name": …}]', 'phi4_mini_json'],
    ['<tool_calls>[{"name": …}]</tool_calls>', 'hunyuan_a13b'],
    ['<|START_ACTION|>[{"tool_name": …}]<|END_ACTION|>', 'cohere_command'],
    ["set tool_calls_token = '<|tools_prefix|>'", 'apertus'],
    ['<|tool_call_start|>[', 'lfm2'],
    ['<function_calls>f(a=1)</function_calls>', 'olmo3'],
    ['"List of tools: ["', 'lfm2'],
    ['{{ xml_tools }} in <tool_call></tool_call> tags: <tool_call>\n{"name": …}', 'hermes'],
    ['<start_of_turn>model', undefined],
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
