import {
  ReasoningParser,
  type ThinkingState,
  thinkingStateAfter,
  thinkingStateWithin,
  ReasoningTokenCounter,
  reasoningGrammar,
} from '../../../ts/text/reasoning';

function run(state: ThinkingState, pieces: readonly string[]): { reasoning: string; text: string } {
  const parser = new ReasoningParser(state);
  const parts = [...pieces.flatMap((piece) => parser.push(piece)), ...parser.end()];
  const join = (type: string) => parts.map((part) => (part.type === type ? part.text : '')).join('');
  return { reasoning: join('reasoning'), text: join('text') };
}

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
  expect(thinkingStateAfter('user: what is <think>?\nassistant:\n')).toBe('before');
  expect(thinkingStateAfter('assistant:\n<think>\n')).toBe('inside');
  expect(thinkingStateAfter('assistant:\n<think>\n\n</think>\n\n')).toBe('after');
  expect(thinkingStateWithin('<think>\nSo far')).toBe('inside');
  expect(thinkingStateWithin('<think>a</think> So far')).toBe('after');
  expect(thinkingStateWithin('So far')).toBe('after');
});

test.each<[ThinkingState, string, string, string]>([
  ['before', '\n<think>\nHm.\n</think>\n\nYes.', '\n<think>\nHm.\n</think>', '\n\nYes.'],
  ['inside', '\nHm <</think>\nYes </think>', '\nHm <</think>', '\nYes </think>'],
  ['before', ' <thi Yes', '', ' <thi Yes'],
  ['inside', 'never closed', 'never closed', ''],
])('verbatim parts add up to the completion: %s %j', (state, text, reasoning, rest) => {
  for (const pieces of [[text], [...text]]) {
    const parser = new ReasoningParser(state, true);
    const parts = [...pieces.flatMap((piece) => parser.push(piece)), ...parser.end()];
    const join = (type: string) => parts.map((part) => (part.type === type ? part.text : '')).join('');
    expect([join('reasoning'), join('text')]).toEqual([reasoning, rest]);
  }
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
  const counter = new ReasoningTokenCounter(state);
  for (const token of tokens) counter.add(Buffer.from(token));
  expect(counter.numTokens).toBe(expected);
});

test('builds the grammar of the reasoning before a constrained text', () => {
  expect(reasoningGrammar('after')).toBeUndefined();
  expect(reasoningGrammar('inside')).toMatchObject({
    kind: 'sequence',
    items: [
      { kind: 'until', text: '</think>' },
      { kind: 'repeat', min: 0, max: 2 },
    ],
  });
  expect(reasoningGrammar('before')).toMatchObject({ kind: 'repeat', min: 0, max: 1, item: { kind: 'sequence' } });
});
