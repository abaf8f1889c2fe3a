import { invalidFile } from '../weight-file';
import { TOKEN_TYPE } from './tokens';
import type { GgufVocabulary } from './vocabulary';

/** Finding the merges of a token takes time with the square of its length. */
const MAX_TOKEN_CHARACTERS = 256;
/**
 * Twice as many as the largest vocabularies in use have: 32,000 tokens have about 60,000 merges, 262,144 tokens about
 * 500,000. This many take 160 MiB. A header full of tokens that are parts of each other would have 65 million.
 */
const MAX_MERGES = 1 << 20;

interface Merge {
  left: string;
  right: string;
  score: number;
  leftLength: number;
  rightLength: number;
}

/**
 * Returns the merges that build the tokens of a SentencePiece BPE model from their parts. SentencePiece joins the two
 * neighbors whose token has the highest score, so the score is the order of the merges. Ties are ordered as in
 * `generate_merges` of transformers (convert_slow_tokenizer.py).
 */
export function mergesFromScores(
  { file, tokens, types }: GgufVocabulary,
  ids: Readonly<Record<string, number>>,
  scores: Float32Array,
): [string, string][] {
  const isNormal = (spelling: string) => types[ids[spelling]] === TOKEN_TYPE.normal;
  const merges: Merge[] = [];
  tokens.forEach((token, id) => {
    if (types[id] !== TOKEN_TYPE.normal || token === '') return;
    if (token.length > MAX_TOKEN_CHARACTERS)
      throw invalidFile(`${file}: token ${id}`, `at most ${MAX_TOKEN_CHARACTERS} characters`, `${token.length}`);
    const splits = splitsOf(token, scores[id], isNormal);
    if (merges.length + splits.length > MAX_MERGES)
      throw invalidFile(`${file}: tokenizer.ggml.tokens`, `tokens with at most ${MAX_MERGES} merges`, 'more');
    merges.push(...splits.sort((a, b) => ids[a.left] - ids[b.left] || ids[a.right] - ids[b.right]));
  });
  merges.sort((a, b) => b.score - a.score || b.leftLength - a.leftLength || b.rightLength - a.rightLength);
  return merges.map(({ left, right }) => [left, right]);
}

/** Returns the ways to make a token of two others. Lengths count code points. */
function splitsOf(token: string, score: number, isToken: (spelling: string) => boolean): Merge[] {
  const splits: Merge[] = [];
  const characters = Array.from(token);
  let at = 0;
  for (let i = 1; i < characters.length; i++) {
    at += characters[i - 1].length;
    const left = token.slice(0, at);
    if (!isToken(left)) continue;
    const right = token.slice(at);
    if (isToken(right)) splits.push({ left, right, score, leftLength: i, rightLength: characters.length - i });
  }
  return splits;
}
