import type { EmbeddingModelV4 } from '@ai-sdk/provider' with { 'resolution-mode': 'import' };
import { checkEngine } from '../checks';
import type { Engine } from '../engine';
import { MAX_INPUTS } from '../pooler';
import type { EmbedOptions } from '../pooling';
import { orAborted } from './language-model';

/** Defaults of each call, which `providerOptions.capstan` overrides. */
export type EmbeddingSettings = Pick<EmbedOptions, 'dimensions' | 'normalize' | 'promptName' | 'truncatePromptTokens'>;

/** Returns an embedding model for `embed` and `embedMany` of the AI SDK. */
export function embeddingModel(engine: Engine, settings: EmbeddingSettings = {}): EmbeddingModelV4 {
  return {
    specificationVersion: 'v4',
    provider: 'capstan',
    modelId: checkEngine(engine).info.modelName,
    maxEmbeddingsPerCall: MAX_INPUTS,
    supportsParallelCalls: true,
    doEmbed: async ({ values, dimensions, abortSignal, providerOptions }) => {
      const call = engine.embed(values, {
        ...settings,
        ...(dimensions === undefined ? {} : { dimensions }),
        ...(providerOptions?.capstan as EmbeddingSettings | undefined),
        signal: abortSignal,
      });
      const { embeddings, usage } = await orAborted(call, abortSignal);
      return {
        embeddings: embeddings.map((embedding) => Array.from(embedding)),
        usage: { tokens: usage.promptTokens },
        warnings: [],
      };
    },
  };
}
