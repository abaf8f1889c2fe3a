import { showValue } from '../../errors';
import type { JsonReader } from '../json-file';
import { invalidFile } from '../weight-file';
import { TOKEN_TYPE } from './tokens';

/** The tokens of a GGUF file. */
export interface GgufVocabulary {
  /** Name of the file, for errors. */
  file: string;
  metadata: JsonReader;
  /** Spellings by id. */
  tokens: readonly string[];
  /** Values of `TOKEN_TYPE` by id. */
  types: ArrayLike<number>;
}

const MAX_TOKENS = 1 << 24;
const BYTE_TOKEN = /^<0x[0-9A-Fa-f]{2}>$/;
/** Ids of these keys are control tokens even in files that call all tokens normal. */
const CONTROL_KEYS = ['bos', 'eos', 'eot', 'eom', 'pad', 'padding', 'seperator', 'cls', 'mask'];

/** Variables of templates and the keys of their ids. */
const SPECIAL_TOKENS: Readonly<Record<string, string>> = {
  bos_token: 'bos',
  eos_token: 'eos',
  unk_token: 'unknown',
  pad_token: 'padding',
  sep_token: 'seperator',
};

export function readVocabulary(metadata: JsonReader, file: string): GgufVocabulary {
  const tokens = metadata.raw('tokenizer.ggml.tokens');
  if (!isStrings(tokens) || tokens.length === 0 || tokens.length > MAX_TOKENS)
    throw metadata.mismatch('tokenizer.ggml.tokens', `an array of 1 to ${MAX_TOKENS} strings`, tokens);
  const types = Int32Array.from(readTypes(metadata, tokens));
  for (const name of CONTROL_KEYS) {
    const id = specialId(metadata, name);
    if (id !== undefined && types[id] === TOKEN_TYPE.normal) types[id] = TOKEN_TYPE.control;
  }
  return { file, metadata, tokens, types };
}

/** Returns the id of a key such as `tokenizer.ggml.bos_token_id`; undefined if the file has none. */
export function specialId(metadata: JsonReader, name: string): number | undefined {
  const [id] = metadata.tokenIds(`tokenizer.ggml.${name}_token_id`);
  return id;
}

function readTypes(metadata: JsonReader, tokens: readonly string[]): ArrayLike<number> {
  const types = metadata.raw('tokenizer.ggml.token_type');
  if (types === undefined) return tokens.map((token) => (BYTE_TOKEN.test(token) ? TOKEN_TYPE.byte : TOKEN_TYPE.normal));
  return numbersOf(metadata, 'tokenizer.ggml.token_type', tokens.length)!;
}

/** Returns the numbers of a key, one for each token; undefined if the file does not have the key. */
export function numbersOf(metadata: JsonReader, key: string, length: number): Float32Array | undefined {
  const values = metadata.raw(key);
  if (values === undefined) return undefined;
  const isValid = values instanceof Float32Array || values instanceof Int32Array || values instanceof Uint32Array;
  if (!isValid || values.length < length) throw metadata.mismatch(key, `an array of ${length} numbers`, values);
  return Float32Array.from(values);
}

/** Returns the special tokens by the name of their variable in templates, such as `bos_token`. */
export function readSpecialTokens(metadata: JsonReader): Record<string, string> {
  const tokens = metadata.raw('tokenizer.ggml.tokens') as readonly string[];
  const found = Object.entries(SPECIAL_TOKENS).map(([variable, name]) => [
    variable,
    tokens[specialId(metadata, name) ?? -1],
  ]);
  return Object.fromEntries(found.filter(([, token]) => token !== undefined)) as Record<string, string>;
}

export function isStrings(value: unknown): value is string[] {
  return Array.isArray(value) && (value.length === 0 || typeof value[0] === 'string');
}

/**
 * Returns ids by spelling. Leaves out unused tokens, which no text may become, and empty ones.
 * @param spell Changes the spelling of a token.
 * @throws CapstanError `invalid_model` if two tokens have the same spelling.
 */
export function idsBySpelling(
  { file, tokens, types }: GgufVocabulary,
  spell = (token: string, _id: number): string => token,
): Record<string, number> {
  const ids = Object.create(null) as Record<string, number>;
  tokens.forEach((token, id) => {
    if (types[id] === TOKEN_TYPE.unused || token === '') return;
    const spelling = spell(token, id);
    if (spelling in ids)
      throw invalidFile(`${file}: token ${id}`, 'each token once', `${showValue(token)}, as token ${ids[spelling]}`);
    ids[spelling] = id;
  });
  return ids;
}

export function isControl({ types }: GgufVocabulary, id: number): boolean {
  return types[id] === TOKEN_TYPE.control || types[id] === TOKEN_TYPE.unknown;
}
