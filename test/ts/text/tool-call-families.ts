/** Texts with tool calls of Harmony, Gemma, Seed-OSS, GLM, Hunyuan, Granite, Phi and LFM2. */
import type { Good } from './tool-call-cases';

const PING = '<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{}<|call|>';

export const FAMILY_GOOD: Record<string, Good[]> = {
  harmony: [
    [
      'the recipient after the channel',
      '<|channel|>commentary to=functions.get <|constrain|>json<|message|>{"city": "Zürich 😀"}<|call|>',
      [['get', '{"city": "Zürich 😀"}']],
    ],
    [
      'the recipient before the channel',
      '<|start|>assistant to=functions.get<|channel|>commentary json<|message|>{"n": 1}<|call|>',
      [['get', '{"n": 1}']],
    ],
    [
      'the recipient first of all',
      ' to=functions.get<|channel|>commentary <|constrain|>json<|message|>{"n": 1}',
      [['get', '{"n": 1}']],
    ],
    [
      'on another channel',
      '<|channel|>analysis to=functions.get code<|message|>{"n": 1}<|call|>',
      [['get', '{"n": 1}']],
    ],
    ['without a type', '<|channel|>commentary to=functions.get<|message|>{"n": 1}<|end|>', [['get', '{"n": 1}']]],
    [
      'several',
      `${PING}<|start|>assistant<|channel|>commentary to=functions.get <|constrain|>json<|message|>{"n": 1}<|call|>`,
      [
        ['ping', '{}'],
        ['get', '{"n": 1}'],
      ],
    ],
    [
      'markers in the arguments',
      '<|channel|>commentary to=functions.write json<|message|>{"text": "<|call|>"}',
      [['write', '{"text": "<|call|>"}']],
    ],
    [
      'blanks in the header',
      '<|channel|>commentary to=functions.get <|constrain|> json <|message|>{"n": 1}<|call|>',
      [['get', '{"n": 1}']],
    ],
    [
      'two channels',
      '<|start|>assistantcommentary<|channel|>analysis<|channel|>commentary to=functions.get json<|message|>{"n": 1}',
      [['get', '{"n": 1}']],
    ],
    ['text before', `Hm.\n${PING}`, [['ping', '{}']], 'Hm.'],
  ],
  gemma4: [
    [
      'all types',
      '<|tool_call>call:get{any:null,city:<|"|>Zürich 😀<|"|>,list:[1,<|"|>a<|"|>,[]],map:{a:{b:-1.5e3},c:<|"|><|"|>},n:5,on:true}<tool_call|>',
      [
        [
          'get',
          '{"any": null, "city": "Zürich 😀", "list": [1, "a", []], "map": {"a": {"b": -1.5e3}, "c": ""}, "n": 5, "on": true}',
        ],
      ],
    ],
    ['no arguments', '<|tool_call>call:ping{}<tool_call|>', [['ping', '{}']]],
    [
      'code with line breaks, quotes and parts of markers',
      '<|tool_call>call:write{text:<|"|>\n"a" \\ {b}, <|"x <|<tool_call|><|"|>}<tool_call|>',
      [['write', String.raw`{"text": "\n\"a\" \\ {b}, <|\"x <|<tool_call|>"}`]],
    ],
    [
      'constants of Python',
      '<|tool_call>call:get{any:None,on:True}<tool_call|>',
      [['get', '{"any": null, "on": true}']],
    ],
    [
      'quotes of JSON and blanks',
      '<|tool_call>call:get{ "city": "Bern", <|"|>n<|"|>: 1 }\n<tool_call|>',
      [['get', '{"city": "Bern", "n": 1}']],
    ],
    [
      'several, and text around',
      'Hm.<|tool_call>call:ping{}<tool_call|><|tool_call>call:get{n:1}<tool_call|>Done.',
      [
        ['ping', '{}'],
        ['get', '{"n": 1}'],
      ],
      'Hm.Done.',
    ],
    ['cut within the closing marker', '<|tool_call>call:ping{}<tool', [['ping', '{}']]],
  ],
  seed_oss: [
    [
      'text and other types',
      "<seed:tool_call>\n<function=get>\n<parameter=city>Zürich\n</parameter>\n<parameter=list>[1, 'a', True]</parameter>\n</function>\n</seed:tool_call>",
      [['get', '{"city": "Zürich\\n", "list": [1, "a", true]}']],
    ],
    [
      'markers of another family in text',
      '<seed:tool_call><function=write><parameter=text></tool_call></parameter></function></seed:tool_call>',
      [['write', '{"text": "</tool_call>"}']],
    ],
    [
      'several, and text around',
      'Hm.\n<seed:tool_call>\n<function=ping>\n</function>\n</seed:tool_call>\n<seed:tool_call><function=ping></function></seed:tool_call>Done.',
      [
        ['ping', '{}'],
        ['ping', '{}'],
      ],
      'Hm.Done.',
    ],
  ],
  glm45: [
    [
      'on separate lines',
      '<tool_call>get\n<arg_key>city</arg_key>\n<arg_value>Zürich 😀</arg_value>\n<arg_key>n</arg_key>\n<arg_value>5</arg_value>\n</tool_call>',
      [['get', '{"city": "Zürich 😀", "n": 5}']],
    ],
    [
      'on one line',
      '<tool_call>get<arg_key>list</arg_key><arg_value>[1, {"a": null}]</arg_value><arg_key>city</arg_key><arg_value>5</arg_value></tool_call>',
      [['get', '{"list": [1, {"a": null}], "city": "5"}']],
    ],
    [
      'code with line breaks and tags',
      '<tool_call>write\n<arg_key>text</arg_key>\n<arg_value>\na < b </tool_call> </arg_val>\n</arg_value>\n</tool_call>',
      [['write', String.raw`{"text": "\na < b </tool_call> </arg_val>\n"}`]],
    ],
    [
      'no arguments',
      '<tool_call>ping\n</tool_call>\n<tool_call>ping</tool_call>',
      [
        ['ping', '{}'],
        ['ping', '{}'],
      ],
    ],
    ['text around', 'Hm.\n<tool_call>ping</tool_call> Done.', [['ping', '{}']], 'Hm. Done.'],
  ],
  hy3: [
    [
      'several',
      '<tool_calls:opensource>\n<tool_call:opensource>get<tool_sep:opensource>\n<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Bern</arg_value:opensource>\n</tool_call:opensource>\n<tool_call:opensource>ping<tool_sep:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>',
      [
        ['get', '{"city": "Bern"}'],
        ['ping', '{}'],
      ],
    ],
  ],
  granite: [
    [
      'several',
      '<|tool_call|>[{"name": "get", "arguments": {"city": "]"}}, {"name": "ping", "arguments": {}}]',
      [
        ['get', '{"city": "]"}'],
        ['ping', '{}'],
      ],
    ],
    ['the other marker', '<tool_call>[{"arguments": {"n": 1}, "name": "get"}]', [['get', '{"n": 1}']]],
    ['text around', 'Hm. <|tool_call|> [{"name": "ping"}] Done.', [['ping', '{}']], 'Hm. Done.'],
  ],
  phi4_mini_json: [
    [
      'several',
      '<|tool_call|>[{"name": "get", "arguments": {"city": "Bern"}}, {"name": "ping", "arguments": {}}]<|/tool_call|>',
      [
        ['get', '{"city": "Bern"}'],
        ['ping', '{}'],
      ],
    ],
    [
      'one call in each marker',
      '<|tool_call|>{"name": "get", "arguments": {"n": 1}}<|/tool_call|><|tool_call|>{"name": "ping"}<|/tool_call|>',
      [
        ['get', '{"n": 1}'],
        ['ping', '{}'],
      ],
    ],
    ['the word functools', 'functools[{"name": "get", "arguments": {"n": 1}}]', [['get', '{"n": 1}']]],
    ['cut within the closing marker', '<|tool_call|>[{"name": "ping"}]<|/tool', [['ping', '{}']]],
  ],
  hunyuan_a13b: [
    [
      'several',
      '<tool_calls>[{"name": "get", "arguments": {"n": 1}}, {"name": "ping", "arguments": {}}]</tool_calls>',
      [
        ['get', '{"n": 1}'],
        ['ping', '{}'],
      ],
    ],
    ['text around', 'Hm.\n<tool_calls>\n[{"name": "ping"}]\n</tool_calls> Done.', [['ping', '{}']], 'Hm. Done.'],
  ],
  lfm2: [
    [
      'a raw line break in a string',
      "<|tool_call_start|>[write(text='a\nb')]<|tool_call_end|>",
      [['write', String.raw`{"text": "a\nb"}`]],
    ],
    [
      'several, and text after',
      '<|tool_call_start|>[get(city="Zürich", n=1), ping()]<|tool_call_end|>Done.',
      [
        ['get', '{"city": "Zürich", "n": 1}'],
        ['ping', '{}'],
      ],
      'Done.',
    ],
    [
      'quotes of Python',
      "Hm. <|tool_call_start|>[write(text='it\\'s [ping()]')]<|tool_call_end|>",
      [['write', '{"text": "it\'s [ping()]"}']],
      'Hm.',
    ],
    ['JSON', '<|tool_call_start|>[{"name": "get", "arguments": {"n": 1}}]<|tool_call_end|>', [['get', '{"n": 1}']]],
    ['cut within the closing marker', '<|tool_call_start|>[ping()]<|tool_call', [['ping', '{}']]],
  ],
  olmo3: [
    [
      'a raw line break in a string',
      '<function_calls>\nwrite(text="a\nb")\n</function_calls>',
      [['write', String.raw`{"text": "a\nb"}`]],
    ],
    [
      'several',
      "<function_calls>\nget(city='Zürich', on=true, any=null)\nping()\n</function_calls>",
      [
        ['get', '{"city": "Zürich", "on": true, "any": null}'],
        ['ping', '{}'],
      ],
    ],
    ['text around', 'Hm.\n<function_calls>ping()</function_calls> Done.', [['ping', '{}']], 'Hm. Done.'],
    ['cut within the closing marker', '<function_calls>\nping()\n</func', [['ping', '{}']]],
  ],
};

/** Texts that hold no calls. */
export const FAMILY_BAD: Record<string, string[]> = {
  harmony: [
    'Hello',
    ' to be',
    '<|channel|>final<|message|>Hi',
    '<|channel|>commentary to=functions.other json<|message|>{}<|call|>',
    '<|channel|>commentary to=python code<|message|>print(1)<|call|>',
    '<|channel|>commentary to=get<|message|>{}',
    '<|channel|>commentary to=functions.get',
    `<|channel|>${'a '.repeat(50)}to=functions.get<|message|>{}`,
    '<|start|><|start|>assistant',
    '<|cha',
  ],
  gemma4: [
    '<|tool_call>call:other{}<tool_call|>',
    '<|tool_call>get{}<tool_call|>',
    '<|tool_call>call:get',
    '<|tool_call>call:get(n=1)',
    '<tool_call|>',
    '<|"|>',
  ],
  seed_oss: ['<seed:tool_call>{"name": "ping"}</seed:tool_call>', '<seed:tool_call><function=other>'],
  glm45: [
    '<tool_call>{"name": "get"}</tool_call>',
    '<tool_call>other</tool_call>',
    '<tool_call>get it</tool_call>',
    '<tool_call>get',
    '<arg_key>',
  ],
  hy3: ['<tool_call:opensource>ping</tool_call:opensource>', '<tool_calls:opensource>', '<tool_calls:opensource>x'],
  granite: ['<|tool_call|>', '<|tool_call|>[{"name": "other"}]', '<|tool_call|>get{}', '[{"name": "get"}]'],
  phi4_mini_json: ['functools', 'functools[]', 'functional', '<|/tool_call|>', 'See functools[{"name": "ping"}]'],
  hunyuan_a13b: ['<tool_calls>[,]</tool_calls>', '<tool_call>[{"name": "ping"}]', '</tool_calls>'],
  lfm2: ['[ping()]', '<|tool_call_start|>ping()', '<|tool_call_start|>[other()]', '<|tool_call_end|>'],
  olmo3: ['<function_calls></function_calls>', '<function_calls>\nother()', 'ping()', '</function_calls>'],
};
