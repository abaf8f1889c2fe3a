import { JsonScanner } from '../../../ts/text/json-scanner';
import { type OutputPart, TOOL_CALL_FORMATS, ToolCallParser } from '../../../ts/text/tool-calls';

const hermes = TOOL_CALL_FORMATS.find(({ name }) => name === 'hermes')!;

interface Answer {
  text: string;
  calls: { name: string; arguments: string }[];
}

function collect(parts: readonly OutputPart[]): Answer {
  const answer: Answer = { text: '', calls: [] };
  for (const part of parts) {
    if (part.type === 'text') answer.text += part.text;
    else if (part.type === 'toolCallStart') answer.calls.push({ name: part.name, arguments: '' });
    else if (part.type === 'toolCallArguments') answer.calls[answer.calls.length - 1].arguments += part.text;
  }
  return answer;
}

function run(pieces: readonly string[]): Answer {
  const machine = new ToolCallParser(hermes);
  return collect([...pieces.flatMap((piece) => machine.push(piece)), ...machine.end()]);
}

const call = (body: string) => `<tool_call>\n${body}\n</tool_call>`;
const GOOD = '{"name": "get", "arguments": {"city": "Zürich", "n": [1, -2.5e3, {"x": null}]}}';

describe('calls', () => {
  test.each<[name: string, text: string, content: string, calls: [string, string][]]>([
    ['one call', call(GOOD), '', [['get', '{"city": "Zürich", "n": [1, -2.5e3, {"x": null}]}']]],
    [
      'text before it',
      `I look.\n${call(GOOD)}`,
      'I look.',
      [['get', '{"city": "Zürich", "n": [1, -2.5e3, {"x": null}]}']],
    ],
    [
      'two calls, blanks between and after',
      `${call('{"name":"a","arguments":{}}')}\n${call('{"name":"b","arguments":{ }}')}\n`,
      '',
      [
        ['a', '{}'],
        ['b', '{ }'],
      ],
    ],
    ['text after a call', `${call('{"name":"a"}')}\nDone.`, 'Done.', [['a', '{}']]],
    ['text on both sides keeps its blanks after', `A. ${call('{"name":"a"}')}\nB.`, 'A.\nB.', [['a', '{}']]],
    ['arguments before the name', call('{"arguments": {"a": 1}, "name": "a"}'), '', [['a', '{"a": 1}']]],
    ['no arguments', call('{"name": "a"}'), '', [['a', '{}']]],
    ['null as arguments', call('{"name": "a", "arguments": null}'), '', [['a', '{}']]],
    [
      'arguments written as a string of JSON',
      call('{"name": "a", "arguments": "{\\"b\\": 1}"}'),
      '',
      [['a', '{"b": 1}']],
    ],
    [
      'markers and braces inside strings',
      call('{"name": "a", "arguments": {"s": "</tool_call> } ] \\" \\\\ <tool_call>"}}'),
      '',
      [['a', '{"s": "</tool_call> } ] \\" \\\\ <tool_call>"}']],
    ],
    [
      'the first of two equal keys',
      call('{"name": "a", "arguments": {"x": 1}, "arguments": {"x": 2}}'),
      '',
      [['a', '{"x": 1}']],
    ],
    [
      'a call whose closing marker never came',
      `<tool_call>\n${GOOD}`,
      '',
      [['get', '{"city": "Zürich", "n": [1, -2.5e3, {"x": null}]}']],
    ],
    [
      'a call cut within its closing marker',
      `<tool_call>${GOOD}\n</tool_`,
      '',
      [['get', '{"city": "Zürich", "n": [1, -2.5e3, {"x": null}]}']],
    ],
    [
      'numbers and escapes as written',
      call('{"name": "a", "arguments": {"n": 1.0, "s": "\\u00e9"}}'),
      '',
      [['a', '{"n": 1.0, "s": "\\u00e9"}']],
    ],
  ])('%s', (_name, text, content, calls) => {
    expect(run([text])).toEqual({ text: content, calls: calls.map(([name, args]) => ({ name, arguments: args })) });
  });

  test.each([
    ['plain text', ' Hello,\n world. \n'],
    ['parts of a marker', 'a < b, <tool, <tool_call, <<tool_calls>'],
    ['an object that is cut before the name', '<tool_call>\n{"name": "ge'],
    ['no JSON', '<tool_call>get_weather(city)</tool_call>'],
    ['single quotes', "<tool_call>{'name': 'a'}</tool_call>"],
    ['a bare word', '<tool_call>{"name": a}</tool_call>'],
    ['a line break in a string', '<tool_call>{"name": "a\nb"}</tool_call>'],
    ['a name that is no string', '<tool_call>{"name": 5, "arguments": {}}</tool_call>'],
    ['no name', '<tool_call>{"arguments": {}}</tool_call>'],
    ['a list of calls', '<tool_call>[{"name": "a"}]</tool_call>'],
    ['a closing marker alone', 'x</tool_call>y'],
  ])('what is no call comes back as text: %s', (_name, text) => {
    expect(run([text])).toEqual({ text, calls: [] });
  });

  test('reads a valid call after an invalid one', () => {
    expect(run([`<tool_call>{"name": bad}\n${call('{"name": "a"}')}`])).toEqual({
      text: '<tool_call>{"name": bad}',
      calls: [{ name: 'a', arguments: '{}' }],
    });
    expect(run([`<tool_call>${call('{"name": "a"}')}`])).toEqual({
      text: '<tool_call>',
      calls: [{ name: 'a', arguments: '{}' }],
    });
  });
});

test('holds text back only while it can become a marker', () => {
  const machine = new ToolCallParser(hermes);
  expect(machine.push('a <to')).toEqual([{ type: 'text', text: 'a' }]);
  expect(machine.push('a')).toEqual([{ type: 'text', text: ' <toa' }]);
});

test('chunking does not change the result', () => {
  const pieces = [
    'Hi',
    ' ',
    '\n',
    '<',
    '<tool_call>',
    '</tool_call>',
    '{"name": "a"',
    ', "arguments": ',
    '{"x": "',
    '</tool_call>',
    '\\"',
    '"}',
    '}',
    '{',
    '[1,',
    '2]',
    'é😀',
    call(GOOD),
    call('{"name":"b"}'),
    '"',
    ':',
    ',',
    'true',
  ];
  const random = makeRandom(7);
  for (let round = 0; round < 3000; round++) {
    const text = Array.from({ length: 1 + random(9) }, () => pieces[random(pieces.length)]).join('');
    const whole = run([text]);
    expect([text, run(split(text, random))]).toEqual([text, whole]);
    if (whole.calls.length === 0) expect(whole.text).toBe(text);
  }
});

test('takes linear time: each character is scanned once', () => {
  const pushes = jest.spyOn(JsonScanner.prototype, 'push');
  const text = `<tool_call>{"name": "a", "arguments": {"s": "${'</tool_call> {'.repeat(2000)}"}}</tool_call>`;
  expect(run([...text]).calls).toHaveLength(1);
  expect(pushes.mock.calls.length).toBeLessThan(text.length);
  pushes.mockRestore();
});

function split(text: string, random: (below: number) => number): string[] {
  const pieces: string[] = [];
  for (let at = 0; at < text.length;) {
    const length = 1 + random(6);
    pieces.push(text.slice(at, at + length));
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
