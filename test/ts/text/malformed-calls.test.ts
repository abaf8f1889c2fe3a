/** Calls that end too early, and calls whose text is malformed after the name. */
import { TOOL_CALL_FORMATS, ToolCallParser } from '../../../ts/text/tool-calls';
import { type Answer, collect, formatOf, GOOD, makeRandom, RAW_FORMATS, run, split, TOOLS } from './tool-call-cases';

describe('the rest of a malformed call is its arguments', () => {
  test.each<[format: string, text: string, calls: [string, string][], content: string]>([
    ['llama3_json', '{"name": "get", "parameters": {}} is it', [['get', '{}']], 'is it'],
    ['llama3_json', '<|python_tag|>{"name": "get", "parameters": {"a": tru}}', [['get', '{"a": tru}}']], ''],
    ['pythonic', '[ping(), other()]', [['ping', '{}']], ', other()]'],
    ['pythonic', '[ping()] is it', [['ping', '{}']], 'is it'],
    ['pythonic', '[ping()', [['ping', '{}']], ''],
    ['pythonic', '[ping(]', [['ping', '{]']], ''],
    ['pythonic', '[get(n=1;)]', [['get', '{"n": 1;)]']], ''],
    ['pythonic', '[get(1)]', [['get', '{1)]']], ''],
    ['pythonic', '[get(city=x)]', [['get', '{"city": x)]']], ''],
    ['pythonic', '[get(city="a)]', [['get', '{"city": "a)]']], ''],
    ['pythonic', '[get(city=f"a")]', [['get', '{"city": f"a")]']], ''],
    ['pythonic', '[get(city=1+1)]', [['get', '{"city": 1+1)]']], ''],
    ['pythonic', '[get(n=01)]', [['get', '{"n": 01)]']], ''],
    ['pythonic', '[get(n=0x)]', [['get', '{"n": 0x)]']], ''],
    ['pythonic', '[get(n=.)]', [['get', '{"n": .)]']], ''],
    ['pythonic', '[get(map={1: 2})]', [['get', '{"map": {1: 2})]']], ''],
    ['pythonic', '[get(map={"a"})]', [['get', '{"map": {"a"})]']], ''],
    ['pythonic', '[get(city="\\xZZ")]', [['get', '{"city": "\\xZZ")]']], ''],
    ['pythonic', '[get(city="\\N{DASH}")]', [['get', '{"city": "\\N{DASH}")]']], ''],
    ['pythonic', '[get(city="\\U00110000")]', [['get', '{"city": "\\U00110000")]']], ''],
    ['pythonic', '[get(city=__import__("os"))]', [['get', '{"city": __import__("os"))]']], ''],
    ['pythonic', '[get(**{})]', [['get', '{**{})]']], ''],
    ['pythonic', '<|python_start|>[ping()] x<|python_end|>', [['ping', '{}']], ''],
    ['pythonic', '[ping(),, ping()]', [['ping', '{}']], ',, ping()]'],
    ['pythonic', '[get(city="a" "b")]', [['get', '{"city": "a" "b")]']], ''],
    ['mistral', '[TOOL_CALLS][{"name": "ping"}, {"na', [['ping', '{}']], ', {"na'],
    ['mistral', '[TOOL_CALLS][{"name": "ping"} {"name": "ping"}]', [['ping', '{}']], ' {"name": "ping"}]'],
    ['mistral', '[TOOL_CALLS]get[ARGS]', [['get', '']], ''],
    ['mistral', '[TOOL_CALLS]get[ARGS]{"a": 1', [['get', '{"a": 1']], ''],
    ['mistral', '[TOOL_CALLS]get[ARGS][1]', [['get', '[1]']], ''],
    [
      'deepseek_v3',
      '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n```json\n{"a": }\n```<｜tool▁call▁end｜>',
      [['ping', '{"a": }\n```']],
      '',
    ],
    [
      'deepseek_v3',
      '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n```python\n{}```',
      [['ping', '\n```python\n{}```']],
      '',
    ],
    [
      'deepseek_v3',
      '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n```json\n{} x```',
      [['ping', '{}']],
      ' x```',
    ],
    ['deepseek_v31', '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get<｜tool▁sep｜>{"n": 1', [['get', '{"n": 1']], ''],
    [
      'qwen3_coder',
      '<tool_call><function=ping><parameter=a>5</function></tool_call>',
      [['ping', '{"a": "5</function></tool_call>']],
      '',
    ],
    ['qwen3_coder', '<tool_call><function=ping>x</function></tool_call>', [['ping', 'x</function>']], ''],
    ['qwen3_coder', '<tool_call><function=ping>', [['ping', '']], ''],
    ['qwen3_coder', '<tool_call><function=ping></function> x</tool_call>', [['ping', '{}']], ''],
    [
      'qwen3_coder',
      '<tool_call><function=ping><parameter>1</parameter></function></tool_call>',
      [['ping', '<parameter>1</parameter></function>']],
      '',
    ],
    ['hermes', '<tool_call>{"name": "get", "arguments": {}</tool_call>', [['get', '{}']], ''],
    ['hermes', '<tool_call>{"name": "get"}}</tool_call>', [['get', '{}']], ''],
    ['hermes', '<tool_call>{"name": "get",}</tool_call>', [['get', ',}']], ''],
    ['hermes', '<tool_call>{"name": "get", "arguments": {"n": 01}}</tool_call>', [['get', '{"n": 01}}']], ''],
    [
      'hermes',
      '<tool_call>{"name": "get", "arguments": {"s": "\\x"}}</tool_call> Done',
      [['get', '{"s": "\\x"}}']],
      'Done',
    ],
    ['hermes', '<tool_call>{"name":"get","parameters":{"city":"a"}}</tool_call>', [['get', '{"city":"a"}']], ''],
    ['mistral', '[TOOL_CALLS][{"name":"get","parameters":{"city":"a"}}]', [['get', '{"city":"a"}']], ''],
    ['hermes', '<tool_call>{"name": "get", "arguments": [1]}</tool_call>', [['get', '[1]']], ''],
    ['hermes', '<tool_call>{"name": "get", "arguments": "b"}</tool_call>', [['get', '"b"']], ''],
    [
      'hermes',
      '<tool_call>{"name": "get", args: {"a": 1}}\n</tool_call><tool_call>{"name": "ping"}',
      [
        ['get', ', args: {"a": 1}}\n'],
        ['ping', '{}'],
      ],
      '',
    ],
    ['hermes', '<tool_call>{"name": "get", "arguments": {}} or so</tool_call>', [['get', '{}']], ''],
    [
      'hermes',
      '<tool_call>{"name": "get", "arguments": {"city": "Paris"}}}\n</tool_call>\n<tool_call>{"name": "ping"}}</tool_call>',
      [
        ['get', '{"city": "Paris"}'],
        ['ping', '{}'],
      ],
      '',
    ],
    [
      'hermes',
      '<tool_call>{"name": "get", "arguments": {}}}\n<tool_call>{"name": "ping"}\n</tool_call> Done',
      [
        ['get', '{}'],
        ['ping', '{}'],
      ],
      'Done',
    ],
    ['hermes', '<tool_call>{"name": "get", "arguments": {}} is it </tool', [['get', '{}']], '} is it </tool'],
    [
      'deepseek_v31',
      '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get<｜tool▁sep｜>{"n": 1}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
      [['get', '{"n": 1}']],
      '',
    ],
    [
      'harmony',
      '<|channel|>commentary to=functions.get json<|message|>{"a": tru}<|call|>',
      [['get', '{"a": tru}']],
      '',
    ],
    ['harmony', '<|channel|>commentary to=functions.get json<|message|><|call|>', [['get', '{}']], ''],
    ['harmony', '<|channel|>commentary to=functions.get code<|message|>f(1)', [['get', 'f(1)']], ''],
    ['harmony', '<|channel|>commentary to=functions.get json<|message|>{} or so<|call|>', [['get', '{}']], ''],
    ['gemma4', '<|tool_call>call:get{n:}<tool_call|>', [['get', '{"n": }']], ''],
    ['gemma4', '<|tool_call>call:get{n:five}<tool_call|>', [['get', '{"n": five}']], ''],
    ['gemma4', '<|tool_call>call:get{city:<|"|>a}<tool_call|>', [['get', '{"city": "a}<tool_call|>']], ''],
    ['gemma4', '<|tool_call>call:get{city}<tool_call|>', [['get', '{city}']], ''],
    ['gemma4', '<|tool_call>call:get{"a b":1}<tool_call|> Done', [['get', '{"a b":1}']], 'Done'],
    ['gemma4', '<|tool_call>call:ping{}}<tool_call|>', [['ping', '{}']], ''],
    ['glm45', '<tool_call>get<arg_key>n</arg_key></tool_call>', [['get', '<arg_key>n</arg_key>']], ''],
    ['glm45', '<tool_call>get<arg_value>1</arg_value></tool_call>', [['get', '<arg_value>1</arg_value>']], ''],
    ['glm45', '<tool_call>get<arg_key>city</arg_key><arg_value>a</tool_call>', [['get', '{"city": "a"}']], ''],
    [
      'glm45',
      '<tool_call>get<arg_key>n</arg_key><arg_value>5\n</tool_call>\n<tool_call>ping</tool_call> Done',
      [
        ['get', '{"n": 5}'],
        ['ping', '{}'],
      ],
      'Done',
    ],
    [
      'glm45',
      '<tool_call>get<arg_key>city</arg_key><arg_value>a\n</tool_call>\nDone <tool_c',
      [['get', '{"city": "a"}']],
      'Done <tool_c',
    ],
    [
      'hy3',
      '<tool_calls:opensource><tool_call:opensource>get<tool_sep:opensource><arg_key:opensource>city</arg_key:opensource><arg_value:opensource>a</tool_call:opensource></tool_calls:opensource>',
      [['get', '{"city": "a"}']],
      '',
    ],
    ['seed_oss', '<seed:tool_call><function=ping>x</seed:tool_call>', [['ping', 'x']], ''],
    ['granite', '<|tool_call|>[{"name": "get", "arguments": {"n": 01}}]', [['get', '{"n": 01}}]']], ''],
    ['granite', '<|tool_call|>[{"name": "ping"}, {"na', [['ping', '{}']], ', {"na'],
    ['phi4_mini_json', '<|tool_call|>[{"name": "ping"}}]<|/tool_call|>', [['ping', '{}']], ''],
    ['lfm2', '<|tool_call_start|>[get(city="a)]<|tool_call_end|>', [['get', '{"city": "a)]<|tool_call_end|>']], ''],
    ['lfm2', '<|tool_call_start|>[get(n=x)]<|tool_call_end|> Done', [['get', '{"n": x)]']], 'Done'],
  ])('%s: %j', (format, text, calls, content) => {
    expect(run(format, [text])).toEqual({ text: content, calls });
    expect(run(format, [...text])).toEqual({ text: content, calls });
  });

  test.each([
    ['hermes', `<tool_call>{"name": "get", "arguments": ${'{"x":'.repeat(10_000)}`],
    ['pythonic', `[get(any=${'['.repeat(10_000)}`],
    ['pythonic', `[get(n=${'1'.repeat(10_000)})]`],
    ['harmony', `<|channel|>commentary to=functions.get<|message|>${'{"x":'.repeat(10_000)}`],
    ['gemma4', `<|tool_call>call:get${'{x:'.repeat(10_000)}`],
    ['gemma4', `<|tool_call>call:get{any:${'<|"'.repeat(10_000)}`],
    ['glm45', `<tool_call>get<arg_key>any</arg_key><arg_value>${'['.repeat(10_000)}</arg_value>`],
    ['seed_oss', `<seed:tool_call><function=get><parameter=any>${'</parameter'.repeat(10_000)}`],
    ['lfm2', `<|tool_call_start|>[get(any=${'('.repeat(10_000)}`],
  ])('also at hostile depth or length: %s', (format, text) => {
    const { text: content, calls } = run(format, [text]);
    expect([content, calls.length]).toEqual(['', 1]);
    expect(calls[0][1].length).toBeGreaterThan(9_900);
  });
});

test.each([
  ['granite', '<|tool_call|>[]', ''],
  ['granite', '<tool_call>[ ]\nDone.', 'Done.'],
  ['phi4_mini_json', 'Hm.<|tool_call|>[]<|/tool_call|>', 'Hm.'],
  ['hunyuan_a13b', '<tool_calls>[]</tool_calls>', ''],
  ['cohere_command', '<|START_ACTION|>[\n]<|END_ACTION|>', ''],
  ['apertus', 'Hm.<|tools_prefix|>[ ]<|tools_suffix|>', 'Hm.'],
  ['lfm2', '<|tool_call_start|>[]<|tool_call_end|>', ''],
  ['lfm2', '<|tool_call_start|>[ ]<|tool_call_end|>Done.', 'Done.'],
  ['lfm2', 'Hm.\n<|tool_call_start|>[]', 'Hm.'],
  ['pythonic', '<|python_start|>[]<|python_end|>', ''],
])('an empty list is no call and leaves no markers: %s %j', (format, text, content) => {
  for (const pieces of [[text], [...text]]) expect(run(format, pieces)).toEqual({ text: content, calls: [] });
});

describe('a completion that is cut', () => {
  const read = (format: string, pieces: readonly string[]): Answer => {
    const machine = new ToolCallParser(formatOf(format), { tools: TOOLS });
    return collect([...pieces.flatMap((piece) => machine.push(piece)), ...machine.end(true)]);
  };

  test.each<[format: string, text: string, calls: [string, string][], content?: string]>([
    ['hermes', '<tool_call>\n{"name": "get", "arguments": {"city": "Bo', [['get', '{"city": "Bo']]],
    ['hermes', '<tool_call>\n{"name": "get", "argu', [['get', '']]],
    ['hermes', 'Hm.\n<tool_call>\n{"name": "ge', [], 'Hm.\n'],
    ['hermes', 'a <tool', [], 'a '],
    ['hermes', '<tool_call>{"name": "get", "arguments": {"a": 01}</tool', [['get', '{"a": 01}']]],
    ['qwen3_coder', '<tool_call><function=write><parameter=text>\nab\n</para', [['write', '{"text": "ab']]],
    ['qwen3_coder', '<tool_call><function=get><parameter=list>[1, 2', [['get', '{"list": [1, 2']]],
    ['qwen3_coder', '<tool_call><function=get><parameter=note>nul', [['get', '{"note": "nul']]],
    [
      'pythonic',
      '[ping(), get(city="a',
      [
        ['ping', '{}'],
        ['get', '{"city": "a'],
      ],
    ],
    ['pythonic', '[ping(), ge', [['ping', '{}']]],
    ['mistral', '[TOOL_CALLS][{"name": "ping"}, {"na', [['ping', '{}']]],
    ['deepseek_v3', '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>pi', []],
    ['harmony', 'Hm. <|channel|>commentary to=functions.ge', [], 'Hm. '],
    ['harmony', '<|channel|>commentary to=functions.get json<|message|>{"n": 1', [['get', '{"n": 1']]],
    ['gemma4', '<|tool_call>call:get{city:<|"|>Bo<|', [['get', '{"city": "Bo']]],
    ['gemma4', 'a <|tool_', [], 'a '],
    ['glm45', '<tool_call>get\n<arg_key>li', [['get', '']]],
    ['glm45', '<tool_call>get<arg_key>city</arg_key><arg_value>a </tool_call> b </arg_v', [['get', '{"city": "a ']]],
    ['phi4_mini_json', '<|tool_call|>[{"name": "get", "arguments": {"n": 1', [['get', '{"n": 1']]],
    ['lfm2', '<|tool_call_start|>[get(city="a', [['get', '{"city": "a']]],
    ['llama3_json', '{"name": "get", "parameters": {"n": 1', [['get', '{"n": 1']]],
    ['llama3_json', '{"answer": 4', [], '{"answer": 4'],
    ['llama3_json', '{"name": "get", "param', []],
    ['llama3_json', 'Hm. <|python_tag|>{"name": "get", "parameters": ', [], 'Hm. '],
    ['llama3_json', '{"parameters": {"n": 1}, "name": "get"', [['get', '{"n": 1}']]],
    ['llama3_json', '{"name": "other", "param', [], '{"name": "other", "param'],
    ['llama3_json', '{"name": "get", "answer": 4', [], '{"name": "get", "answer": 4'],
  ])('%s: %j', (format, text, calls, content = '') => {
    expect(read(format, [text])).toEqual({ text: content, calls });
    expect(read(format, [...text])).toEqual({ text: content, calls });
  });

  test.each(Object.entries(GOOD))('holds a part of the calls, and no marker: %s', (format, cases) => {
    const random = makeRandom(format.length);
    for (const [, text] of cases) {
      const whole = run(format, [text]);
      for (let end = 0; end <= text.length; end++) {
        const part = text.slice(0, end);
        const answer = read(format, split(part, random));
        expect([part, answer.calls.length <= whole.calls.length]).toEqual([part, true]);
        for (const [i, [name, args]] of answer.calls.entries()) {
          expect(name).toBe(whole.calls[i][0]);
          // The last value may have no type yet.
          if (!RAW_FORMATS.includes(format)) expect([part, whole.calls[i][1].startsWith(args)]).toEqual([part, true]);
        }
        for (const marker of formatOf(format).markers.filter((marker) => text.startsWith(marker)))
          if (end >= marker.length) expect([part, answer.text.includes(marker)]).toEqual([part, false]);
        // Marked calls leave no part of a marker, wherever they are cut.
        const isMarked = formatOf(format).markers.some((marker) => text.startsWith(marker));
        if (isMarked && end > 1 && whole.text === '') expect([part, answer.text]).toEqual([part, '']);
      }
    }
  });
});

test.each(TOOL_CALL_FORMATS.map(({ name }) => [name]))('text of an answer is not searched for calls: %s', (format) => {
  const options = { tools: TOOLS, isCallsOrText: true };
  for (const [, text, calls, content = ''] of GOOD[format] ?? []) {
    if (content === '') expect(run(format, [text], options)).toEqual({ text: content, calls });
    expect(run(format, [`"${text}`], options)).toEqual({ text: `"${text}`, calls: [] });
  }
});
