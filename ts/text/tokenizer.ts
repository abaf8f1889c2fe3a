import { existsSync } from 'node:fs';
import { join } from 'node:path';
import type * as Tokenizers from 'tokenizers';
import { CapstanError } from '../errors';
import { JobQueue } from '../job-queue';
import { findCharsmapFault } from '../model/gguf/charsmap';
import { type JsonObject, parseJsonObject, readTextFile } from '../model/json-file';
import { invalidFile } from '../model/weight-file';
import { requireNative } from '../package-root';
import { platformFolder, TOKENIZERS_FILE } from '../platform-package';
import { reportExternalMemory } from './external-memory';
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
  readonly #tokenizer: HfTokenizer;
  readonly #longTexts = new JobQueue({
    maxRunning: MAX_LONG_TEXTS,
    maxWaiting: MAX_WAITING_TEXTS,
    noun: 'long texts are waiting to be tokenized',
  });

  private constructor(tokenizer: HfTokenizer, vocabulary: Vocabulary) {
    this.#tokenizer = tokenizer;
    this.vocabulary = vocabulary;
  }

  /**
   * @throws CapstanError `invalid_model` for a missing or invalid tokenizer.json, `unsupported_model` for an unknown
   * decoder.
   */
  static async load(modelDir: string, keptTokens: ReadonlySet<string>): Promise<Tokenizer> {
    const text = await readTextFile(modelDir, TOKENIZER_FILE);
    if (text === undefined) throw missingTokenizer(modelDir);
    const object = parseJsonObject(text, TOKENIZER_FILE);
    checkCharsmaps(object.normalizer);
    const json = object as unknown as TokenizerJson;
    if (typeof json.model?.vocab !== 'object' || json.model.vocab === null)
      throw CapstanError.mismatch('invalid_model', `${TOKENIZER_FILE}: model.vocab`, 'a vocabulary', json.model?.vocab);
    // The library validates the file before we build our table from it.
    const tokenizer = createTokenizer(text, TOKENIZER_FILE);
    return new Tokenizer(tokenizer, buildVocabulary(json, keptTokens));
  }

  /**
   * @param json The content of a tokenizer.json that was converted from the metadata of `file`.
   * @throws CapstanError `invalid_model`.
   */
  static convert(json: JsonObject, keptTokens: ReadonlySet<string>, file: string): Tokenizer {
    const tokenizer = createTokenizer(JSON.stringify(json), `${file}: tokenizer`);
    return new Tokenizer(tokenizer, buildVocabulary(json as unknown as TokenizerJson, keptTokens));
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
    throw new CapstanError(
      'invalid_model',
      `${source}: expected a valid tokenizer, got one that does not load (${(cause as Error).message})`,
      { param: source, cause },
    );
  }
}

function missingTokenizer(modelDir: string): CapstanError {
  const other = ['tokenizer.model', 'vocab.json', 'tekken.json'].find((name) => existsSync(join(modelDir, name)));
  const received =
    other === undefined
      ? 'none'
      : `only ${other} (convert it with AutoTokenizer.from_pretrained(…).save_pretrained(…))`;
  return new CapstanError(
    'invalid_model',
    `${TOKENIZER_FILE}: expected the file in the model directory, got ${received}`,
    {
      param: TOKENIZER_FILE,
      expected: TOKENIZER_FILE,
      received: other ?? 'none',
    },
  );
}
