/** Capstan: native LLM inference for Node.js. */
export type { StepStats } from './addon-types';
export { MAX_BAD_WORDS } from './bad-words';
export { type ChatOptions, type ToolChoice } from './chat';
export { type CallContext, Engine, type EngineInfo, type EngineStats, type GenerateOptions } from './engine';
export { CapstanError, type CapstanErrorCode, type CapstanErrorDetails, ERROR_CODES } from './errors';
export {
  type ChatEvent,
  type Choice,
  type DeltaEvent,
  type FinishEvent,
  type FinishReason,
  type GenerateEvent,
  type GenerationResult,
  type ReasoningEvent,
  type TokenLogprob,
  type ToolCallEvent,
  type Usage,
} from './events';
export { type Generation, type Submission } from './generation';
export { type LoadProgress } from './load';
export { type EngineOptions } from './options';
export { type SpeculativeOptions } from './speculation';
export { type SamplingDefaults, type SamplingParams } from './sampling';
export { MAX_STRUCTURED_CHOICES, type StructuredOutput } from './structured-output';
export { type Messages } from './text/text-service';
export { type ChatMessage, type TextPart, type Tool, type ToolCall, type ToolCallInput } from './text/messages';
