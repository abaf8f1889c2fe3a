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
  write(token: string, bytes: ByteWriter): void;
  stripsLeadingSpace: boolean;
}

/** Collects the bytes of all tokens in one array that grows, because a vocabulary has up to a million tokens. */
class ByteWriter {
  bytes = new Uint8Array(1 << 16);
  length = 0;

  /** Returns the position at which `count` more bytes may be written. */
  reserve(count: number): number {
    if (this.length + count > this.bytes.length) {
      const grown = new Uint8Array(2 * (this.length + count));
      grown.set(this.bytes);
      this.bytes = grown;
    }
    return this.length;
  }

  writeText(text: string): void {
    // UTF-8 takes at most three bytes for each UTF-16 code unit.
    const at = this.reserve(3 * text.length);
    this.length = at + utf8.encodeInto(text, this.bytes.subarray(at)).written;
  }

  writeByte(byte: number): void {
    this.bytes[this.reserve(1)] = byte;
    this.length++;
  }
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
  const offsets = new Uint32Array(numTokens + 1);
  const written = new ByteWriter();
  let longest = 1;
  for (let id = 0; id < numTokens; id++) {
    const token = tokens[id] as string | undefined;
    if (token !== undefined) decoder.write(token, written);
    offsets[id + 1] = written.length;
    longest = Math.max(longest, offsets[id + 1] - offsets[id]);
  }
  const bytes = written.bytes.slice(0, written.length);
  const special = new Uint8Array(numTokens);
  for (const token of json.added_tokens ?? []) {
    if (keptTokens.has(token.content)) special[token.id] = 2;
    else if (token.special) special[token.id] = 1;
  }
  const { unk_token, unk_id, byte_fallback } = json.model;
  const hasUnknown = (unk_token ?? unk_id ?? null) !== null && byte_fallback !== true;
  const maxTokenBytes = hasUnknown ? Infinity : longest;
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
  let finish = (text: string, bytes: ByteWriter): void => bytes.writeText(text);
  let stripsLeadingSpace = false;
  for (const step of steps) {
    switch (step.type) {
      case 'WordPiece':
        replacements.push((token) => wordPieceText(token, step.prefix ?? '##'));
        stripsLeadingSpace = true;
        break;
      case 'ByteLevel':
        finish = writeByteLevel;
        break;
      case 'ByteFallback':
        finish = writeByteFallback;
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
    write: (token, bytes) =>
      finish(
        replacements.reduce((text, replace) => replace(text), token),
        bytes,
      ),
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

function writeByteFallback(text: string, bytes: ByteWriter): void {
  if (/^<0x[0-9A-Fa-f]{2}>$/.test(text)) bytes.writeByte(parseInt(text.slice(3, 5), 16));
  else bytes.writeText(text);
}

/** A spelling with a character outside the byte alphabet is plain text. */
function writeByteLevel(text: string, bytes: ByteWriter): void {
  const at = bytes.reserve(text.length);
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    const byte = code < BYTE_OF_CODE.length ? BYTE_OF_CODE[code] : NO_BYTE;
    if (byte === NO_BYTE) {
      bytes.writeText(text);
      return;
    }
    bytes.bytes[at + i] = byte;
  }
  bytes.length = at + text.length;
}

const NO_BYTE = -1;
/** The byte of each character code of the byte alphabet. */
const BYTE_OF_CODE = new Int16Array(Math.max(...CHARACTER_OF_BYTE.map((text) => text.charCodeAt(0))) + 1).fill(NO_BYTE);
CHARACTER_OF_BYTE.forEach((character, byte) => {
  BYTE_OF_CODE[character.charCodeAt(0)] = byte;
});

function unsupportedDecoder(step: DecoderJson, expected: string): CapstanError {
  return new CapstanError('unsupported_model', `tokenizer.json: expected ${expected}, got ${step.type}`, {
    param: 'decoder',
    expected,
    received: step.type,
  });
}
