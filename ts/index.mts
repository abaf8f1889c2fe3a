// The entry for `import`; everything lives in the CommonJS build, so that a process that uses both has one copy.
export {
  CapstanError,
  describeModel,
  Engine,
  ERROR_CODES,
  listModels,
  MAX_BAD_WORDS,
  MAX_STRUCTURED_CHOICES,
  modelInfo,
  pullModel,
  removeModel,
} from './index.js';
export type * from './index.js';
