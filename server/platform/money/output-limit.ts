import { ApiError, INPUT_TOKENS_PATH } from 'capstan/internal';
import { type FieldScanner, findFields, type JsonField, jsonOf } from '../gateway/json-fields';
import { OneModel } from '../gateway/model-field';

/** How the requests of a path limit their output. */
interface OutputFields {
  /** Fields that limit it. The first is added to a request without them. */
  readonly limits: readonly string[];
  /** What a request without them generates. Default: the `max_output_tokens` of the price. */
  readonly defaultTokens?: number;
}

/** Paths whose requests cost money. Without fields they have no output. */
const BILLED_PATHS: ReadonlyMap<string, OutputFields | undefined> = new Map<string, OutputFields | undefined>([
  ['/v1/chat/completions', { limits: ['max_tokens', 'max_completion_tokens'] }],
  ['/v1/completions', { limits: ['max_tokens'], defaultTokens: 16 }],
  ['/v1/responses', { limits: ['max_output_tokens'] }],
  ['/v1/messages', { limits: ['max_tokens'] }],
  ['/v1/embeddings', undefined],
  ['/v1/rerank', undefined],
  ['/v2/rerank', undefined],
  ['/rerank', undefined],
  ['/v1/score', undefined],
  ['/score', undefined],
]);
/** Paths that compute nothing that costs money. */
const FREE_PATHS = new Set(['/tokenize', '/detokenize', '/v1/messages/count_tokens', INPUT_TOKENS_PATH, '/v1/files']);
/** Fields by which any server may limit the output. Each is lowered. */
const LIMIT_NAMES = [
  ...['max_tokens', 'max_completion_tokens', 'max_output_tokens'],
  ...['max_new_tokens', 'n_predict', 'num_predict'],
];
const COUNT_NAMES = ['n', 'best_of'];
/** Most choices of a prompt. No server has as many. */
const MAX_CHOICES = 1_000_000;
/** No number of tokens or choices is longer. */
const MAX_NUMBER_BYTES = 32;
const ALL_NAMES: ReadonlySet<string> = new Set([
  ...LIMIT_NAMES,
  ...COUNT_NAMES,
  'prompt',
  'model',
  'stream',
  'background',
  'modalities',
  'audio',
]);

export type PathKind = 'billed' | 'free' | 'unknown';

/** @param path Path at the deployment. */
export function kindOfPath(method: string, path: string): PathKind {
  if (BILLED_PATHS.has(path)) return method === 'POST' ? 'billed' : 'free';
  if (FREE_PATHS.has(path)) return 'free';
  return method === 'GET' || method === 'HEAD' || method === 'OPTIONS' || method === 'DELETE' ? 'free' : 'unknown';
}

/** Whether requests of a path generate tokens. */
export function hasOutput(path: string): boolean {
  return BILLED_PATHS.get(path) !== undefined;
}

/** The output that the body of a request asks for. */
export class OutputLimit {
  /** What the body names as its model. */
  readonly model: string | undefined;
  /** Outputs of the request: choices of all prompts. 0: its path has no output. */
  readonly numOutputs: number;
  /** Tokens of each output. undefined: the body has no limit. */
  readonly maxTokens: number | undefined;
  /** Whether every server takes the body for a request for a stream. */
  readonly isStream: boolean;
  readonly #numBytes: number;
  readonly #found: Pick<FieldScanner, 'fields' | 'contentStart' | 'isEmpty'>;
  readonly #output: OutputFields | undefined;

  /**
   * Throws ApiError for a body that is not a JSON object, names two models, has a limit that is not a number, or asks
   * for a response in the background.
   */
  static async read(path: string, body: Buffer): Promise<OutputLimit> {
    const models = new OneModel();
    const found = await findFields(body, {
      names: ALL_NAMES,
      notAnObject,
      onKey: (name, isLowerCase) => {
        if (name === 'model') models.check(isLowerCase);
      },
    });
    return new OutputLimit(path, body.length, found);
  }

  private constructor(path: string, numBytes: number, found: FieldScanner) {
    this.#numBytes = numBytes;
    this.#found = found;
    this.#output = BILLED_PATHS.get(path);
    this.model = modelOf(this.#fieldsOf(['model']).at(0));
    const streams = this.#fieldsOf(['stream']);
    this.isStream = streams.length > 0 && streams.every(({ text }) => text?.toString() === 'true');
    if (this.#output === undefined) {
      this.numOutputs = 0;
      this.maxTokens = 0;
      return;
    }
    if (path === '/v1/responses') this.#fieldsOf(['background']).forEach(demandForeground);
    if (path === '/v1/chat/completions') this.#fieldsOf(['modalities', 'audio']).forEach(demandText);
    const counts = this.#numbersOf(COUNT_NAMES);
    const numChoices = highest(counts, 1);
    if (numChoices > MAX_CHOICES)
      throw new ApiError('invalid_value', `n: expected at most ${MAX_CHOICES} choices`, { param: 'n' });
    const prompts = path === '/v1/completions' ? this.#fieldsOf(['prompt']) : [];
    this.numOutputs = numChoices * highest(prompts.map(countPrompts), 1);
    const isLimited = this.#numbersOf(this.#output.limits).length > 0;
    const tokens = this.#numbersOf(LIMIT_NAMES);
    this.maxTokens = isLimited ? highest(tokens, 0) : this.#output.defaultTokens;
  }

  /**
   * Returns a body with outputs of at most `maxTokens`. Other bytes do not change. Throws ApiError for a limit of 0.
   * @param body That of the request, perhaps with another value of `model`.
   */
  withLimit(body: Buffer, maxTokens: number): Buffer {
    const output = this.#output;
    if (output === undefined) return body;
    const limits = this.#fieldsOf(LIMIT_NAMES);
    const modelStart = this.#fieldsOf(['model']).at(0)?.start ?? Infinity;
    const numAdded = body.length - this.#numBytes;
    const isLimited = limits.some(({ name }) => output.limits.includes(name));
    const pieces: Buffer[] = [];
    let from = 0;
    const replace = (start: number, end: number, text: string): void => {
      pieces.push(body.subarray(from, start), Buffer.from(text));
      from = end;
    };
    const { contentStart, isEmpty } = this.#found;
    if (!isLimited) replace(contentStart, contentStart, `"${output.limits[0]}":${maxTokens}${isEmpty ? '' : ','}`);
    for (const field of limits) {
      const value = numberOf(field);
      if (value === 0) throw noTokens(field.name);
      const shift = field.start > modelStart ? numAdded : 0;
      if (value === undefined || value > maxTokens) replace(field.start + shift, field.end + shift, String(maxTokens));
    }
    return pieces.length === 0 ? body : Buffer.concat([...pieces, body.subarray(from)]);
  }

  #numbersOf(names: readonly string[]): number[] {
    return this.#fieldsOf(names).flatMap((field) => numberOf(field) ?? []);
  }

  #fieldsOf(names: readonly string[]): JsonField[] {
    return this.#found.fields.filter(({ name }) => names.includes(name));
  }
}

/** Returns undefined for null and for negative numbers, which some servers read as no limit. */
function numberOf({ name, start, end, text }: JsonField): number | undefined {
  const value = text === undefined || end - start > MAX_NUMBER_BYTES ? undefined : jsonOf(text, notAnObject);
  if (value === null) return undefined;
  if (typeof value !== 'number' || !Number.isInteger(value))
    throw new ApiError('invalid_type', `${name}: expected an integer`, { param: name });
  return value < 0 ? undefined : value;
}

function noTokens(name: string): ApiError {
  return new ApiError('invalid_value', `${name}: with a budget, expected at least 1: some servers read 0 as no limit`, {
    param: name,
  });
}

/** The first response to such a request has no usage, and later ones are free. */
function demandForeground({ name, text }: JsonField): void {
  if (!['false', 'null'].includes(text?.toString() ?? ''))
    throw new ApiError('unsupported_value', `${name}: with a budget, expected false`, { param: name });
}

/** Tokens of audio cost several times as much as those of text, which the price is for. */
function demandText({ name, text }: JsonField): void {
  const value = text === undefined ? undefined : jsonOf(text, notAnObject);
  const isText = name === 'modalities' && Array.isArray(value) && value.every((modality) => modality === 'text');
  if (value === null || isText) return;
  const expected = name === 'modalities' ? '["text"]' : 'no value';
  throw new ApiError('unsupported_value', `${name}: with a budget, expected ${expected}: audio has no price`, {
    param: name,
  });
}

/** A list of token ids is one prompt. */
function countPrompts({ list }: JsonField): number {
  return list === undefined || list.isOfNumbers ? 1 : list.numElements;
}

/** Returns undefined for a model name that is too long to be kept. */
function modelOf(field: JsonField | undefined): string | undefined {
  const model = field?.text === undefined ? undefined : jsonOf(field.text, notAnObject);
  return typeof model === 'string' ? model : undefined;
}

function notAnObject(): ApiError {
  return new ApiError(
    'invalid_json',
    'The body is not valid JSON: expected an object, because a budget limits the request',
  );
}

/** Returns the highest of many values, and of `least`. */
function highest(values: readonly number[], least: number): number {
  return values.reduce((found, value) => Math.max(found, value), least);
}
