/** The goldens of models that pool (`make_embeddings.py`), and the differences of results from them. */
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { Engine, type EngineOptions } from '../../ts';

export interface EmbeddingGolden {
  case: string;
  task: 'embed';
  dtype: 'f32' | 'bf16';
  texts: string[];
  embeddings: number[][];
  tokens: number[][];
  /** A text that is longer than the model takes. */
  long: { text: string; embedding: number[]; length: number };
  /** Of the texts 1 and 2, by the name of a prompt. */
  prompts: Record<string, number[][]>;
  /** Eight dimensions of the texts 1 and 2, normalized. */
  short: number[][];
}

export interface ScoreGolden {
  case: string;
  task: 'score';
  dtype: 'f32' | 'bf16';
  query: string;
  documents: string[];
  scores: number[];
  truncated: number[];
  truncatedTo: number;
}

export interface PoolingCase<G = EmbeddingGolden | ScoreGolden> {
  name: string;
  directory: string;
  golden: G;
}

export function listPoolingCases(folder: string): PoolingCase[] {
  return readdirSync(folder)
    .sort()
    .map((name) => {
      const directory = path.join(folder, name);
      const golden = JSON.parse(readFileSync(path.join(directory, 'golden.json'), 'utf8')) as PoolingCase['golden'];
      return { name, directory, golden };
    });
}

/** Returns the smallest cosine of the pairs, or NaN if their sizes differ. Two vectors of zeros are alike. */
export function worstCosine(ours: readonly ArrayLike<number>[], theirs: readonly ArrayLike<number>[]): number {
  if (ours.length !== theirs.length || ours.some(({ length }, i) => length !== theirs[i].length)) return NaN;
  return Math.min(...ours.map((values, i) => cosine(values, theirs[i])));
}

function cosine(a: ArrayLike<number>, b: ArrayLike<number>): number {
  let product = 0;
  let aa = 0;
  let bb = 0;
  for (let i = 0; i < a.length; i++) {
    product += a[i] * b[i];
    aa += a[i] ** 2;
    bb += b[i] ** 2;
  }
  return aa === 0 && bb === 0 ? 1 : product / Math.sqrt(aa * bb);
}

export async function withEngine<T>(
  directory: string,
  options: EngineOptions,
  use: (engine: Engine) => Promise<T>,
): Promise<T> {
  const engine = await Engine.load(directory, { device: 'cpu', threads: 2, ...options });
  try {
    return await use(engine);
  } finally {
    await engine.close();
  }
}
