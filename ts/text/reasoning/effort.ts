/** How much a model reasons. The values are those of OpenAI's and vLLM's clients. */
export type ReasoningEffort = 'none' | 'minimal' | 'low' | 'medium' | 'high' | 'xhigh' | 'max';

/** In ascending order. */
export const REASONING_EFFORTS: readonly ReasoningEffort[] = [
  'none',
  'minimal',
  'low',
  'medium',
  'high',
  'xhigh',
  'max',
];

/** A word of a chat template for an effort. */
type Scale = readonly [effort: ReasoningEffort, word: string][];

/** Templates that know only some efforts, by a text in them. They refuse others, or their models do not know them. */
const SCALES: readonly [mentioned: string, scale: Scale][] = [
  ['<|channel|>analysis', sameWords('low', 'medium', 'high')],
  ["('xhigh', 'medium', 'low')", sameWords('low', 'medium', 'xhigh')],
  ['no_think/low/high', [['none', 'no_think'], ...sameWords('low', 'high')]],
];

function sameWords(...efforts: ReasoningEffort[]): Scale {
  return efforts.map((effort) => [effort, effort]);
}

/**
 * Returns the variables by which chat templates know an effort.
 * @param mentions Whether the chat template contains a text.
 */
export function effortVariables(
  effort: ReasoningEffort,
  mentions: (text: string) => boolean,
): Readonly<Record<string, unknown>> {
  const isOn = effort !== 'none';
  const scale = SCALES.find(([mentioned]) => mentions(mentioned))?.[1];
  return {
    enable_thinking: isOn,
    thinking: isOn,
    reasoning_effort: scale === undefined ? effort : wordFor(effort, scale),
    ...(isOn ? {} : { thinking_budget: 0 }),
  };
}

/** Returns the word of the lowest effort that is at least `effort`, else of the highest. */
function wordFor(effort: ReasoningEffort, scale: Scale): string {
  const rank = REASONING_EFFORTS.indexOf(effort);
  const [, word] = scale.find(([known]) => REASONING_EFFORTS.indexOf(known) >= rank) ?? scale[scale.length - 1];
  return word;
}
