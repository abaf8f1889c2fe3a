/** Embeddings and scores against the goldens of sentence-transformers and transformers (`make_embeddings.py`). */
import { existsSync } from 'node:fs';
import path from 'node:path';
import { type EngineOptions } from '../../ts';
import { loadAddon } from '../../ts/addon';
import { listPoolingCases, withEngine, worstCosine } from './embedding-golden';

const cases = listPoolingCases(path.join(__dirname, 'fixtures', 'embeddings'));
const embedders = cases.flatMap(({ golden, ...rest }) => (golden.task === 'embed' ? [{ ...rest, golden }] : []));
const rerankers = cases.flatMap(({ golden, ...rest }) => (golden.task === 'score' ? [{ ...rest, golden }] : []));

test('the fixtures cover every family', () => {
  expect(cases.map(({ name }) => name.replace(/-.*/, ''))).toEqual(
    expect.arrayContaining(['bert', 'gemma3', 'modernbert', 'qwen3', 'roberta', 'xlmr']),
  );
});

describe.each(embedders)('$name', ({ directory, golden }) => {
  /** The norm of an embedding counts too, because some models do not normalize. */
  const bound = golden.dtype === 'f32' ? 0.99999 : 0.999;

  test.each(['auto', 'f32', ...(golden.dtype === 'bf16' ? (['bf16'] as const) : [])] as const)(
    'embeds as sentence-transformers, computing in %s',
    async (computeDtype) => {
      await withEngine(directory, { computeDtype }, async (engine) => {
        expect(engine.info.task).toBe('embed');
        expect(engine.info.embeddingSize).toBe(golden.embeddings[0].length);
        expect(engine.info.promptNames).toEqual(Object.keys(golden.prompts));
        expect(engine.info.maxModelLen).toBe(golden.long.length);
        const { embeddings } = await engine.embed(golden.texts);
        expect(worstCosine(embeddings, golden.embeddings)).toBeGreaterThan(bound);
        // Without the files of sentence-transformers embeddings are normalized; sentence-transformers leaves them.
        const length = (values: ArrayLike<number>) => Math.hypot(...Array.from(values));
        const isPlain = !existsSync(path.join(directory, 'modules.json'));
        embeddings.forEach((values, i) =>
          expect(Math.abs(length(values) / (isPlain ? 1 : length(golden.embeddings[i])) - 1)).toBeLessThan(
            golden.dtype === 'f32' ? 1e-4 : 0.02,
          ),
        );
      });
    },
  );

  test.each(loadAddon().isas)('embeds the same with the instructions of %s', async (isa) => {
    await withEngine(directory, { isa: isa as NonNullable<EngineOptions['isa']> }, async (engine) => {
      expect(engine.info.isa).toBe(isa);
      expect(worstCosine((await engine.embed(golden.texts)).embeddings, golden.embeddings)).toBeGreaterThan(bound);
    });
  });

  test('prompts, dimensions, truncation and token ids', async () => {
    await withEngine(directory, { computeDtype: 'f32' }, async (engine) => {
      const two = golden.texts.slice(1, 3);
      for (const [promptName, expected] of Object.entries(golden.prompts))
        expect(worstCosine((await engine.embed(two, { promptName })).embeddings, expected)).toBeGreaterThan(bound);
      const short = await engine.embed(two, { dimensions: 8, normalize: true });
      expect(worstCosine(short.embeddings, golden.short)).toBeGreaterThan(bound);
      for (const values of short.embeddings) expect(Math.hypot(...values)).toBeCloseTo(1, 5);
      const truncated = await engine.embed(golden.long.text, { truncatePromptTokens: -1 });
      expect(truncated.usage.promptTokens).toBeLessThanOrEqual(golden.long.length);
      expect(worstCosine(truncated.embeddings, [golden.long.embedding])).toBeGreaterThan(bound);
      // A default prompt is for texts only.
      if (engine.info.promptNames!.length > 0) return;
      const ofTokens = await engine.embed(golden.tokens);
      expect(ofTokens.embeddings).toEqual((await engine.embed(golden.texts)).embeddings);
      expect(ofTokens.usage.promptTokens).toBe(golden.tokens.flat().length);
    });
  });
});

describe.each(rerankers)('$name', ({ directory, golden }) => {
  const { query, documents } = golden;

  function expectScores(ours: readonly number[], theirs: readonly number[]): void {
    ours.forEach((score, i) =>
      expect(Math.abs(score - theirs[i])).toBeLessThan(1e-4 * Math.max(1, Math.abs(theirs[i]))),
    );
    const ranks = (scores: readonly number[]) => scores.map((_, i) => i).sort((a, b) => scores[b] - scores[a] || a - b);
    expect(ranks(ours)).toEqual(ranks(theirs));
  }

  test('scores as its judge', async () => {
    await withEngine(directory, { task: 'score', computeDtype: 'f32' }, async (engine) => {
      expect(engine.info.task).toBe('score');
      expectScores((await engine.rerank(query, documents)).scores, golden.scores);
      const pairs = documents.map((document) => [query, document] as const);
      expect((await engine.score(pairs)).scores).toEqual((await engine.rerank(query, documents)).scores);
      const truncated = await engine.rerank(query, documents, { truncatePromptTokens: golden.truncatedTo });
      expectScores(truncated.scores, golden.truncated);
    });
  });
});
