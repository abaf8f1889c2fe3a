import {
  findReasoningFormat,
  REASONING_FORMATS,
  ReasoningTokenCounter,
  type ThinkingState,
} from '../../../ts/text/reasoning';
import { HarmonyHeader } from '../../../ts/text/reasoning/harmony-header';
import { makeRandom, split as cutUp } from './tool-call-cases';

const formatOf = (name: string) => findReasoningFormat(name, () => false)!;
const think = formatOf('think');

interface Split {
  reasoning: string;
  text: string;
}

function split(format: string, state: ThinkingState, pieces: readonly string[], isVerbatim = false): Split {
  const splitter = formatOf(format).split(state, isVerbatim);
  const parts = [...pieces.flatMap((piece) => splitter.push(piece)), ...splitter.end()];
  const join = (type: string) => parts.map((part) => (part.type === type ? part.text : '')).join('');
  return { reasoning: join('reasoning'), text: join('text') };
}

const run = (state: ThinkingState, pieces: readonly string[]) => split('think', state, pieces);

test.each<[string, ThinkingState, string, string, string]>([
  ['reasoning and text', 'before', '<think>\nHm,\nwell.\n</think>\n\nYes.', 'Hm,\nwell.', 'Yes.'],
  ['blanks before the reasoning', 'before', '\n <think>a</think>b', 'a', 'b'],
  ['no reasoning', 'before', ' Yes <think>no</think>', '', ' Yes <think>no</think>'],
  ['reasoning that the prompt opened', 'inside', '\nHm.\n</think>\n\nYes.', 'Hm.', 'Yes.'],
  ['reasoning that never closes', 'inside', 'Hm.\n</thin', 'Hm.\n</thin', ''],
  ['empty reasoning', 'before', '<think>\n\n</think>\n\nYes.', '', 'Yes.'],
  ['reasoning that the prompt closed', 'after', '<think>a</think>', '', '<think>a</think>'],
  ['half a marker', 'inside', 'a </ think> <</think>b', 'a </ think> <', 'b'],
  ['line breaks of the text', 'before', '<think>a</think>\n\n\n\nb', 'a', '\n\nb'],
  ['only the start of a marker', 'before', '<thi', '', '<thi'],
])('splits %s, in one piece and character by character', (_name, state, text, reasoning, content) => {
  expect(run(state, [text])).toEqual({ reasoning, text: content });
  expect(run(state, [...text])).toEqual({ reasoning, text: content });
});

test('detects the state at the end of the prompt', () => {
  expect(think.stateAfter('user: what is <think>?\nassistant:\n')).toBe('before');
  expect(think.stateAfter('assistant:\n<think>\n')).toBe('inside');
  expect(think.stateAfter('assistant:\n<think>\n\n</think>\n\n')).toBe('after');
  expect(think.stateWithin('<think>\nSo far')).toBe('inside');
  expect(think.stateWithin('<think>a</think> So far')).toBe('after');
  expect(think.stateWithin('So far')).toBe('after');
});

test.each<[ThinkingState, string, string, string]>([
  ['before', '\n<think>\nHm.\n</think>\n\nYes.', '\n<think>\nHm.\n</think>', '\n\nYes.'],
  ['inside', '\nHm <</think>\nYes </think>', '\nHm <</think>', '\nYes </think>'],
  ['before', ' <thi Yes', '', ' <thi Yes'],
  ['inside', 'never closed', 'never closed', ''],
])('verbatim parts add up to the completion: %s %j', (state, text, reasoning, rest) => {
  for (const pieces of [[text], [...text]])
    expect(split('think', state, pieces, true)).toEqual({ reasoning, text: rest });
});

test.each<[string, ThinkingState, string[], number]>([
  ['markers that are single tokens', 'before', ['<think>', 'a', 'b', '</think>', 'c'], 2],
  ['markers split over tokens', 'before', ['\n<', 'thi', 'nk>', 'a', 'b', '</', 'think', '>', 'c'], 2],
  ['text in tokens that contain a marker', 'before', ['<think>\n', 'a', 'b.</', 'think>\n', 'c'], 2],
  ['parts of a closing marker', 'inside', ['a', '</', 'thin', ' <', '/think', '>', 'c'], 4],
  ['reasoning that never closes', 'inside', ['a', 'b', '</thin'], 3],
  ['no reasoning', 'before', ['a', '<think>', 'b'], 0],
  ['reasoning that the prompt closed', 'after', ['<think>', 'b'], 0],
  ['empty reasoning', 'before', ['<think>', '</think>', 'b'], 0],
  ['a special token', 'inside', ['a', '', '</think>'], 2],
])('counts the tokens with %s', (_name, state, tokens, expected) => {
  const counter = new ReasoningTokenCounter(think, state);
  for (const token of tokens) counter.add(Buffer.from(token));
  expect(counter.numTokens).toBe(expected);
});

test('builds the grammar of the reasoning before a constrained text', () => {
  expect(think.grammar('after')).toBeUndefined();
  expect(think.grammar('inside')).toMatchObject({
    kind: 'sequence',
    items: [
      { kind: 'until', text: '</think>' },
      { kind: 'repeat', min: 0, max: 2 },
    ],
  });
  expect(think.grammar('before')).toMatchObject({ kind: 'repeat', min: 0, max: 1, item: { kind: 'sequence' } });
});

describe.each<
  [format: string, cases: [what: string, state: ThinkingState, text: string, reasoning: string, rest: string][]]
>([
  [
    'seed_oss',
    [
      ['reasoning and text', 'before', '<seed:think>Hm.</seed:think>\nYes.', 'Hm.', 'Yes.'],
      ['another marker', 'before', '<seed:think>a </think> b</seed:think>c', 'a </think> b', 'c'],
      ['no reasoning', 'before', '<seed:thought>', '', '<seed:thought>'],
    ],
  ],
  [
    'gemma4',
    [
      ['reasoning and text', 'before', '<|channel>thought\nHm.\n<channel|>Yes.', 'Hm.', 'Yes.'],
      ['empty reasoning', 'before', '<|channel>thought\n<channel|>Yes.', '', 'Yes.'],
      [
        'a call after the reasoning',
        'before',
        '<|channel>thought\nHm.<channel|><|tool_call>call:f{}<tool_call|>',
        'Hm.',
        '<|tool_call>call:f{}<tool_call|>',
      ],
      ['an unfinished thought', 'before', '<|channel>thought\nHm', 'Hm', ''],
    ],
  ],
  ['mistral', [['reasoning and text', 'before', '[THINK]Hm [1].[/THINK]Yes.', 'Hm [1].', 'Yes.']]],
  [
    'think_response',
    [
      ['tags of the answer', 'before', '<think>Hm.</think>\n<response>Yes.</response>', 'Hm.', 'Yes.'],
      [
        'line breaks in the tags',
        'before',
        '<think>Hm.</think>\n\n<response>\nYes.\nNo.\n</response>\n',
        'Hm.',
        'Yes.\nNo.',
      ],
      ['an answer without tags', 'before', '<think>Hm.</think>\nYes. </response>', 'Hm.', 'Yes. </response>'],
      ['an answer that never closes', 'before', '<think>Hm.</think><response>Yes.\n</resp', 'Hm.', 'Yes.\n</resp'],
      [
        'a closing tag within the answer',
        'before',
        '<think>a</think><response>b\n</response> c</response>',
        'a',
        'b\n</response> c',
      ],
      ['only part of a tag', 'before', '<think>a</think><resp', 'a', '<resp'],
      ['tags without reasoning', 'before', '<response>Yes.</response>', '', 'Yes.'],
      ['blank lines in the answer', 'before', '<think>a</think><response>b\n\n\nc\n\n</response>', 'a', 'b\n\n\nc\n'],
      ['blanks after the closing tag', 'after', '<response>b</response> \n', '', 'b'],
      ['many blanks after the closing tag', 'after', '<response>b</response>\n\n\n', '', 'b'],
      [
        'many blanks and text after the closing tag',
        'after',
        '<response>b</response>\n\n\nc',
        '',
        'b</response>\n\n\nc',
      ],
      ['two opening tags', 'after', '<response><response>x<</response>', '', '<response>x<'],
    ],
  ],
  [
    'cohere_command',
    [
      ['tags of the answer', 'after', '<|START_RESPONSE|>Yes.<|END_RESPONSE|>', '', 'Yes.'],
      [
        'reasoning and tags',
        'before',
        '<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>',
        'Hm.',
        'Yes.',
      ],
    ],
  ],
  [
    'cohere_command4',
    [['tags of the answer', 'inside', 'Hm.<|END_THINKING|><|START_TEXT|>Yes.<|END_TEXT|>', 'Hm.', 'Yes.']],
  ],
  ['apertus', [['reasoning and text', 'before', '<|inner_prefix|>Hm.<|inner_suffix|>Yes.', 'Hm.', 'Yes.']]],
  ['hunyuan_a13b', [['tags of the answer', 'after', '<answer>\nYes.\n</answer>', '', 'Yes.']]],
  [
    'granite',
    [
      [
        'reasoning and text',
        'before',
        'Here is my thought process:\nHm. Here is my reason.\n\nHere is my response:\nYes.',
        'Hm. Here is my reason.\n',
        'Yes.',
      ],
      ['no reasoning', 'before', 'Here is my thought.', '', 'Here is my thought.'],
    ],
  ],
])('%s', (format, cases) => {
  test.each(cases)('splits %s, in one piece and character by character', (_what, state, text, reasoning, rest) => {
    expect(split(format, state, [text])).toEqual({ reasoning, text: rest });
    expect(split(format, state, [...text])).toEqual({ reasoning, text: rest });
    const verbatim = split(format, state, [...text], true);
    expect(verbatim.reasoning + verbatim.text).toBe(text);
  });
});

describe('harmony', () => {
  const [next, final] = ['<|end|><|start|>assistant', '<|channel|>final<|message|>'];
  const thought = '<|channel|>analysis<|message|>Hm.';
  const call = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>';

  test.each<[what: string, text: string, reasoning: string, rest: string]>([
    ['an answer after the analysis', `${thought}${next}${final}Yes.<|return|>`, 'Hm.', 'Yes.'],
    ['an answer alone', `${final}Yes.`, '', 'Yes.'],
    ['several messages', `${thought}${next}${thought}${next}${final}A${next}${final}B`, 'Hm.\nHm.', 'A\nB'],
    [
      'a message to the user and a call',
      `${thought}${next}<|channel|>commentary<|message|>I look.${next}${call}`,
      'Hm.',
      `I look.<|start|>assistant${call}`,
    ],
    ['a call first', call, '', `<|start|>assistant${call}`],
    [
      'a recipient before the channel',
      ` to=functions.f<|channel|>commentary json<|message|>{}`,
      '',
      '<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}',
    ],
    [
      'a call of the analysis',
      '<|channel|>analysis to=functions.f<|message|>{}',
      '',
      '<|start|>assistant<|channel|>analysis to=functions.f<|message|>{}',
    ],
    ['an unknown channel', '<|channel|>other<|message|>x', '', 'x'],
    [
      'a call with a blank before its message',
      `${thought}${next}<|channel|>commentary to=functions.f <|constrain|>json <|message|>{}`,
      'Hm.',
      '<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json <|message|>{}',
    ],
    [
      'an answer with a blank before its type',
      `${thought}${next}<|channel|>final <|constrain|> json<|message|>{"a": 1}<|return|>`,
      'Hm.',
      '{"a": 1}',
    ],
    [
      'blanks anywhere in a header',
      `${thought}<|end|>\n<|start|>assistant\n<|channel|> final <|message|>Yes.`,
      'Hm.',
      'Yes.',
    ],
    ['the last of two channels', `${thought}${next}<|channel|>commentary${final}Yes.`, 'Hm.', 'Yes.'],
    ['a channel without its marker', `${thought}${next}commentary${final}Yes.`, 'Hm.', 'Yes.'],
    ['a channel without its marker first of all', `commentary${final}Yes.`, '', 'Yes.'],
    ['text after the end of an analysis', `${thought}<|end|>Yes, it is.`, 'Hm.', 'Yes, it is.'],
    ['text like a header after an analysis', `${thought}<|end|>to be`, 'Hm.', 'to be'],
    ['the start of a header after an analysis', `${thought}<|end|>t`, 'Hm.', 't'],
    [
      'another role after an analysis',
      `${thought}<|end|><|start|>user<|message|>c`,
      'Hm.',
      '<|start|>user<|message|>c',
    ],
    ['a message without a channel', '<|start|>assistant<|message|>x', '', 'x'],
    ['plain text', 'Hello, <b>!', '', 'Hello, <b>!'],
    ['plain text that begins like a header', ' to be', '', ' to be'],
    [
      'markers in the answer',
      `${final}a <|end|> b <|end|><|start|>user<|message|>c <|chan <|call`,
      '',
      'a <|end|> b <|end|><|start|>user<|message|>c <|chan <|call',
    ],
    [
      'a header that never ends',
      `${final}a<|end|><|start|>assistant<|channel|>${'x'.repeat(400)}`,
      '',
      `a<|end|><|start|>assistant<|channel|>${'x'.repeat(400)}`,
    ],
    ['two ends', `${final}a<|end|><|end|>`, '', 'a<|end|>'],
    ['no start before the next channel', `${thought}<|end|>${final}Yes.`, 'Hm.', 'Yes.'],
    ['an analysis that never ends', `${thought} So<|en`, 'Hm. So<|en', ''],
    ['only the start of a marker', '<|chan', '', '<|chan'],
    ['only a header', '<|channel|>final', '', ''],
    ['nothing after a message', `${thought}${next}`, 'Hm.', ''],
    ['blanks after the last message', `${final}Yes.<|end|>\n`, '', 'Yes.'],
  ])('splits %s, in one piece and character by character', (_what, text, reasoning, rest) => {
    expect(split('harmony', 'before', [text])).toEqual({ reasoning, text: rest });
    expect(split('harmony', 'before', [...text])).toEqual({ reasoning, text: rest });
  });

  test('a completion that is cut holds no part of a marker', () => {
    const text = `${thought}${next}${final}Yes.`;
    for (let end = 2; end <= text.length; end++) {
      const splitter = formatOf('harmony').split('before', false);
      const parts = [...splitter.push(text.slice(0, end)), ...splitter.end(true)].map((part) => part.text).join('');
      // A single character of a marker may be text.
      expect([text.slice(0, end), 'Hm.Yes.'.startsWith(parts.replace(/<$/, ''))]).toEqual([text.slice(0, end), true]);
    }
  });

  test('starts where the prompt ends', () => {
    const { stateAfter, stateWithin } = formatOf('harmony');
    expect(stateAfter('<|start|>user<|message|>x<|end|><|start|>assistant')).toBe('before');
    expect(stateAfter('<|start|>assistant<|channel|>analysis<|message|>')).toBe('inside');
    expect(stateAfter('<|start|>assistant<|channel|>final<|message|>')).toBe('after');
    expect(stateWithin('One, two')).toBe('after');
    expect(split('harmony', 'inside', [`Hm.${next}${final}Yes.`])).toEqual({ reasoning: 'Hm.', text: 'Yes.' });
    expect(split('harmony', 'after', [', three.<|return|>'])).toEqual({ reasoning: '', text: ', three.' });
  });

  test('counts the tokens of each analysis', () => {
    const counter = new ReasoningTokenCounter(formatOf('harmony'), 'before');
    const header = ['<|channel|>', 'analysis', '<|message|>'];
    const tokens = [
      ...header,
      'a',
      'b',
      '<|end|>',
      '<|start|>',
      'assistant',
      ...header,
      'c',
      '<|end|>',
      '<|start|>',
      'assistant',
    ];
    for (const token of [...tokens, '<|channel|>', 'final', '<|message|>', 'd']) counter.add(Buffer.from(token));
    expect(counter.numTokens).toBe(3);
  });
});

test('how a stream is cut does not change any split, and verbatim parts add up to it', () => {
  const random = makeRandom(11);
  for (const { name, markers, open, close } of REASONING_FORMATS) {
    const pieces = [
      ...markers,
      open,
      close,
      'a',
      '\n',
      ' ',
      '<',
      'assistant',
      'to=functions.f',
      'to=python',
      'final',
      'x'.repeat(301),
    ];
    pieces.push('<response>', '</response>', '<answer>', '</answer>', '<|channel|>final<|message|>', '😀');
    for (let round = 0; round < 400; round++) {
      const text = Array.from({ length: 1 + random(10) }, () => pieces[random(pieces.length)]).join('');
      for (const state of ['before', 'inside', 'after'] as const) {
        const whole = split(name, state, [text]);
        expect([name, text, split(name, state, cutUp(text, random))]).toEqual([name, text, whole]);
        const splitter = formatOf(name).split(state, true);
        const parts = [...splitter.push(text), ...splitter.end()];
        const isHeader = name === 'harmony' && /<\|(?:start|channel)\|>(?:(?!<\|message\|>)[^])*$/.test(text);
        if (!isHeader)
          expect([
            name,
            parts
              .map((part) => part.text)
              .join('')
              .trimEnd(),
          ]).toEqual([name, text.trimEnd()]);
      }
    }
  }
});

test('hostile headers take linear time', () => {
  for (const text of [
    '<|end|><|start|>'.repeat(20_000),
    `<|end|><|channel|>${' '.repeat(280)}x<|start|>`.repeat(1_000),
    `<|channel|>${' '.repeat(280)}x<|message|>`.repeat(1_000),
    ' '.repeat(300_000),
  ]) {
    const feed = jest.spyOn(HarmonyHeader.prototype, 'push');
    split('harmony', 'before', [text]);
    expect(feed.mock.calls.length).toBeLessThanOrEqual(text.length);
    feed.mockRestore();
  }
});

test.each(['think_response', 'hunyuan_a13b'])('blanks around the tags of the answer take linear time: %s', (format) => {
  const blanks = ' '.repeat(10_000);
  const [open, close] = format === 'hunyuan_a13b' ? ['<answer>', '</answer>'] : ['<response>', '</response>'];
  const trims = (['trim', 'trimStart', 'trimEnd'] as const).map((name) => jest.spyOn(String.prototype, name));
  try {
    const answers = [`${open}Yes.${close}${blanks}`, 'Yes.'].map((text) => split(format, 'after', [blanks + text]));
    expect(answers.map(({ text }) => text)).toEqual(['Yes.', `${blanks}Yes.`]);
    const numTrimmed = trims
      .flatMap((trim) => trim.mock.contexts)
      .reduce<number>((sum, text) => sum + `${text}`.length, 0);
    expect(numTrimmed).toBeLessThan(100_000);
  } finally {
    for (const trim of trims) trim.mockRestore();
  }
});
