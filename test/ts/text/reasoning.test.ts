import { ReasoningMachine, type ThinkingState, thinkingStateAfter, thinkingStateWithin } from '../../../ts/text/reasoning';

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
