/** Token ids of one input of a model that pools, with special tokens. */
export interface EncodedInput {
  ids: Int32Array;
  /** 0 for the tokens of the first text, as the tokenizer's post-processor says. */
  typeIds: Int32Array;
}

/** A text, or two that are read together. */
export type TextInput = string | readonly [string, string];

/**
 * Returns how many tokens of each text stay, so that both have at most `maxTokens`: the longer one is cut first, as
 * `longest_first` of tokenizers does.
 */
function sharedLengths(first: number, second: number, maxTokens: number): [number, number] {
  if (first + second <= maxTokens) return [first, second];
  const [short, long] = first <= second ? [first, second] : [second, first];
  const half = Math.floor(maxTokens / 2);
  const [keptShort, keptLong] = short <= half ? [short, Math.min(long, maxTokens - short)] : [half, maxTokens - half];
  return first <= second ? [keptShort, keptLong] : [keptLong, keptShort];
}

/**
 * Cuts the ends of the texts, and keeps the special tokens around them.
 * @param sequences By token: 0 or 1 for the tokens of a text, undefined for special tokens.
 */
export function truncateInput(
  { ids, typeIds }: EncodedInput,
  sequences: readonly (number | undefined)[],
  maxTokens: number,
): EncodedInput {
  if (ids.length <= maxTokens) return { ids, typeIds };
  const counts = [0, 1].map((text) => sequences.filter((sequence) => sequence === text).length);
  const numSpecial = ids.length - counts[0] - counts[1];
  const left = sharedLengths(counts[0], counts[1], Math.max(maxTokens - numSpecial, 0));
  const isKept = sequences.map((sequence) => sequence === undefined || left[sequence]-- > 0);
  return { ids: ids.filter((_, i) => isKept[i]), typeIds: typeIds.filter((_, i) => isKept[i]) };
}
