import { existsSync } from 'node:fs';
import { join } from 'node:path';
import type * as Tokenizers from 'tokenizers';
import { CapstanError, escapeControls } from '../errors';
import { JobQueue } from '../job-queue';
import { findCharsmapFault } from '../model/gguf/charsmap';
import type { ConvertedTokenizer } from '../model/gguf/tokenizer';
import {
  type JsonObject,
  JsonReader,
  parseJsonObject,
  readBytes,
  readJsonFile,
  readTextFile,
} from '../model/json-file';
import { LENGTH_FILES } from '../model/sentence-transformers';
import { convertSentencePiece, SENTENCEPIECE_FILE } from '../model/sentencepiece-file';
import { convertTekken, TEKKEN_FILE } from '../model/tekken';
import { invalidFile } from '../model/weight-file';
import { requireNative } from '../package-root';
import { platformFolder, TOKENIZERS_FILE } from '../platform-package';
import { reportExternalMemory } from './external-memory';
import { type EncodedInput, type TextInput, truncateInput } from './truncate-input';
import { buildVocabulary, type TokenizerJson, type Vocabulary } from './vocabulary';

type HfTokenizer = Tokenizers.Tokenizer;

const TOKENIZER_FILE = 'tokenizer.json';
/**
 * Texts of this many characters take long to encode. Only a few run at once, so that shorter texts find a free thread.
 */
const LONG_TEXT = 1 << 18;
const MAX_LONG_TEXTS = 2;
/** The default of `maxQueuedRequests`. */
const MAX_WAITING_TEXTS = 1_024;
/** Native memory of an encoding per token: string, offsets, masks. */
const BYTES_PER_ENCODED_TOKEN = 256;
const NEVER = new AbortController().signal;

/** Encodes text with the library `tokenizers`, on its threads. */
export class Tokenizer {
  readonly vocabulary: Vocabulary;
  /** Special tokens of a file other than tokenizer.json, by the name of their variable in templates. */
  readonly specialTokens: Readonly<Record<string, string>>;
  readonly #tokenizer: HfTokenizer;
  readonly #longTexts = new JobQueue({
    maxRunning: MAX_LONG_TEXTS,
    maxWaiting: MAX_WAITING_TEXTS,
    noun: 'long texts are waiting to be tokenized',
  });

  private constructor(tokenizer: HfTokenizer, vocabulary: Vocabulary, specialTokens: Record<string, string>) {
    this.#tokenizer = tokenizer;
    this.vocabulary = vocabulary;
    this.specialTokens = specialTokens;
  }

  /**
   * Reads tokenizer.json, else tokenizer.model or tekken.json.
   * @throws CapstanError `invalid_model` for a missing or invalid file, `unsupported_model` for an unknown decoder.
   */
  static async load(modelDir: string, keptTokens: ReadonlySet<string>): Promise<Tokenizer> {
    const text = await readTextFile(modelDir, TOKENIZER_FILE);
    if (text === undefined) return Tokenizer.#loadOther(modelDir, keptTokens);
    const stated = parseJsonObject(text, TOKENIZER_FILE);
    const object = (await hasLowerCase(modelDir)) ? withLowerCase(stated) : stated;
    checkCharsmaps(object.normalizer);
    const json = object as unknown as TokenizerJson;
    if (typeof json.model?.vocab !== 'object' || json.model.vocab === null)
      throw CapstanError.mismatch('invalid_model', `${TOKENIZER_FILE}: model.vocab`, 'a vocabulary', json.model?.vocab);
    // The library validates the file before we build our table from it.
    const tokenizer = createTokenizer(object === stated ? text : JSON.stringify(object), TOKENIZER_FILE);
    return new Tokenizer(tokenizer, buildVocabulary(json, keptTokens), {});
  }

  static async #loadOther(modelDir: string, keptTokens: ReadonlySet<string>): Promise<Tokenizer> {
    const pieces = await readBytes(modelDir, SENTENCEPIECE_FILE);
    if (pieces !== undefined) {
      const readerOf = async (name: string) => new JsonReader((await readJsonFile(modelDir, name)) ?? {}, name);
      const [config, added] = await Promise.all(['tokenizer_config.json', 'added_tokens.json'].map(readerOf));
      return Tokenizer.convert(convertSentencePiece(pieces, config, added), keptTokens, SENTENCEPIECE_FILE);
    }
    const tekken = await readJsonFile(modelDir, TEKKEN_FILE);
    if (tekken !== undefined) return Tokenizer.convert(convertTekken(tekken), keptTokens, TEKKEN_FILE);
    throw missingTokenizer(modelDir);
  }

  /**
   * @param converted A tokenizer that was converted from `file`.
   * @throws CapstanError `invalid_model`.
   */
  static convert(converted: ConvertedTokenizer, keptTokens: ReadonlySet<string>, file: string): Tokenizer {
    const tokenizer = createTokenizer(JSON.stringify(converted.tokenizer), `${file}: tokenizer`);
    const vocabulary = buildVocabulary(converted.tokenizer as unknown as TokenizerJson, keptTokens);
    return new Tokenizer(tokenizer, vocabulary, converted.specialTokens);
  }

  /**
   * Returns the token ids of a text.
   * @param addSpecialTokens Runs the post-processor, which adds tokens such as BOS.
   * @param signal Aborted when the caller no longer waits. A long text that has not started is then not encoded.
   */
  encode(text: string, addSpecialTokens: boolean, signal?: AbortSignal): Promise<Int32Array> {
    if (text.length < LONG_TEXT) return this.#encodeNow(text, addSpecialTokens);
    return this.#longTexts.run(() => this.#encodeNow(text, addSpecialTokens), signal ?? NEVER);
  }

  /**
   * Returns the tokens of an input.
   * @param options `maxTokens`: the texts of a longer input lose their ends.
   */
  encodeInput(
    input: TextInput,
    { addSpecialTokens, maxTokens }: { addSpecialTokens: boolean; maxTokens: number },
    signal?: AbortSignal,
  ): Promise<EncodedInput> {
    const length = typeof input === 'string' ? input.length : input[0].length + input[1].length;
    const encode = async (): Promise<EncodedInput> => {
      const [text, pair] = typeof input === 'string' ? [input, null] : input;
      const encoding = await this.#tokenizer.encode(text, pair, { addSpecialTokens });
      const whole = { ids: Int32Array.from(encoding.getIds()), typeIds: Int32Array.from(encoding.getTypeIds()) };
      if (length >= LONG_TEXT) reportExternalMemory(encoding, whole.ids.length * BYTES_PER_ENCODED_TOKEN);
      if (whole.ids.length <= maxTokens) return whole;
      const isSpecial = encoding.getSpecialTokensMask();
      const sequences = encoding.getSequenceIds().map((id, i) => (isSpecial[i] === 1 ? undefined : (id ?? undefined)));
      return truncateInput(whole, sequences, maxTokens);
    };
    return length < LONG_TEXT ? encode() : this.#longTexts.run(encode, signal ?? NEVER);
  }

  async #encodeNow(text: string, addSpecialTokens: boolean): Promise<Int32Array> {
    const encoding = await this.#tokenizer.encode(text, null, { addSpecialTokens });
    const ids = Int32Array.from(encoding.getIds());
    if (text.length >= LONG_TEXT) reportExternalMemory(encoding, ids.length * BYTES_PER_ENCODED_TOKEN);
    return ids;
  }
}

/** The platform package holds the library for its platform. A source tree has the npm package with all platforms. */
function loadTokenizers(): typeof Tokenizers {
  const folder = platformFolder();
  return requireNative(folder === undefined ? 'tokenizers' : join(folder, TOKENIZERS_FILE)) as typeof Tokenizers;
}

/**
 * Checks the tables of characters of a normalizer and of those that it is made of: the library follows them unchecked.
 * @throws CapstanError `invalid_model`.
 */
function checkCharsmaps(normalizer: unknown): void {
  const open = [normalizer];
  while (open.length > 0) {
    const value = open.pop();
    if (typeof value !== 'object' || value === null) continue;
    const { precompiled_charsmap: table } = value as JsonObject;
    const fault = typeof table === 'string' ? findCharsmapFault(Buffer.from(table, 'base64')) : undefined;
    if (fault !== undefined)
      throw invalidFile(`${TOKENIZER_FILE}: precompiled_charsmap`, 'a sound table of characters', fault);
    for (const part of Object.values(value)) open.push(part);
  }
}

/** Returns whether the files of sentence-transformers say that texts are in lower case, whatever the tokenizer. */
async function hasLowerCase(modelDir: string): Promise<boolean> {
  const files = await Promise.all(LENGTH_FILES.map((name) => readJsonFile(modelDir, name)));
  const index = files.findIndex((json) => json !== undefined);
  return index >= 0 && new JsonReader(files[index]!, LENGTH_FILES[index]).boolean('do_lower_case', false);
}

/** Adds the normalizer that sentence-transformers adds. */
function withLowerCase({ normalizer, ...tokenizer }: JsonObject): JsonObject {
  const own = (normalizer ?? {}) as JsonObject;
  const list: readonly unknown[] = Array.isArray(own.normalizers) ? own.normalizers : [own].filter(({ type }) => type);
  return { ...tokenizer, normalizer: { type: 'Sequence', normalizers: [{ type: 'Lowercase' }, ...list] } };
}

/** `source` names the tokenizer in errors. */
function createTokenizer(text: string, source: string): HfTokenizer {
  const library = loadTokenizers();
  try {
    const tokenizer = library.Tokenizer.fromString(text);
    // Some files contain these training settings. Prompts must be neither truncated nor padded.
    tokenizer.disableTruncation();
    tokenizer.disablePadding();
    return tokenizer;
  } catch (cause) {
    // The message quotes tokens.
    const reason = escapeControls((cause as Error).message);
    throw new CapstanError(
      'invalid_model',
      `${source}: expected a valid tokenizer, got one that does not load (${reason})`,
      { param: source, cause },
    );
  }
}

/** Files of tokenizers that transformers converts. */
const OTHER_FILES = ['vocab.json', 'vocab.txt', 'sentencepiece.bpe.model', 'spiece.model'];

function missingTokenizer(modelDir: string): CapstanError {
  const expected = `the file, ${SENTENCEPIECE_FILE} or ${TEKKEN_FILE}`;
  const other = OTHER_FILES.find((name) => existsSync(join(modelDir, name)));
  const received =
    other === undefined
      ? 'none'
      : `only ${other} (convert it with AutoTokenizer.from_pretrained(…).save_pretrained(…))`;
  return new CapstanError(
    'invalid_model',
    `${TOKENIZER_FILE}: expected ${expected} in the model directory, got ${received}`,
    { param: TOKENIZER_FILE, expected, received: other ?? 'none' },
  );
}
