import { CapstanError } from '../errors';
import { type ConvertedTokenizer, makeTokenizerJson } from './gguf/tokenizer';
import { TOKEN_TYPE } from './gguf/tokens';
import { readSpecialTokens } from './gguf/vocabulary';
import { type JsonObject, JsonReader } from './json-file';
import { readProto } from './protobuf';
import { invalidFile } from './weight-file';

export const SENTENCEPIECE_FILE = 'tokenizer.model';

/** Field numbers of `sentencepiece_model.proto` in google/sentencepiece. */
const MODEL = { pieces: 1, trainer: 2, normalizer: 3 } as const;
const PIECE = { text: 1, score: 2, type: 3 } as const;
const TRAINER = { modelType: 3, unkId: 40, bosId: 41, eosId: 42, padId: 43 } as const;
const NORMALIZER = { charsmap: 2, addsSpace: 3, removesSpaces: 4 } as const;
/** Values of `model_type`, and those of `tokenizer.ggml.model` for the same tokenizer. */
const MODEL_TYPES: Readonly<Record<number, string>> = { 1: 't5', 2: 'llama' };
const MODEL_TYPE_NAMES = 'unigram or BPE';
/** The key of the first piece. */
const FIRST_BYTE = 0x0a;
const NO_ID = 2 ** 31;

interface Pieces {
  tokens: string[];
  scores: number[];
  types: number[];
}

/**
 * Converts a SentencePiece model to what tokenizer.json holds.
 * @param config Content of tokenizer_config.json, which may add tokens.
 * @param added Content of added_tokens.json: ids by token.
 * @throws CapstanError `invalid_model`, or `unsupported_model` for models of words or characters.
 */
export function convertSentencePiece(bytes: Uint8Array, config: JsonReader, added: JsonReader): ConvertedTokenizer {
  // Files of the same name that are not SentencePiece's, such as those of Llama 3, are text.
  if (bytes[0] !== FIRST_BYTE)
    throw CapstanError.unexpected('unsupported_model', SENTENCEPIECE_FILE, 'a SentencePiece model', 'another format');
  const pieces: Pieces = { tokens: [], scores: [], types: [] };
  let trainer = new Uint8Array();
  let normalizer = new Uint8Array();
  for (const { id, value } of readProto(bytes, SENTENCEPIECE_FILE)) {
    if (!(value instanceof Uint8Array)) continue;
    if (id === MODEL.pieces) addPiece(value, pieces);
    else if (id === MODEL.trainer) trainer = Uint8Array.from(value);
    else if (id === MODEL.normalizer) normalizer = Uint8Array.from(value);
  }
  if (pieces.tokens.length === 0) throw invalidFile(SENTENCEPIECE_FILE, 'a SentencePiece model', 'no pieces');
  addTokens(pieces, config, added);
  const metadata = {
    ...describePieces(pieces),
    ...describeTrainer(trainer, config),
    ...describeNormalizer(normalizer),
  };
  const reader = new JsonReader(metadata, SENTENCEPIECE_FILE);
  return {
    tokenizer: makeTokenizerJson(reader, SENTENCEPIECE_FILE),
    specialTokens: readSpecialTokens(reader),
  };
}

function addPiece(bytes: Uint8Array, { tokens, scores, types }: Pieces): void {
  const [text = new Uint8Array(), score = 0, type = TOKEN_TYPE.normal] = fieldsOf(bytes, [
    PIECE.text,
    PIECE.score,
    PIECE.type,
  ]);
  const where = `${SENTENCEPIECE_FILE}: piece ${tokens.length}`;
  if (!(text instanceof Uint8Array)) throw invalidFile(where, 'a text', `the number ${text}`);
  if (typeof score !== 'number' || typeof type !== 'number')
    throw invalidFile(where, 'a number as score and as type', 'a text');
  tokens.push(Buffer.from(text).toString('utf8'));
  scores.push(score);
  // The types of GGUF are those of SentencePiece.
  types.push(type);
}

/** Returns the last value of each field. */
function fieldsOf(bytes: Uint8Array, ids: readonly number[]): (number | Uint8Array | undefined)[] {
  const values = new Map<number, number | Uint8Array>();
  for (const { id, value } of readProto(bytes, SENTENCEPIECE_FILE)) values.set(id, value);
  return ids.map((id) => values.get(id));
}

/** Tokens after those of the model, or in their place: `added_tokens_decoder`, or added_tokens.json of older models. */
function addTokens(pieces: Pieces, config: JsonReader, added: JsonReader): void {
  const { tokens, scores, types } = pieces;
  const limit = tokens.length + MAX_ADDED_TOKENS;
  const add = (id: number, token: string, type: number, where: string): void => {
    if (!Number.isSafeInteger(id) || id < 0 || id >= limit)
      throw invalidFile(where, `token ids from 0 to ${limit - 1}`, String(id));
    for (let next = tokens.length; next < id; next++) {
      tokens[next] = '';
      scores[next] = 0;
      types[next] = TOKEN_TYPE.unused;
    }
    if (tokens[id] === token && types[id] !== TOKEN_TYPE.normal && type === TOKEN_TYPE.userDefined) return;
    tokens[id] = token;
    scores[id] = 0;
    types[id] = type;
  };
  for (const token of added.keys()) add(added.nonNegativeInt(token), token, TOKEN_TYPE.userDefined, added.where);
  const decoder = config.object('added_tokens_decoder');
  const where = decoder?.where ?? '';
  for (const id of decoder?.keys() ?? []) {
    const entry = decoder?.object(id);
    if (entry === undefined) throw invalidFile(`${where}: ${id}`, 'an object with content', 'nothing');
    const isUnknown = types[Number(id)] === TOKEN_TYPE.unknown;
    const type = entry.boolean('special', false) ? TOKEN_TYPE.control : TOKEN_TYPE.userDefined;
    add(Number(id), entry.string('content'), isUnknown ? TOKEN_TYPE.unknown : type, where);
  }
}

const MAX_ADDED_TOKENS = 1 << 16;

function describePieces({ tokens, scores, types }: Pieces): JsonObject {
  return {
    'tokenizer.ggml.tokens': tokens,
    'tokenizer.ggml.scores': Float32Array.from(scores),
    'tokenizer.ggml.token_type': Int32Array.from(types),
  };
}

function describeTrainer(bytes: Uint8Array, config: JsonReader): JsonObject {
  const [modelType = 1, unkId = 0, bosId = 1, eosId = 2, padId = NO_ID] = fieldsOf(bytes, [
    TRAINER.modelType,
    TRAINER.unkId,
    TRAINER.bosId,
    TRAINER.eosId,
    TRAINER.padId,
  ]).map((value) => (value === undefined ? undefined : Number(value)));
  if (!Object.hasOwn(MODEL_TYPES, modelType))
    throw CapstanError.unexpected('unsupported_model', SENTENCEPIECE_FILE, MODEL_TYPE_NAMES, `model type ${modelType}`);
  // -1, which is 2^64 - 1 in the file, means none.
  const ids = Object.entries({ unknown: unkId, bos: bosId, eos: eosId, padding: padId }).filter(([, id]) => id < NO_ID);
  const isBpe = modelType === 2;
  return {
    'tokenizer.ggml.model': MODEL_TYPES[modelType],
    ...Object.fromEntries(ids.map(([name, id]) => [`tokenizer.ggml.${name}_token_id`, id])),
    'tokenizer.ggml.add_bos_token': config.boolean('add_bos_token', isBpe),
    'tokenizer.ggml.add_eos_token': config.boolean('add_eos_token', false),
  };
}

function describeNormalizer(bytes: Uint8Array): JsonObject {
  const [charsmap, addsSpace = 1, removesSpaces = 1] = fieldsOf(bytes, [
    NORMALIZER.charsmap,
    NORMALIZER.addsSpace,
    NORMALIZER.removesSpaces,
  ]);
  return {
    // A copy, because the bytes are a view of the whole file.
    'tokenizer.ggml.precompiled_charsmap': charsmap instanceof Uint8Array ? Uint8Array.from(charsmap) : undefined,
    'tokenizer.ggml.add_space_prefix': addsSpace !== 0,
    'tokenizer.ggml.remove_extra_whitespaces': removesSpaces !== 0,
  };
}
