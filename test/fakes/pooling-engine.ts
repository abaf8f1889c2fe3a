/** An engine with the fake addon whose embeddings count the tokens of a text. */
import {
  CapstanError,
  type EmbedOptions,
  type EmbedResult,
  Engine,
  type EngineInfo,
  type EngineOptions,
  type PoolingOptions,
  type ScoreResult,
} from '../../ts';
import { tinyModel } from './tiny-model';

export const EMBEDDING_SIZE = 8;

type Input = string | readonly number[];

/** A call that the engine has received. */
export interface PoolingRequest {
  method: 'embed' | 'score' | 'rerank';
  inputs: unknown;
  options: EmbedOptions;
}

/** State that tests set and inspect. */
export const pooling = {
  requests: [] as PoolingRequest[],
  /** Awaited before a result. Default: at once. */
  gate: Promise.resolve() as Promise<unknown>,
  failure: undefined as CapstanError | undefined,
  /** Overrides the size of the embeddings. */
  size: EMBEDDING_SIZE,
  reset(): void {
    Object.assign(pooling, { requests: [], gate: Promise.resolve(), failure: undefined, size: EMBEDDING_SIZE });
  },
};

const PROMPTS: Readonly<Record<string, string>> = { query: 'query: ', document: '' };

/** Loads an engine with the task. Its `embed`, `score` and `rerank` need no native code. */
export async function loadPoolingEngine(task: 'embed' | 'score', options: EngineOptions = {}): Promise<Engine> {
  process.env.CAPSTAN_ADDON = require.resolve('./fake-addon');
  const engine = await Engine.load(tinyModel(), options);
  const info: EngineInfo = {
    ...engine.info,
    task,
    prefixCache: false,
    ...(task === 'embed' ? { embeddingSize: EMBEDDING_SIZE, promptNames: Object.keys(PROMPTS) } : {}),
  };
  const fakes = new Map<PropertyKey, unknown>([
    ['info', info],
    ['embed', (inputs: Input | readonly Input[], embedOptions: EmbedOptions) => embed(engine, inputs, embedOptions)],
    [
      'score',
      (pairs: readonly (readonly [string, string])[], given: PoolingOptions) => score(engine, 'score', pairs, given),
    ],
    [
      'rerank',
      (query: string, documents: readonly string[], given: PoolingOptions) =>
        score(
          engine,
          'rerank',
          documents.map((document) => [query, document] as const),
          given,
        ),
    ],
  ]);
  return new Proxy(engine, {
    get(target, name) {
      if (fakes.has(name)) return fakes.get(name);
      const value: unknown = Reflect.get(target, name, target);
      return typeof value === 'function' ? (value as (...args: unknown[]) => unknown).bind(target) : value;
    },
  });
}

async function embed(engine: Engine, inputs: Input | readonly Input[], options: EmbedOptions): Promise<EmbedResult> {
  await begin({ method: 'embed', inputs, options });
  const { dimensions = pooling.size, normalize = true, promptName } = options;
  if (dimensions > pooling.size)
    throw CapstanError.argument('dimensions', `an integer from 1 to ${pooling.size}`, dimensions);
  if (promptName !== undefined && !Object.hasOwn(PROMPTS, promptName))
    throw CapstanError.argument('promptName', `one of ${Object.keys(PROMPTS).join(', ')}`, promptName);
  const list = typeof inputs === 'string' || typeof inputs[0] === 'number' ? [inputs as Input] : (inputs as Input[]);
  const tokens = tokenize(
    engine,
    'inputs',
    list.map((input) => (typeof input === 'string' ? PROMPTS[promptName ?? 'document'] + input : input)),
    options,
  );
  return {
    embeddings: tokens.map((ids) => vector(ids, dimensions, normalize)),
    usage: { promptTokens: tokens.flat().length, cachedTokens: 0 },
  };
}

async function score(
  engine: Engine,
  method: 'score' | 'rerank',
  pairs: readonly (readonly [string, string])[],
  options: PoolingOptions,
): Promise<ScoreResult> {
  await begin({ method, inputs: pairs, options });
  const tokens = tokenize(engine, method === 'rerank' ? 'documents' : 'pairs', pairs.flat(), options);
  const vectors = tokens.map((ids) => vector(ids, EMBEDDING_SIZE, true));
  return {
    scores: pairs.map((_pair, i) => vectors[2 * i].reduce((sum, value, k) => sum + value * vectors[2 * i + 1][k], 0)),
    usage: { promptTokens: tokens.flat().length, cachedTokens: 0 },
  };
}

async function begin(request: PoolingRequest): Promise<void> {
  pooling.requests.push(request);
  const { signal } = request.options;
  await Promise.race([
    pooling.gate,
    new Promise((_resolve, reject) => {
      const fail = (): void => reject(new CapstanError('aborted', 'The call was aborted', { cause: signal?.reason }));
      if (signal?.aborted === true) fail();
      signal?.addEventListener('abort', fail);
    }),
  ]);
  if (pooling.failure !== undefined) throw pooling.failure;
}

/** The tokens of the tiny model are bytes. */
function tokenize(
  { info: { maxModelLen, vocabSize } }: Engine,
  name: string,
  inputs: readonly Input[],
  { truncatePromptTokens: limit }: PoolingOptions,
): number[][] {
  const max = limit === undefined || limit < 0 ? maxModelLen : limit;
  return inputs.map((input, i) => {
    const ids = typeof input === 'string' ? [...Buffer.from(input)] : [...input];
    for (const id of ids)
      if (id >= vocabSize) throw CapstanError.argument(`${name}[${i}]`, `token ids below ${vocabSize}`, id);
    if (limit === undefined && ids.length > max)
      throw CapstanError.mismatch('context_length_exceeded', `${name}[${i}]`, `at most ${max} tokens`, ids.length);
    return ids.slice(0, max);
  });
}

/** Counts the token ids modulo the size. Texts with the same letters are similar. */
function vector(ids: readonly number[], size: number, isNormalized: boolean): Float32Array {
  const counts = new Float32Array(size);
  for (const id of ids) counts[id % size] += 1;
  const length = isNormalized ? Math.hypot(...counts) : 1;
  return counts.map((count) => count / (length || 1));
}
