import { CHARACTER_OF_BYTE } from './byte-alphabet';
import { assembleTokenizer, byteLevelParts, type ConvertedTokenizer } from './gguf/tokenizer';
import { mergesFromScores } from './gguf/sentencepiece';
import { TOKEN_TYPE } from './gguf/tokens';
import { type GgufVocabulary, idsBySpelling, readSpecialTokens } from './gguf/vocabulary';
import { type JsonObject, JsonReader } from './json-file';

export const TEKKEN_FILE = 'tekken.json';

/** The first special tokens of files that do not list them (mistral_common, `Tekkenizer`). */
const FIRST_SPECIAL_TOKENS = [
  ...['<unk>', '<s>', '</s>', '[INST]', '[/INST]', '[AVAILABLE_TOOLS]', '[/AVAILABLE_TOOLS]', '[TOOL_RESULTS]'],
  ...['[/TOOL_RESULTS]', '[TOOL_CALLS]', '[IMG]', '<pad>', '[IMG_BREAK]', '[IMG_END]', '[PREFIX]', '[MIDDLE]'],
  ...['[SUFFIX]', '[SYSTEM_PROMPT]', '[/SYSTEM_PROMPT]', '[TOOL_CONTENT]'],
];
const SPECIAL_NAMES = { unknown: '<unk>', bos: '<s>', eos: '</s>', padding: '<pad>' } as const;
const MAX_TOKENS = 1 << 20;

/**
 * Converts a Tekken tokenizer of Mistral to what tokenizer.json holds. Special tokens come first, then the tokens of
 * the vocabulary by rank. The rank of a token is the order of its merge.
 * @throws CapstanError `invalid_model`.
 */
export function convertTekken(json: JsonObject): ConvertedTokenizer {
  const file = new JsonReader(json, TEKKEN_FILE);
  const config = file.object('config');
  if (config === undefined) throw file.mismatch('config', 'an object', undefined);
  const numSpecial = config.positiveInt('default_num_special_tokens', undefined, MAX_TOKENS);
  const numTokens = config.positiveInt('default_vocab_size', undefined, MAX_TOKENS) - numSpecial;
  const special = listSpecialTokens(file, numSpecial);
  const words = readWords(file, numTokens);
  const tokens = [...special, ...words];
  const types = tokens.map((_, id) => (id < numSpecial ? TOKEN_TYPE.control : TOKEN_TYPE.normal));
  const values: JsonObject = { 'tokenizer.ggml.tokens': tokens };
  for (const [name, token] of Object.entries(SPECIAL_NAMES))
    if (special.includes(token)) values[`tokenizer.ggml.${name}_token_id`] = special.indexOf(token);
  const metadata = new JsonReader(values, TEKKEN_FILE);
  const vocabulary: GgufVocabulary = { file: TEKKEN_FILE, metadata, tokens, types };
  const vocab = idsBySpelling(vocabulary);
  const merges = mergesFromScores(
    vocabulary,
    vocab,
    Float32Array.from(tokens, (_, id) => -id),
  );
  const patterns = [config.string('pattern')];
  const parts = byteLevelParts({ patterns, ignoresMerges: true, addsBos: true }, vocab, merges);
  return { tokenizer: assembleTokenizer(vocabulary, parts), specialTokens: readSpecialTokens(metadata) };
}

function listSpecialTokens(file: JsonReader, count: number): string[] {
  const listed = file.raw('special_tokens');
  const names = Array.from({ length: count }, (_, id) => FIRST_SPECIAL_TOKENS[id] ?? `<SPECIAL_${id}>`);
  if (listed === undefined) return names;
  if (!Array.isArray(listed)) throw file.mismatch('special_tokens', 'a list', listed);
  for (let id = 0; id < count; id++) names[id] = `<SPECIAL_${id}>`;
  for (const entry of listed as unknown[]) {
    const { rank, token_str: name } = (entry ?? {}) as { rank?: unknown; token_str?: unknown };
    if (!Number.isInteger(rank) || (rank as number) < 0 || (rank as number) >= count || typeof name !== 'string')
      throw file.mismatch('special_tokens', `tokens with a rank from 0 to ${count - 1} and a token_str`, rank);
    names[rank as number] = name;
  }
  return names;
}

/** Returns the tokens of the vocabulary, by rank, in the alphabet of byte-level BPE. */
function readWords(file: JsonReader, count: number): string[] {
  const vocab = file.raw('vocab');
  if (!Array.isArray(vocab) || vocab.length < count || count < 256)
    throw file.mismatch('vocab', `a list of at least ${Math.max(count, 256)} tokens`, vocab);
  return Array.from({ length: count }, (_, i) => {
    const { rank, token_bytes: bytes } = (vocab[i] ?? {}) as { rank?: unknown; token_bytes?: unknown };
    if (rank !== i || typeof bytes !== 'string')
      throw file.mismatch('vocab', `token ${i} with its rank and token_bytes`, rank);
    return Array.from(Buffer.from(bytes, 'base64'), (byte) => CHARACTER_OF_BYTE[byte]).join('');
  });
}
