// The entry for `import`; everything lives in the CommonJS build.
export { embeddingModel, languageModel, rerankingModel } from './index.js';
export type * from './index.js';
