/**
 * Models of an engine in this process for the AI SDK (specification v4 of `@ai-sdk/provider`).
 * @module capstan/ai-sdk
 */
export { embeddingModel, type EmbeddingSettings } from './embedding-model';
export { languageModel, type LanguageSettings } from './language-model';
export { rerankingModel, type RerankingSettings } from './reranking-model';
