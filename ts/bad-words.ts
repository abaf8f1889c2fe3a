import { checkTokenIds } from './checks';
import { CapstanError } from './errors';
import type { Tokenizer } from './text/tokenizer';

/** Maximum length of `badWords`. */
export const MAX_BAD_WORDS = 1000;

/**
 * Returns the token sequences that `badWords` bans, as vLLM does: each word at the start of a text, and after a space
 * if that gives a different first token and the same number of tokens.
 * @throws CapstanError `invalid_argument` that names the invalid word.
 */
export async function tokenizeBadWords(tokenizer: Tokenizer, words: unknown, vocabSize: number): Promise<Int32Array[]> {
  if (!Array.isArray(words) || words.length > MAX_BAD_WORDS)
    throw CapstanError.argument('badWords', `an array of up to ${MAX_BAD_WORDS} strings`, words);
  const sequences = await Promise.all(
    words.map((word: unknown, i) => tokenizeBadWord(tokenizer, word, `badWords[${i}]`, vocabSize)),
  );
  return sequences.flat();
}

async function tokenizeBadWord(
  tokenizer: Tokenizer,
  word: unknown,
  param: string,
  vocabSize: number,
): Promise<Int32Array[]> {
  if (typeof word !== 'string' || word.trim() === '')
    throw CapstanError.argument(param, 'a string that is not empty or blank', word);
  const text = word.trimStart();
  const [plain, spaced] = await Promise.all([tokenizer.encode(text, false), tokenizer.encode(` ${text}`, false)]);
  if (plain.length === 0) throw CapstanError.argument(param, 'a string of at least one token', word);
  const isDistinct = spaced.length === plain.length && spaced[0] !== plain[0];
  return [plain, ...(isDistinct ? [spaced] : [])].map((ids) => checkTokenIds(param, ids, vocabSize));
}
