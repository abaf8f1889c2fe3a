import { checkTokenIds } from './checks';
import { CapstanError } from './errors';
import type { Tokenizer } from './text/tokenizer';

export const MAX_BAD_WORDS = 1000;

/**
 * The token sequences of texts that must not come, as vLLM takes them: each word at the beginning of a text, and after a space where that makes
 * another first token and as many of them.
 * @throws CapstanError `invalid_argument` naming the word that is none.
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
    throw CapstanError.argument(param, 'a string of at least one character that is not blank', word);
  const text = word.trimStart();
  const [bare, spaced] = await Promise.all([tokenizer.encode(text, false), tokenizer.encode(` ${text}`, false)]);
  if (bare.length === 0) throw CapstanError.argument(param, 'a string of at least one token', word);
  const isOther = spaced.length === bare.length && spaced[0] !== bare[0];
  return [bare, ...(isOther ? [spaced] : [])].map((ids) => checkTokenIds(param, ids, vocabSize));
}
