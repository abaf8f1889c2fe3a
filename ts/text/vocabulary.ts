import type { NativeVocab } from '../addon-types';
import { CHARACTER_OF_BYTE } from '../model/byte-alphabet';
import { CapstanError, showValue } from '../errors';

/** The parts of tokenizer.json that decoding needs. */
export interface TokenizerJson {
  added_tokens?: { id: number; content: string; special: boolean }[];
  model: {
    type: string;
    vocab: Record<string, number> | [token: string, score: number][];
    unk_token?: string | null;
    unk_id?: number | null;
    byte_fallback?: boolean;
  };
  decoder?: DecoderJson | null;
}

interface DecoderJson {
  type: string;
  decoders?: DecoderJson[];
  prefix?: string;
  pattern?: { String?: string; Regex?: string };
  content?: string;
  start?: number;
  stop?: number;
  replacement?: string;
  prepend_scheme?: string;
  add_prefix_space?: boolean;
}

/** The bytes of each token, and how the decoder treats the text. */
export interface Vocabulary extends NativeVocab {
  numTokens: number;
  /** The decoder drops one leading space of the text. */
  stripsLeadingSpace: boolean;
  /** Maximum bytes of text per token; Infinity if an unknown token can stand for text of any length. */
  maxTokenBytes: number;
}

/** Converts the spelling of a token to its bytes. */
interface TokenDecoder {
  toBytes(token: string): Uint8Array;
  stripsLeadingSpace: boolean;
}

/**
 * Builds the table of a tokenizer.json. Added tokens pass through the decoder like others, as in `tokenizers`.
 * @param keptTokens Tokens such as `<tool_call>` and `<think>` that always stay in the text, because the parsers need
 *   them.
 * @throws CapstanError `unsupported_model` for a decoder that is not byte-level, metaspace, WordPiece or byte fallback.
 */
export function buildVocabulary(json: TokenizerJson, keptTokens: ReadonlySet<string>): Vocabulary {
  const tokens = listTokens(json);
  const decoder = makeDecoder(json.decoder);
  const numTokens = tokens.length;
  const pieces = Array.from(tokens, (token) => (token === undefined ? new Uint8Array(0) : decoder.toBytes(token)));
  const offsets = new Uint32Array(numTokens + 1);
  pieces.forEach((piece, id) => {
    offsets[id + 1] = offsets[id] + piece.length;
  });
  const bytes = new Uint8Array(offsets[numTokens]);
  pieces.forEach((piece, id) => bytes.set(piece, offsets[id]));
  const special = new Uint8Array(numTokens);
  for (const token of json.added_tokens ?? []) {
    if (keptTokens.has(token.content)) special[token.id] = 2;
    else if (token.special) special[token.id] = 1;
  }
  const { unk_token, unk_id, byte_fallback } = json.model;
  const hasUnknown = (unk_token ?? unk_id ?? null) !== null && byte_fallback !== true;
  const maxTokenBytes = hasUnknown ? Infinity : pieces.reduce((most, piece) => Math.max(most, piece.length), 1);
  return { bytes, offsets, special, numTokens, stripsLeadingSpace: decoder.stripsLeadingSpace, maxTokenBytes };
}

/** Returns the spellings by id. Unused ids are holes in the array. */
function listTokens(json: TokenizerJson): string[] {
  const tokens: string[] = [];
  const { vocab } = json.model;
  if (Array.isArray(vocab))
    vocab.forEach(([token], id) => {
      tokens[id] = token;
    });
  else for (const token in vocab) tokens[checkId(vocab[token], token)] = token;
  for (const { id, content } of json.added_tokens ?? []) tokens[checkId(id, content)] = content;
  return tokens;
}

const MAX_VOCABULARY = 1 << 24;

function checkId(id: unknown, token: string): number {
  if (!Number.isInteger(id) || (id as number) < 0 || (id as number) >= MAX_VOCABULARY) {
    throw CapstanError.mismatch(
      'invalid_model',
      `tokenizer.json: ${showValue(token)}`,
      `an id from 0 to ${MAX_VOCABULARY - 1}`,
      id,
    );
  }
  return id as number;
}

const utf8 = new TextEncoder();

/** All steps work on the spelling of one token, except Strip after Fuse, which the addon applies to the text. */
function makeDecoder(json: DecoderJson | null | undefined): TokenDecoder {
  let steps: readonly DecoderJson[] = [];
  if (json?.type === 'Sequence') steps = json.decoders ?? [];
  else if (json) steps = [json];

  const replacements: ((token: string) => string)[] = [];
  let finish = (token: string): Uint8Array => utf8.encode(token);
  let stripsLeadingSpace = false;
  for (const step of steps) {
    switch (step.type) {
      case 'WordPiece':
        replacements.push((token) => wordPieceText(token, step.prefix ?? '##'));
        stripsLeadingSpace = true;
        break;
      case 'ByteLevel':
        finish = byteLevelBytes;
        break;
      case 'ByteFallback':
        finish = byteFallbackBytes;
        break;
      case 'Fuse':
        break;
      case 'Replace':
        replacements.push(replacement(step));
        break;
      case 'Metaspace':
        replacements.push((token) => token.replaceAll(step.replacement ?? '▁', ' '));
        stripsLeadingSpace ||=
          (step.prepend_scheme ?? (step.add_prefix_space === false ? 'never' : 'always')) !== 'never';
        break;
      case 'Strip':
        if (step.content !== ' ' || (step.start ?? 0) > 1 || (step.stop ?? 0) > 0)
          throw unsupportedDecoder(step, 'a Strip of one leading space');
        stripsLeadingSpace ||= step.start === 1;
        break;
      default:
        throw unsupportedDecoder(
          step,
          'a decoder of ByteLevel, Metaspace, WordPiece, Replace, ByteFallback, Fuse and Strip',
        );
    }
  }
  return {
    toBytes: (token) => finish(replacements.reduce((text, replace) => replace(text), token)),
    stripsLeadingSpace,
  };
}

function replacement(step: DecoderJson): (token: string) => string {
  const pattern = step.pattern?.String;
  const content = step.content;
  if (pattern === undefined || content === undefined) throw unsupportedDecoder(step, 'a Replace of a plain string');
  return (token) => token.replaceAll(pattern, content);
}

/** A token without the prefix starts a word. */
function wordPieceText(token: string, prefix: string): string {
  return token.startsWith(prefix) ? token.slice(prefix.length) : ` ${token}`;
}

function byteFallbackBytes(token: string): Uint8Array {
  return /^<0x[0-9A-Fa-f]{2}>$/.test(token) ? Uint8Array.of(parseInt(token.slice(3, 5), 16)) : utf8.encode(token);
}

/** A spelling with a character outside the byte alphabet is plain text. */
function byteLevelBytes(token: string): Uint8Array {
  const bytes = new Uint8Array(token.length);
  for (let i = 0; i < token.length; i++) {
    const byte = BYTE_OF_CHAR.get(token.charCodeAt(i));
    if (byte === undefined) return utf8.encode(token);
    bytes[i] = byte;
  }
  return bytes;
}

const BYTE_OF_CHAR = new Map(CHARACTER_OF_BYTE.map((character, byte) => [character.charCodeAt(0), byte]));

function unsupportedDecoder(step: DecoderJson, expected: string): CapstanError {
  return new CapstanError('unsupported_model', `tokenizer.json: expected ${expected}, got ${step.type}`, {
    param: 'decoder',
    expected,
    received: step.type,
  });
}
