/** Embeddings and scores of GGUF files of llama.cpp's converter, against the goldens of `make_embeddings.py`. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { Engine, type EngineOptions } from '../../ts';

interface Golden {
  task: 'embed' | 'score';
  dtype: 'f32' | 'bf16';
  texts: string[];
  embeddings: number[][];
  tokens: number[][];
  query: string;
  documents: string[];
  scores: number[];
}

const FIXTURES = path.join(__dirname, 'fixtures');
const FILES = path.join(FIXTURES, 'gguf', 'embeddings');
const cases = readdirSync(FILES)
  .map((name) => name.replace(/\.gguf$/, ''))
  .sort()
  .map((name) => {
    const directory = path.join(FIXTURES, 'embeddings', name);
    const golden = JSON.parse(readFileSync(path.join(directory, 'golden.json'), 'utf8')) as Golden;
    return { name, file: path.join(FILES, `${name}.gguf`), directory, golden };
  });

function cosine(a: ArrayLike<number>, b: ArrayLike<number>): number {
  const product = (x: ArrayLike<number>, y: ArrayLike<number>) =>
    Array.from(x).reduce((sum, value, i) => sum + value * y[i], 0);
  return product(a, b) / Math.sqrt(product(a, a) * product(b, b));
}

async function withEngine<T>(model: string, options: EngineOptions, use: (engine: Engine) => Promise<T>): Promise<T> {
  const engine = await Engine.load(model, { device: 'cpu', threads: 2, ...options });
  try {
    return await use(engine);
  } finally {
    await engine.close();
  }
}

/** The prompt that sentence-transformers adds by default. GGUF files have none. */
function defaultPrompt(directory: string): string {
  const file = path.join(directory, 'config_sentence_transformers.json');
  if (!existsSync(file)) return '';
  const { prompts, default_prompt_name: name } = JSON.parse(readFileSync(file, 'utf8')) as {
    prompts: Record<string, string>;
    default_prompt_name: string | null;
  };
  return name === null ? '' : prompts[name];
}

const embedders = cases.filter(({ golden }) => golden.task === 'embed');
const rerankers = cases.filter(({ golden }) => golden.task === 'score');

test('the files cover both tasks', () => {
  expect([embedders.length, rerankers.length]).toEqual([8, 5]);
});

describe.each(embedders)('$name', ({ file, directory, golden }) => {
  const bound = golden.dtype === 'f32' ? 0.99999 : 0.999;

  test('embeds texts as sentence-transformers and tokens as the model directory', async () => {
    const fromTokens = await withEngine(directory, {}, (engine) => engine.embed(golden.tokens));
    await withEngine(file, {}, async (engine) => {
      expect(engine.info.task).toBe('embed');
      expect(engine.info.embeddingSize).toBe(golden.embeddings[0].length);
      const prompt = defaultPrompt(directory);
      const { embeddings } = await engine.embed(golden.texts.map((text) => prompt + text));
      embeddings.forEach((values, i) => expect(cosine(values, golden.embeddings[i])).toBeGreaterThan(bound));
      (await engine.embed(golden.tokens)).embeddings.forEach((values, i) =>
        expect(cosine(values, fromTokens.embeddings[i])).toBeGreaterThan(bound),
      );
    });
  });
});

describe.each(rerankers)('$name', ({ file, golden }) => {
  test('scores as its judge', async () => {
    await withEngine(file, { computeDtype: 'f32' }, async (engine) => {
      expect(engine.info.task).toBe('score');
      const { scores } = await engine.rerank(golden.query, golden.documents);
      scores.forEach((score, i) =>
        expect(Math.abs(score - golden.scores[i])).toBeLessThan(1e-4 * Math.max(1, Math.abs(golden.scores[i]))),
      );
    });
  });
});
