/** The entry for `import`. Its classes extend those of `@langchain/core` that an ES module gets. */
import { type Embeddings as BaseEmbeddings, Embeddings, type EmbeddingsParams } from '@langchain/core/embeddings';
import {
  BaseChatModel,
  type BaseChatModelCallOptions,
  type BaseChatModelParams,
} from '@langchain/core/language_models/chat_models';
import {
  assembleStructuredOutputPipeline,
  createContentParser,
  createFunctionCallingParser,
} from '@langchain/core/language_models/structured_output';
import { AIMessage, AIMessageChunk } from '@langchain/core/messages';
import { ChatGenerationChunk } from '@langchain/core/outputs';
import { convertToOpenAITool } from '@langchain/core/utils/function_calling';
import { toJsonSchema } from '@langchain/core/utils/json_schema';
import { isSerializableSchema } from '@langchain/core/utils/standard_schema';
import { isInteropZodSchema } from '@langchain/core/utils/types';
import type { Engine } from '../index.mjs';
import { type CallSettings, type ChatSettings, createChatModel } from './chat-model.js';
import type { LangChainCore } from './core.js';
import { createEmbeddings, type EmbeddingsSettings } from './embeddings.js';

const core = {
  BaseChatModel,
  Embeddings,
  AIMessage,
  AIMessageChunk,
  ChatGenerationChunk,
  convertToOpenAITool,
  isInteropZodSchema,
  isSerializableSchema,
  toJsonSchema,
  assembleStructuredOutputPipeline,
  createContentParser,
  createFunctionCallingParser,
} as unknown as LangChainCore;

/** Fields of a new `ChatCapstan`. */
export type ChatCapstanFields = BaseChatModelParams & ChatSettings & { engine: Engine };
/** Options of one call. */
export type ChatCapstanCallOptions = BaseChatModelCallOptions & CallSettings;
/** A chat model of LangChain that runs in this process. */
export interface ChatCapstan extends BaseChatModel<ChatCapstanCallOptions, AIMessageChunk> {
  /** The engine of the model. */
  readonly engine: Engine;
}
export const ChatCapstan = createChatModel(core) as unknown as new (fields: ChatCapstanFields) => ChatCapstan;

/** Fields of a new `CapstanEmbeddings`. */
export interface CapstanEmbeddingsFields extends EmbeddingsParams, EmbeddingsSettings {
  engine: Engine;
}
/** Embeddings of LangChain that are computed in this process. */
export interface CapstanEmbeddings extends BaseEmbeddings {
  /** The engine of the model. */
  readonly engine: Engine;
}
export const CapstanEmbeddings = createEmbeddings(core) as unknown as new (
  fields: CapstanEmbeddingsFields,
) => CapstanEmbeddings;
