import type { Embeddings, EmbeddingsParams } from '@langchain/core/embeddings';
import { checkEngine } from '../checks';
import type { Engine } from '../engine';
import type { EmbedOptions } from '../pooling';
import type { LangChainCore } from './core';

/** Options of {@link Engine.embed} that hold for all calls. */
export type EmbeddingsSettings = Pick<EmbedOptions, 'dimensions' | 'normalize' | 'truncatePromptTokens'>;

/** Fields of a new `CapstanEmbeddings`. */
export interface CapstanEmbeddingsFields extends EmbeddingsParams, EmbeddingsSettings {
  /** An engine with the task `embed`. The embeddings do not close it. */
  engine: Engine;
}

/** Embeddings of LangChain that are computed in this process. */
export interface CapstanEmbeddings extends Embeddings {
  /** The engine of the model. */
  readonly engine: Engine;
}

/**
 * Returns the class of the embeddings. A model with the prompts `query` and `document` gets each text with the prompt
 * of its kind.
 */
export function createEmbeddings(core: LangChainCore): {
  /** Creates the embeddings. Each call checks the settings. */
  new (fields: CapstanEmbeddingsFields): CapstanEmbeddings;
} {
  return class CapstanEmbeddings extends core.Embeddings {
    readonly engine: Engine;
    readonly #settings: EmbeddingsSettings;

    constructor({ engine, dimensions, normalize, truncatePromptTokens, ...params }: CapstanEmbeddingsFields) {
      super(params);
      this.engine = checkEngine(engine);
      this.#settings = { dimensions, normalize, truncatePromptTokens };
    }

    override embedDocuments(documents: string[]): Promise<number[][]> {
      return this.#embed(documents, 'document');
    }

    override async embedQuery(query: string): Promise<number[]> {
      return (await this.#embed([query], 'query'))[0];
    }

    async #embed(texts: string[], prompt: string): Promise<number[][]> {
      if (texts.length === 0) return [];
      const hasPrompt = this.engine.info.promptNames?.includes(prompt) === true;
      const options = { ...this.#settings, ...(hasPrompt ? { promptName: prompt } : {}) };
      const { embeddings } = await this.engine.embed(texts, options);
      return embeddings.map((embedding) => Array.from(embedding));
    }
  };
}
