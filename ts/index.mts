// The entry for `import`; everything lives in the CommonJS build, so that a process that uses both has one copy.
export {
  CapstanError,
  ChatSession,
  defineTool,
  describeModel,
  Engine,
  ERROR_CODES,
  generateObject,
  listModels,
  machineInfo,
  MAX_BAD_WORDS,
  MAX_STRUCTURED_CHOICES,
  modelInfo,
  pullModel,
  quantize,
  removeModel,
  runTools,
} from './index.js';
export type * from './index.js';
