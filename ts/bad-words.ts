import { checkTokenIds } from './checks';
import { CapstanError } from './errors';
import type { TextWork } from './text/text-service';

/** Maximum length of `badWords`. */
export const MAX_BAD_WORDS = 1000;

/**
 * Returns the token sequences that `badWords` bans, as vLLM does: each word at the start of a text, and after a space
 * if that gives a different first token and the same number of tokens.
 * @throws CapstanError `invalid_argument` that names the invalid word.
 */
export async function tokenizeBadWords(
  text: Pick<TextWork, 'encodeTexts'>,
  words: unknown,
  vocabSize: number,
): Promise<Int32Array[]> {
  if (!Array.isArray(words) || words.length > MAX_BAD_WORDS)
    throw CapstanError.argument('badWords', `an array of up to ${MAX_BAD_WORDS} strings`, words);
  const texts = words.map((word: unknown, i) => checkBadWord(word, nameOf(i)));
  const encoded = await text.encodeTexts(texts.flatMap((word) => [word, ` ${word}`]));
  return texts.flatMap((_, i) => {
    const [plain, spaced] = encoded.slice(2 * i, 2 * i + 2);
    if (plain.length === 0) throw CapstanError.argument(nameOf(i), 'a string of at least one token', words[i]);
    const isDistinct = spaced.length === plain.length && spaced[0] !== plain[0];
    return [plain, ...(isDistinct ? [spaced] : [])].map((ids) => checkTokenIds(nameOf(i), ids, vocabSize));
  });
}

function nameOf(index: number): string {
  return `badWords[${index}]`;
}

function checkBadWord(word: unknown, param: string): string {
  if (typeof word !== 'string' || word.trim() === '')
    throw CapstanError.argument(param, 'a string that is not empty or blank', word);
  return word.trimStart();
}
