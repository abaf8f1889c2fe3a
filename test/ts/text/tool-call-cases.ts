/** Texts with tool calls in each format, and helpers to read them. */
import type { Tool } from '../../../ts/text/messages';
import { FAMILY_GOOD } from './tool-call-families';
import { findToolCallFormat, type OutputPart, ToolCallParser, type ToolCallOptions } from '../../../ts/text/tool-calls';

const tool = (name: string, properties: Record<string, unknown> = {}): Tool => ({
  type: 'function',
  function: { name, parameters: { type: 'object', properties } },
});

export const TOOLS = [
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

export interface Answer {
  text: string;
  calls: [name: string, args: string][];
}

export function formatOf(name: string) {
  return findToolCallFormat(name, () => false)!;
}

export function run(format: string, pieces: readonly string[], options: ToolCallOptions = { tools: TOOLS }): Answer {
  const machine = new ToolCallParser(formatOf(format), options);
  return collect([...pieces.flatMap((piece) => machine.push(piece)), ...machine.end()]);
}

export function collect(parts: readonly OutputPart[]): Answer {
  const answer: Answer = { text: '', calls: [] };
  for (const part of parts) {
    if (part.type === 'text') answer.text += part.text;
    else if (part.type === 'toolCallStart') answer.calls.push([part.name, '']);
    else if (part.type === 'toolCallArguments') answer.calls[answer.calls.length - 1][1] += part.text;
  }
  return answer;
}

/** Formats that write values without quotes, so that the schema gives their types. */
export const RAW_FORMATS = ['qwen3_coder', 'seed_oss', 'glm45', 'hy3'];

/** Valid texts, their calls, and the text around the calls. */
export type Good = [what: string, text: string, calls: [string, string][], content?: string];

export const GOOD: Record<string, Good[]> = {
  ...FAMILY_GOOD,
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
    ['a raw line break in a string', '[get(city="a\n\tb")]', [['get', String.raw`{"city": "a\n\tb"}`]]],
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
      'arguments without schema are text',
      '<tool_call><function=ping><parameter=a>5</parameter></function></tool_call>',
      [['ping', '{"a": "5"}']],
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

/** Returns the text, a prefix of it, or a prefix and a suffix, one third of the time each. */
export function cut(text: string, random: (below: number) => number): string {
  const end = random(text.length + 1);
  if (random(3) === 0) return text;
  const prefix = text.slice(0, end);
  return random(2) === 0 ? prefix : prefix + text.slice(random(text.length + 1));
}

export function split(text: string, random: (below: number) => number): string[] {
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
export function makeRandom(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (state * 48271) % 2147483647;
    return state % below;
  };
}
