import { CapstanError } from '../../errors';
import type { JsonObject, JsonReader } from '../json-file';
import { invalidFile } from '../weight-file';
import { findCharsmapFault } from './charsmap';
import { findPreTokenizer, PRE_TOKENIZER_NAMES, type PreTokenizer } from './pre-tokenizers';
import { mergesFromScores } from './sentencepiece';
import { TOKEN_TYPE } from './tokens';
import {
  type GgufVocabulary,
  idsBySpelling,
  isControl,
  isStrings,
  numbersOf,
  readVocabulary,
  specialId,
} from './vocabulary';

/** The spelling of a space in SentencePiece. */
const SPACE = '▁';

/** The parts of tokenizer.json that depend on the kind of tokenizer, and which tokens frame a text. */
interface TokenizerParts {
  normalizer: unknown;
  preTokenizer: unknown;
  model: JsonObject;
  decoder: JsonObject;
  /** Tokens before a text, unless the file says otherwise. */
  addsBos: boolean;
  addsEos: boolean;
  addsSep: boolean;
}

/** Kinds of tokenizers by `tokenizer.ggml.model`. */
const MODELS: Readonly<Record<string, (vocabulary: GgufVocabulary) => TokenizerParts>> = {
  gpt2: byteLevelBpe,
  llama: sentencePieceBpe,
  gemma4: gemmaBpe,
  t5: unigram,
  bert: wordPiece,
};

/** A tokenizer of another file, in the form of the files of a Hugging Face directory. */
export interface ConvertedTokenizer {
  /** The content of tokenizer.json. */
  tokenizer: JsonObject;
  /** Tokens by the name of their variable in templates, such as `bos_token`. */
  specialTokens: Record<string, string>;
}

/**
 * Converts the metadata of a tokenizer to what tokenizer.json holds.
 * @throws CapstanError `invalid_model`, or `unsupported_model` for an unknown kind of tokenizer or pre-tokenizer.
 */
export function makeTokenizerJson(metadata: JsonReader, file: string): JsonObject {
  const name = metadata.string('tokenizer.ggml.model');
  if (!Object.hasOwn(MODELS, name))
    throw unsupported(metadata, 'tokenizer.ggml.model', `one of ${Object.keys(MODELS).join(', ')}`, name);
  const vocabulary = readVocabulary(metadata, file);
  return assembleTokenizer(vocabulary, MODELS[name](vocabulary));
}

export function assembleTokenizer(vocabulary: GgufVocabulary, parts: TokenizerParts): JsonObject {
  const { model, decoder, normalizer, preTokenizer, ...frame } = parts;
  return {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: addedTokens(vocabulary),
    normalizer,
    pre_tokenizer: preTokenizer,
    post_processor: postProcessor(vocabulary, frame),
    decoder,
    model,
  };
}

/** Control tokens and those that a user has added are found in the text before it is split. */
function addedTokens(vocabulary: GgufVocabulary): JsonObject[] {
  const added: JsonObject[] = [];
  vocabulary.tokens.forEach((content, id) => {
    const special = isControl(vocabulary, id);
    if (content === '' || !(special || vocabulary.types[id] === TOKEN_TYPE.userDefined)) return;
    added.push({ id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special });
  });
  return added;
}

function byteLevelBpe(vocabulary: GgufVocabulary): TokenizerParts {
  const { metadata } = vocabulary;
  const vocab = idsBySpelling(vocabulary);
  return byteLevelParts(readPreTokenizer(metadata), vocab, readMerges(metadata, vocab));
}

/** @param vocab Ids by spelling in the alphabet of byte-level BPE. */
export function byteLevelParts(
  { patterns, ignoresMerges = false, addsBos = false, normalizes = false }: Omit<PreTokenizer, 'names'>,
  vocab: Readonly<Record<string, number>>,
  merges: readonly [string, string][],
): TokenizerParts {
  const splits = patterns.map((Regex) => ({ type: 'Split', pattern: { Regex }, behavior: 'Isolated', invert: false }));
  const byteLevel = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: false };
  return {
    normalizer: normalizes ? { type: 'NFC' } : null,
    preTokenizer: { type: 'Sequence', pretokenizers: [...splits, byteLevel] },
    model: bpeModel({ vocab, merges, ignore_merges: ignoresMerges }),
    decoder: byteLevel,
    addsBos,
    addsEos: false,
    addsSep: false,
  };
}

function readPreTokenizer(metadata: JsonReader): PreTokenizer {
  const name = metadata.string('tokenizer.ggml.pre', 'default');
  const preTokenizer = findPreTokenizer(name === '' ? 'default' : name);
  if (preTokenizer !== undefined) return preTokenizer;
  throw unsupported(metadata, 'tokenizer.ggml.pre', `one of ${PRE_TOKENIZER_NAMES.join(', ')}`, name);
}

/** A merge is two spellings with a space between. A merge of tokens that the file does not have can never apply. */
function readMerges(metadata: JsonReader, vocab: Readonly<Record<string, number>>): [string, string][] {
  const merges = metadata.raw('tokenizer.ggml.merges');
  if (!isStrings(merges)) throw metadata.mismatch('tokenizer.ggml.merges', 'an array of strings', merges);
  return merges
    .map((merge): [string, string] => {
      const at = merge.indexOf(' ', 1);
      return [merge.slice(0, at), merge.slice(at + 1)];
    })
    .filter(([left, right]) => left in vocab && right in vocab && left + right in vocab);
}

function bpeModel(fields: JsonObject): JsonObject {
  return {
    type: 'BPE',
    dropout: null,
    unk_token: null,
    continuing_subword_prefix: null,
    end_of_word_suffix: null,
    fuse_unk: false,
    byte_fallback: false,
    ignore_merges: false,
    ...fields,
  };
}

/** Gemma 4: that of SentencePiece with the merges of the file. */
function gemmaBpe(vocabulary: GgufVocabulary): TokenizerParts {
  return spacedBpe(vocabulary, readMerges(vocabulary.metadata, idsBySpelling(vocabulary)));
}

/** As transformers converts Llama's tokenizer.model: BPE with merges by score, bytes for unknown characters. */
function sentencePieceBpe(vocabulary: GgufVocabulary): TokenizerParts {
  const { metadata, tokens } = vocabulary;
  const scores = numbersOf(metadata, 'tokenizer.ggml.scores', tokens.length);
  if (scores === undefined) throw metadata.mismatch('tokenizer.ggml.scores', 'one score for each token', undefined);
  return spacedBpe(vocabulary, mergesFromScores(vocabulary, idsBySpelling(vocabulary), scores));
}

function spacedBpe(vocabulary: GgufVocabulary, merges: readonly [string, string][]): TokenizerParts {
  const { metadata, tokens, types } = vocabulary;
  const vocab = idsBySpelling(vocabulary);
  const unknown = tokens[unknownId(vocabulary) ?? -1];
  const hasBytes = Array.from(types).includes(TOKEN_TYPE.byte);
  return {
    // GGUF files have no table of characters for this kind. A tokenizer.model has one, which may be empty.
    normalizer: spaceNormalizer(vocabulary, metadata.has('tokenizer.ggml.precompiled_charsmap')),
    preTokenizer: null,
    model: bpeModel({
      vocab,
      merges,
      unk_token: unknown !== undefined && unknown in vocab ? unknown : null,
      fuse_unk: true,
      byte_fallback: hasBytes,
    }),
    decoder: spaceDecoder(addsSpace(metadata)),
    addsBos: true,
    addsEos: false,
    addsSep: false,
  };
}

function addsSpace(metadata: JsonReader): boolean {
  return metadata.boolean('tokenizer.ggml.add_space_prefix', true);
}

/** What SentencePiece does to a text before it splits it. */
function spaceNormalizer(vocabulary: GgufVocabulary, changesCharacters: boolean): JsonObject {
  const prefix = addsSpace(vocabulary.metadata) ? [{ type: 'Prepend', prepend: SPACE }] : [];
  const spaces = { type: 'Replace', pattern: { String: ' ' }, content: SPACE };
  const characters = changesCharacters ? characterNormalizers(vocabulary) : [];
  return { type: 'Sequence', normalizers: [...characters, ...prefix, spaces] };
}

function spaceDecoder(hasPrefix: boolean): JsonObject {
  return {
    type: 'Sequence',
    decoders: [
      { type: 'Replace', pattern: { String: SPACE }, content: ' ' },
      { type: 'ByteFallback' },
      { type: 'Fuse' },
      ...(hasPrefix ? [{ type: 'Strip', content: ' ', start: 1, stop: 0 }] : []),
    ],
  };
}

function unknownId({ metadata, tokens, types }: GgufVocabulary): number | undefined {
  const id = specialId(metadata, 'unknown');
  if (id !== undefined) return id;
  const found = [Array.from(types).indexOf(TOKEN_TYPE.unknown), tokens.indexOf('[UNK]')];
  return found.find((candidate) => candidate >= 0);
}

/** Without byte tokens, these tokenizers need a token for what they do not know. */
function requireUnknownId(vocabulary: GgufVocabulary): number {
  const { tokens, types, metadata } = vocabulary;
  const id = unknownId(vocabulary);
  if (id !== undefined && id < tokens.length && types[id] !== TOKEN_TYPE.unused) return id;
  throw metadata.mismatch('tokenizer.ggml.unknown_token_id', 'the id of a token', id);
}

/** As transformers converts a SentencePiece model of T5. */
function unigram(vocabulary: GgufVocabulary): TokenizerParts {
  const { metadata, tokens, types } = vocabulary;
  const scores = numbersOf(metadata, 'tokenizer.ggml.scores', tokens.length);
  if (scores === undefined) throw metadata.mismatch('tokenizer.ggml.scores', 'one score for each token', undefined);
  return {
    normalizer: spaceNormalizer(vocabulary, true),
    preTokenizer: null,
    model: {
      type: 'Unigram',
      unk_id: requireUnknownId(vocabulary),
      byte_fallback: Array.from(types).includes(TOKEN_TYPE.byte),
      vocab: tokens.map((token, id) => [token, types[id] === TOKEN_TYPE.userDefined ? 0 : scores[id]]),
    },
    decoder: spaceDecoder(addsSpace(metadata)),
    addsBos: false,
    addsEos: true,
    addsSep: false,
  };
}

/** Replaces characters, and removes spaces at the ends and next to each other. Other white space stays. */
function characterNormalizers({ metadata, file }: GgufVocabulary): JsonObject[] {
  const charsmap = metadata.raw('tokenizer.ggml.precompiled_charsmap');
  const isBytes = charsmap instanceof Uint8Array || charsmap instanceof Int8Array;
  if (charsmap !== undefined && !isBytes)
    throw metadata.mismatch('tokenizer.ggml.precompiled_charsmap', 'an array of bytes', charsmap);
  const table = Buffer.from(charsmap?.buffer ?? new ArrayBuffer(0));
  const fault = table.length === 0 ? undefined : findCharsmapFault(table);
  if (fault !== undefined)
    throw invalidFile(`${file}: tokenizer.ggml.precompiled_charsmap`, 'a sound table of characters', fault);
  const removesSpaces = metadata.boolean('tokenizer.ggml.remove_extra_whitespaces', false);
  return [
    ...(table.length === 0 ? [] : [{ type: 'Precompiled', precompiled_charsmap: table.toString('base64') }]),
    ...(removesSpaces
      ? [
          { type: 'Replace', pattern: { Regex: String.raw`\A +| +\z` }, content: '' },
          { type: 'Replace', pattern: { Regex: ' {2,}' }, content: ' ' },
        ]
      : []),
  ];
}

/** GGUF spells the start of a word `▁word` and its continuation `ing`; tokenizer.json `word` and `##ing`. */
function wordPiece(vocabulary: GgufVocabulary): TokenizerParts {
  const { metadata, tokens } = vocabulary;
  const spell = (token: string, id: number): string => {
    if (isControl(vocabulary, id)) return token;
    return token.startsWith(SPACE) ? token.slice(1) : `##${token}`;
  };
  const unknown = requireUnknownId(vocabulary);
  const lowercase = metadata.boolean('tokenizer.ggml.normalizer.lowercase', true);
  return {
    normalizer: {
      type: 'BertNormalizer',
      clean_text: true,
      handle_chinese_chars: true,
      strip_accents: metadata.boolean('tokenizer.ggml.normalizer.strip_accents', lowercase),
      lowercase,
    },
    preTokenizer: { type: 'BertPreTokenizer' },
    model: {
      type: 'WordPiece',
      unk_token: spell(tokens[unknown], unknown),
      continuing_subword_prefix: '##',
      max_input_chars_per_word: 100,
      vocab: idsBySpelling(vocabulary, spell),
    },
    decoder: { type: 'WordPiece', prefix: '##', cleanup: false },
    addsBos: true,
    addsEos: false,
    addsSep: true,
  };
}

/**
 * Adds the tokens before and after a text, and between two texts. The file may say which; else it depends on the kind
 * of tokenizer.
 */
function postProcessor(
  { metadata, tokens }: GgufVocabulary,
  frame: Pick<TokenizerParts, 'addsBos' | 'addsEos' | 'addsSep'>,
): JsonObject | null {
  const tokenOf = (flag: string, isDefault: boolean, ...names: string[]): [string, number][] => {
    const ids = names.map((name) => specialId(metadata, name)).filter((id) => id !== undefined);
    const isAdded = metadata.boolean(`tokenizer.ggml.add_${flag}_token`, isDefault);
    return isAdded && ids.length > 0 && ids[0] < tokens.length ? [[tokens[ids[0]], ids[0]]] : [];
  };
  const before = tokenOf('bos', frame.addsBos, 'bos', 'cls');
  const end = tokenOf('eos', frame.addsEos, 'eos');
  const after = end.length > 0 ? end : tokenOf('sep', frame.addsSep, 'seperator');
  // XLM-R has two tokens between two texts, and BERT one.
  const second = end.length > 0 ? tokenOf('sep', !frame.addsSep, 'seperator') : [];
  if (before.length + after.length === 0) return null;
  const secondType = metadata.nonNegativeInt('tokenizer.ggml.token_type_count', 1) > 1 ? 1 : 0;
  const special =
    (type_id: number) =>
    ([id]: [string, number]) => ({ SpecialToken: { id, type_id } });
  const single = [...before.map(special(0)), { Sequence: { id: 'A', type_id: 0 } }, ...after.map(special(0))];
  return {
    type: 'TemplateProcessing',
    single,
    pair: [
      ...single,
      ...second.map(special(0)),
      { Sequence: { id: 'B', type_id: secondType } },
      ...after.map(special(secondType)),
    ],
    special_tokens: Object.fromEntries(
      [...before, ...after, ...second].map(([token, id]) => [token, { id: token, ids: [id], tokens: [token] }]),
    ),
  };
}

function unsupported(metadata: JsonReader, key: string, expected: string, received: string): CapstanError {
  const { message } = metadata.mismatch(key, expected, received);
  return new CapstanError('unsupported_model', message, { param: key, expected, received });
}
