/**
 * Capstan: native LLM inference for Node.js.
 * @module capstan
 */
export type { StepProfile, StepStats } from './addon-types';
export { MAX_BAD_WORDS } from './bad-words';
export { type BatchOptions, type BatchRequest, type BatchResult } from './batch';
export { type ChatOptions, type ToolChoice } from './chat';
export type { ReasoningEffort } from './text/reasoning';
export { type CallContext, type PromptSize } from './call-context';
export { ChatSession, type ChatSessionOptions } from './chat-session';
export { describeModel, type ModelDescription } from './describe';
export { Engine, type GenerateOptions } from './engine';
export type { EngineInfo, EngineStats } from './engine-info';
export { type AdapterInfo } from './adapters';
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
export { type GeneratedObject, generateObject, type GenerateObjectOptions } from './generate-object';
export { type Generation, type Submission } from './generation';
export { type ResponseOptions, type StreamFormat } from './generation-streams';
export { type CachedRepository, type CachedRevision } from './hub/cache-contents';
export { type FitOptions, type ModelFit } from './hub/fit';
export { type ModelInfo } from './hub/model-info';
export {
  type CacheOptions,
  type HubOptions,
  listModels,
  modelInfo,
  pullModel,
  type PullOptions,
  removeModel,
} from './hub/models';
export { type DownloadProgress, type PulledModel } from './hub/pull';
export { type HubKind } from './hub/settings';
export { type GpuInfo, machineInfo, type MachineInfo } from './machine-info';
export { type EngineOptions, type LoadProgress } from './options';
export {
  type EmbedOptions,
  type EmbedResult,
  type ModelTask,
  type PoolingOptions,
  type PoolingUsage,
  type ScoreResult,
} from './pooling';
export { quantize, type QuantizedModel, type QuantizeOptions, type QuantizeProgress } from './quantize/quantize';
export {
  defineTool,
  runTools,
  type RunToolsOptions,
  type ToolContext,
  type ToolDefinition,
  type ToolResultEvent,
  type ToolRun,
  type ToolRunEvent,
  type ToolRunResult,
} from './run-tools';
export { type SpeculativeOptions } from './speculation';
export { type SamplingDefaults, type SamplingParams } from './sampling';
export {
  type AnySchema,
  type SchemaValue,
  type StandardIssue,
  type StandardResult,
  type StandardSchema,
} from './standard-schema';
export { MAX_STRUCTURED_CHOICES, type StructuredOutput } from './structured-output';
export { type Messages } from './text/text-service';
export { type ChatMessage, type TextPart, type Tool, type ToolCall, type ToolCallInput } from './text/messages';
