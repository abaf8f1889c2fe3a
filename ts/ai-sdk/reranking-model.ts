import type { RerankingModelV4 } from '@ai-sdk/provider' with { 'resolution-mode': 'import' };
import { checkEngine } from '../checks';
import type { Engine } from '../engine';
import type { PoolingOptions } from '../pooling';
import { orAborted } from './language-model';

/** Defaults of each call, which `providerOptions.capstan` overrides. */
export type RerankingSettings = Pick<PoolingOptions, 'truncatePromptTokens'>;

/** Returns a reranking model for `rerank` of the AI SDK. Documents that are objects are scored as JSON text. */
export function rerankingModel(engine: Engine, settings: RerankingSettings = {}): RerankingModelV4 {
  const { modelName: modelId } = checkEngine(engine).info;
  return {
    specificationVersion: 'v4',
    provider: 'capstan',
    modelId,
    doRerank: async ({ query, documents, topN, abortSignal, providerOptions }) => {
      const texts =
        documents.type === 'text' ? documents.values : documents.values.map((value) => JSON.stringify(value));
      const call = engine.rerank(query, texts, {
        ...settings,
        ...(providerOptions?.capstan as RerankingSettings | undefined),
        signal: abortSignal,
      });
      const { scores } = await orAborted(call, abortSignal);
      const ranking = scores.map((relevanceScore, index) => ({ index, relevanceScore }));
      ranking.sort((a, b) => b.relevanceScore - a.relevanceScore);
      return { ranking: ranking.slice(0, topN), response: { modelId } };
    },
  };
}
