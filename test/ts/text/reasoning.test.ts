import {
  ReasoningMachine,
  type ThinkingState,
  thinkingStateAfter,
  thinkingStateWithin,
  ThoughtCounter,
  thoughtGrammar,
} from '../../../ts/text/reasoning';

function run(state: ThinkingState, pieces: readonly string[]): { reasoning: string; text: string } {
  const machine = new ReasoningMachine(state);
  const parts = [...pieces.flatMap((piece) => machine.push(piece)), ...machine.end()];
  const join = (type: string) => parts.map((part) => (part.type === type ? part.text : '')).join('');
  return { reasoning: join('reasoning'), text: join('text') };
}

test.each<[string, ThinkingState, string, string, string]>([
  ['a thought and an answer', 'before', '<think>\nHm,\nwell.\n</think>\n\nYes.', 'Hm,\nwell.', 'Yes.'],
  ['blanks before the thought', 'before', '\n <think>a</think>b', 'a', 'b'],
  ['no thought', 'before', ' Yes <think>no</think>', '', ' Yes <think>no</think>'],
  ['a thought that the prompt opened', 'inside', '\nHm.\n</think>\n\nYes.', 'Hm.', 'Yes.'],
  ['a thought that never closes', 'inside', 'Hm.\n</thin', 'Hm.\n</thin', ''],
  ['an empty thought', 'before', '<think>\n\n</think>\n\nYes.', '', 'Yes.'],
  ['a thought that the prompt closed', 'after', '<think>a</think>', '', '<think>a</think>'],
  ['half a marker', 'inside', 'a </ think> <</think>b', 'a </ think> <', 'b'],
  ['line breaks of the answer', 'before', '<think>a</think>\n\n\n\nb', 'a', '\n\nb'],
  ['the beginning of a marker only', 'before', '<thi', '', '<thi'],
])('%s, in one piece and character by character', (_name, state, text, reasoning, content) => {
  expect(run(state, [text])).toEqual({ reasoning, text: content });
  expect(run(state, [...text])).toEqual({ reasoning, text: content });
});

test('the state comes from the end of the prompt', () => {
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
])('verbatim, all parts together are the completion: %s %j', (state, text, thought, rest) => {
  for (const pieces of [[text], [...text]]) {
    const machine = new ReasoningMachine(state, true);
    const parts = [...pieces.flatMap((piece) => machine.push(piece)), ...machine.end()];
    const join = (type: string) => parts.map((part) => (part.type === type ? part.text : '')).join('');
    expect([join('reasoning'), join('text')]).toEqual([thought, rest]);
  }
});

test.each<[string, ThinkingState, string[], number]>([
  ['markers that are tokens', 'before', ['<think>', 'a', 'b', '</think>', 'c'], 2],
  ['markers cut anywhere', 'before', ['\n<', 'thi', 'nk>', 'a', 'b', '</', 'think', '>', 'c'], 2],
  ['text in the tokens of the markers', 'before', ['<think>\n', 'a', 'b.</', 'think>\n', 'c'], 2],
  ['what only looks like the end', 'inside', ['a', '</', 'thin', ' <', '/think', '>', 'c'], 4],
  ['a thought that never closes', 'inside', ['a', 'b', '</thin'], 3],
  ['no thought', 'before', ['a', '<think>', 'b'], 0],
  ['a thought that the prompt closed', 'after', ['<think>', 'b'], 0],
  ['an empty thought', 'before', ['<think>', '</think>', 'b'], 0],
  ['a special token', 'inside', ['a', '', '</think>'], 2],
])('counts the tokens of %s', (_name, state, tokens, expected) => {
  const counter = new ThoughtCounter(state);
  for (const token of tokens) counter.add(Buffer.from(token));
  expect(counter.numTokens).toBe(expected);
});

test('a grammar begins after the thought', () => {
  expect(thoughtGrammar('after')).toBeUndefined();
  expect(thoughtGrammar('inside')).toMatchObject({
    kind: 'sequence',
    items: [
      { kind: 'until', text: '</think>' },
      { kind: 'repeat', min: 0, max: 2 },
    ],
  });
  expect(thoughtGrammar('before')).toMatchObject({ kind: 'repeat', min: 0, max: 1, item: { kind: 'sequence' } });
});
