/**
 * The parts of `@langchain/core` that the models extend and use. The package has two copies, for `require` and for
 * `import`: each entry passes the one of its module system, so that the models and the caller use the same classes.
 */
import * as chatModels from '@langchain/core/language_models/chat_models';
import * as structuredOutput from '@langchain/core/language_models/structured_output';
import * as embeddings from '@langchain/core/embeddings';
import * as messages from '@langchain/core/messages';
import * as outputs from '@langchain/core/outputs';
import * as functionCalling from '@langchain/core/utils/function_calling';
import * as jsonSchema from '@langchain/core/utils/json_schema';
import * as standardSchema from '@langchain/core/utils/standard_schema';
import * as types from '@langchain/core/utils/types';

export const core = {
  BaseChatModel: chatModels.BaseChatModel,
  Embeddings: embeddings.Embeddings,
  AIMessage: messages.AIMessage,
  AIMessageChunk: messages.AIMessageChunk,
  ChatGenerationChunk: outputs.ChatGenerationChunk,
  convertToOpenAITool: functionCalling.convertToOpenAITool,
  isInteropZodSchema: types.isInteropZodSchema,
  isSerializableSchema: standardSchema.isSerializableSchema,
  toJsonSchema: jsonSchema.toJsonSchema,
  assembleStructuredOutputPipeline: structuredOutput.assembleStructuredOutputPipeline,
  createContentParser: structuredOutput.createContentParser,
  createFunctionCallingParser: structuredOutput.createFunctionCallingParser,
};

export type LangChainCore = typeof core;
