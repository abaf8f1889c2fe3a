import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { StringDecoder } from 'node:string_decoder';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { Tokenizer as HfTokenizer } from 'tokenizers';
import { CapstanError } from '../errors';
import { JobLine } from '../job-line';
import { parseJsonObject, readTextFile } from '../model/json-file';
import { discard } from './garbage';
import { buildVocabulary, type TokenizerJson, type Vocabulary } from './vocabulary';

const TOKENIZER_FILE = 'tokenizer.json';
/** A text of so many characters takes long; the threads that do it are few, and shorter ones need some of them. */
const LONG_TEXT = 1 << 18;
const MAX_LONG_TEXTS = 2;
/** What the library holds for a token of a text: its spelling, offsets, masks. */
const BYTES_PER_ENCODED_TOKEN = 256;
const NEVER = new AbortController().signal;
/** Decoded within about a millisecond. */
const TOKENS_PER_TURN = 32_768;

/** Text to ids by Hugging Face's `tokenizers`, on its own threads; ids to text by our own table. */
export class Tokenizer {
  readonly vocabulary: Vocabulary;
  readonly #tokenizer: HfTokenizer;
  readonly #longTexts = new JobLine({
    maxRunning: MAX_LONG_TEXTS,
    maxWaiting: Infinity,
    noun: 'long texts wait to be tokenized',
  });

  private constructor(tokenizer: HfTokenizer, vocabulary: Vocabulary) {
    this.#tokenizer = tokenizer;
    this.vocabulary = vocabulary;
  }

  /** @throws CapstanError `invalid_model` without a usable tokenizer.json; `unsupported_model` for a decoder that we do not know. */
  static async load(modelDir: string, keptTokens: ReadonlySet<string>): Promise<Tokenizer> {
    const text = await readTextFile(modelDir, TOKENIZER_FILE);
    if (text === undefined) throw missingTokenizer(modelDir);
    const json = parseJsonObject(text, TOKENIZER_FILE) as unknown as TokenizerJson;
    if (typeof json.model?.vocab !== 'object' || json.model.vocab === null)
      throw CapstanError.mismatch('invalid_model', `${TOKENIZER_FILE}: model.vocab`, 'a vocabulary', json.model?.vocab);
    // The library checks the file's form, which the table relies on.
    const tokenizer = await createTokenizer(text);
    return new Tokenizer(tokenizer, buildVocabulary(json, keptTokens));
  }

  /**
   * `addSpecialTokens` runs the post-processor (BOS and the like): on for plain prompts, off for rendered chat templates.
   * @param signal Aborted when the caller does not wait any more: a long text that has not had its turn is left.
   */
  encode(text: string, addSpecialTokens: boolean, signal?: AbortSignal): Promise<Int32Array> {
    if (text.length < LONG_TEXT) return this.#encodeNow(text, addSpecialTokens);
    return this.#longTexts.run(() => this.#encodeNow(text, addSpecialTokens), signal ?? NEVER);
  }

  async #encodeNow(text: string, addSpecialTokens: boolean): Promise<Int32Array> {
    const encoding = await this.#tokenizer.encode(text, null, { addSpecialTokens });
    const ids = Int32Array.from(encoding.getIds());
    if (text.length >= LONG_TEXT) discard(encoding, ids.length * BYTES_PER_ENCODED_TOKEN);
    return ids;
  }

  /** The text of ids as a whole; bytes that are no UTF-8 become U+FFFD. */
  decode(ids: ArrayLike<number>, skipSpecialTokens: boolean): string {
    return this.#asBeginning(this.#bytesOf(ids, 0, ids.length, skipSpecialTokens).toString('utf8'));
  }

  /** The same for very many: others have a turn between parts of them. */
  async decodeInTurns(ids: ArrayLike<number>, skipSpecialTokens: boolean): Promise<string> {
    const decoder = new StringDecoder('utf8');
    let text = '';
    for (let begin = 0; begin < ids.length; begin += TOKENS_PER_TURN) {
      if (begin > 0) await nextTurn();
      text += decoder.write(
        this.#bytesOf(ids, begin, Math.min(begin + TOKENS_PER_TURN, ids.length), skipSpecialTokens),
      );
    }
    return this.#asBeginning(text + decoder.end());
  }

  #bytesOf(ids: ArrayLike<number>, begin: number, end: number, skipSpecialTokens: boolean): Buffer {
    const { bytes, offsets, special, numTokens } = this.vocabulary;
    const isShown = (id: number) => id < numTokens && !(skipSpecialTokens && special[id] === 1);
    let length = 0;
    for (let i = begin; i < end; i++) if (isShown(ids[i])) length += offsets[ids[i] + 1] - offsets[ids[i]];
    const shown = Buffer.allocUnsafe(length);
    let at = 0;
    // NOTE: byte by byte, which costs a tenth of a view of every token.
    for (let i = begin; i < end; i++)
      if (isShown(ids[i]))
        for (let from = offsets[ids[i]]; from < offsets[ids[i] + 1]; from++) shown[at++] = bytes[from];
    return shown;
  }

  #asBeginning(text: string): string {
    return this.vocabulary.stripsLeadingSpace && text.startsWith(' ') ? text.slice(1) : text;
  }

  /** A view of one token's bytes; empty for ids without a token. */
  tokenBytes(id: number): Uint8Array {
    const { bytes, offsets, numTokens } = this.vocabulary;
    return id < numTokens ? bytes.subarray(offsets[id], offsets[id + 1]) : bytes.subarray(0, 0);
  }

  /** The same; empty for special tokens, which are no text. */
  textBytes(id: number): Uint8Array {
    return this.tokenBytes(this.vocabulary.special[id] === 1 ? this.vocabulary.numTokens : id);
  }

  /** Whether a completion of this prompt begins the decoded text, so that its leading space is the decoder's to drop. */
  startsText(promptTokenIds: ArrayLike<number>, skipSpecialTokens: boolean): boolean {
    const { special, stripsLeadingSpace } = this.vocabulary;
    if (!stripsLeadingSpace) return false;
    for (let i = 0; i < promptTokenIds.length; i++) {
      const isSkipped = skipSpecialTokens && special[promptTokenIds[i]] === 1;
      if (!isSkipped && this.tokenBytes(promptTokenIds[i]).length > 0) return false;
    }
    return true;
  }
}

async function createTokenizer(text: string): Promise<HfTokenizer> {
  const { Tokenizer: HfTokenizer } = await import('tokenizers');
  try {
    const tokenizer = HfTokenizer.fromString(text);
    // Training settings that some files carry; a prompt is never cut or filled up behind the caller's back.
    tokenizer.disableTruncation();
    tokenizer.disablePadding();
    return tokenizer;
  } catch (cause) {
    throw new CapstanError(
      'invalid_model',
      `${TOKENIZER_FILE}: expected a tokenizer, got one that does not load (${(cause as Error).message})`,
      { param: TOKENIZER_FILE, cause },
    );
  }
}

function missingTokenizer(modelDir: string): CapstanError {
  const other = ['tokenizer.model', 'vocab.json', 'tekken.json'].find((name) => existsSync(join(modelDir, name)));
  const received =
    other === undefined
      ? 'none'
      : `only ${other}, which has to be converted (AutoTokenizer.from_pretrained(…).save_pretrained(…) writes it)`;
  return new CapstanError('invalid_model', `${TOKENIZER_FILE}: expected one in the model directory, got ${received}`, {
    param: TOKENIZER_FILE,
    expected: TOKENIZER_FILE,
    received: other ?? 'none',
  });
}
