import type { CallbackManagerForLLMRun } from '@langchain/core/callbacks/manager';
import type { StructuredOutputMethodOptions } from '@langchain/core/language_models/base';
import type {
  BaseChatModel,
  BaseChatModelCallOptions,
  BaseChatModelParams,
  BindToolsInput,
} from '@langchain/core/language_models/chat_models';
import type { AIMessageChunk, BaseMessage } from '@langchain/core/messages';
import type { ChatGenerationChunk, ChatResult } from '@langchain/core/outputs';
import { type CallContext, CONTEXT_KEYS } from '../call-context';
import { CHAT_KEYS, type ChatOptions, type ToolChoice } from '../chat';
import { checkEngine } from '../checks';
import type { Engine } from '../engine';
import type { ChatEvent } from '../events';
import type { Generation } from '../generation';
import { withoutDialect } from '../standard-schema';
import type { Tool } from '../text/messages';
import type { LangChainCore } from './core';
import { toMessages, toToolCalls, toUsageMetadata } from './messages';

/**
 * Options of {@link Engine.chat} that are defaults of the model, or set for one call.
 * @inline
 */
export type ChatSettings = Omit<ChatOptions, 'tools' | 'toolChoice' | 'n' | 'stop'>;

/**
 * Options of one call, besides those of LangChain. `tools` and `tool_choice` are set by `bindTools`.
 * @inline
 */
export type CallSettings = ChatSettings & {
  /** Functions that the model may call. */
  tools?: readonly Tool[];
};

/** Fields of a new `ChatCapstan`. */
export type ChatCapstanFields = BaseChatModelParams &
  ChatSettings & {
    /** The engine of the model. The chat model does not close it. */
    engine: Engine;
  };

/** Options of one call. */
export type ChatCapstanCallOptions = BaseChatModelCallOptions & CallSettings;

/** A chat model of LangChain that runs in this process. */
export interface ChatCapstan extends BaseChatModel<ChatCapstanCallOptions, AIMessageChunk> {
  /** The engine of the model. */
  readonly engine: Engine;
}

/** Fields of LangChain. The others are settings of the chat. */
const BASE_FIELDS: readonly string[] = [
  ...['cache', 'callbackManager', 'callbacks', 'disableStreaming', 'maxConcurrency', 'maxRetries', 'metadata', 'name'],
  ...['onFailedAttempt', 'outputVersion', 'tags', 'verbose'],
];
/** Options of a call for the engine. The others are of LangChain, or of frameworks on it such as LangGraph. */
const CALL_KEYS: readonly string[] = [...CHAT_KEYS, ...CONTEXT_KEYS];

function split(fields: object, names: readonly string[]): [named: object, rest: object] {
  const entries = Object.entries(fields).filter(([, value]) => value !== undefined);
  return [
    Object.fromEntries(entries.filter(([name]) => names.includes(name))),
    Object.fromEntries(entries.filter(([name]) => !names.includes(name))),
  ];
}

/** Returns the class of the chat model. */
export function createChatModel(core: LangChainCore): {
  /** @throws CapstanError without an engine. Options of the chat are checked by each call. */
  new (fields: ChatCapstanFields): ChatCapstan;
} {
  return class ChatCapstan extends core.BaseChatModel<ChatCapstanCallOptions> {
    readonly engine: Engine;
    readonly #settings: ChatSettings;

    static override lc_name(): string {
      return 'ChatCapstan';
    }

    constructor({ engine, ...fields }: ChatCapstanFields) {
      const [base, settings] = split(fields, BASE_FIELDS);
      super(base);
      this.engine = checkEngine(engine);
      this.#settings = settings;
    }

    override _llmType(): string {
      return 'capstan';
    }

    override getLsParams(options: this['ParsedCallOptions']) {
      const { temperature, maxTokens } = { ...this.#settings, ...options };
      return {
        ...super.getLsParams(options),
        ls_provider: 'capstan',
        ls_model_name: this.engine.info.modelName,
        ls_temperature: temperature,
        ls_max_tokens: maxTokens,
      };
    }

    override bindTools(tools: BindToolsInput[], options: Partial<ChatCapstanCallOptions> = {}) {
      const converted = tools.map((tool) => toTool(core.convertToOpenAITool(tool) as unknown as Tool));
      return this.withConfig({ ...options, tools: converted });
    }

    override withStructuredOutput(
      // eslint-disable-next-line @typescript-eslint/no-explicit-any -- as in the base class
      schema: Record<string, any>,
      { method = 'jsonSchema', includeRaw = false, name = 'extract' }: StructuredOutputMethodOptions<boolean> = {},
      // eslint-disable-next-line @typescript-eslint/no-explicit-any -- as in the base class
    ): any {
      const isOwn = !core.isInteropZodSchema(schema) && !core.isSerializableSchema(schema);
      const parameters = (isOwn ? schema : core.toJsonSchema(schema as never)) as Record<string, unknown>;
      if (method === 'functionCalling') {
        const tool = { type: 'function' as const, function: { name, parameters, strict: true } };
        const model = this.bindTools([tool], { tool_choice: name });
        const parser = core.createFunctionCallingParser(schema, name);
        return core.assembleStructuredOutputPipeline(model, parser, includeRaw, 'StructuredOutput');
      }
      const structuredOutput = { type: 'json' as const, ...(method === 'jsonSchema' ? { schema: parameters } : {}) };
      const model = this.withConfig({ structuredOutput });
      return core.assembleStructuredOutputPipeline(
        model,
        core.createContentParser(schema),
        includeRaw,
        'StructuredOutput',
      );
    }

    override async _generate(messages: BaseMessage[], options: this['ParsedCallOptions']): Promise<ChatResult> {
      const { choices, usage } = await this.#start(messages, options).result();
      const [choice] = choices;
      const usageMetadata = toUsageMetadata(usage);
      const message = new core.AIMessage({
        content: choice.text,
        ...toToolCalls(choice),
        usage_metadata: usageMetadata,
        response_metadata: this.#metadata(choice.finishReason),
        additional_kwargs: choice.reasoning === undefined ? {} : { reasoning_content: choice.reasoning },
      });
      const tokenUsage = {
        promptTokens: usage.promptTokens,
        completionTokens: usage.completionTokens,
        totalTokens: usage.totalTokens,
      };
      return { generations: [{ text: choice.text, message }], llmOutput: { tokenUsage } };
    }

    override async *_streamResponseChunks(
      messages: BaseMessage[],
      options: this['ParsedCallOptions'],
      runManager?: CallbackManagerForLLMRun,
    ): AsyncGenerator<ChatGenerationChunk> {
      let lastCall = -1;
      for await (const event of this.#start(messages, options)) {
        const chunk = this.#toChunk(event, event.type === 'toolCall' && event.callIndex !== lastCall);
        if (event.type === 'toolCall') lastCall = event.callIndex;
        if (chunk === undefined) continue;
        yield chunk;
        await runManager?.handleLLMNewToken(chunk.text, undefined, undefined, undefined, undefined, { chunk });
      }
    }

    #start(messages: BaseMessage[], options: this['ParsedCallOptions']): Generation<ChatEvent> {
      const { tool_choice: toolChoice } = options;
      const [settings] = split(options, CALL_KEYS);
      const chat: ChatOptions & CallContext = { ...this.#settings, ...settings };
      if (toolChoice !== undefined && chat.tools !== undefined) chat.toolChoice = toToolChoice(toolChoice);
      return this.engine.chat(toMessages(messages), chat);
    }

    #toChunk(event: ChatEvent, isNewCall: boolean): ChatGenerationChunk | undefined {
      const make = (fields: object, text = ''): ChatGenerationChunk =>
        new core.ChatGenerationChunk({ text, message: new core.AIMessageChunk({ content: text, ...fields }) });
      switch (event.type) {
        case 'delta':
          return event.textDelta === '' ? undefined : make({}, event.textDelta);
        case 'reasoning':
          return make({ additional_kwargs: { reasoning_content: event.textDelta } });
        case 'toolCall': {
          // Chunks of a call are added up by their index, so only the first has the name.
          const first = isNewCall ? { id: event.id, name: event.name } : {};
          const chunk = { index: event.callIndex, args: event.argumentsDelta, type: 'tool_call_chunk', ...first };
          return make({ tool_call_chunks: [chunk] });
        }
        case 'finish':
          return make({
            usage_metadata: toUsageMetadata(event.usage),
            response_metadata: this.#metadata(event.finishReason),
          });
      }
    }

    #metadata(finishReason: string) {
      return { model_provider: 'capstan', model_name: this.engine.info.modelName, finish_reason: finishReason };
    }
  };
}

function toTool({ type, function: definition }: Tool): Tool {
  const { parameters = {}, ...rest } = definition;
  return { type, function: { ...rest, parameters: withoutDialect(parameters) } };
}

function toToolChoice(choice: NonNullable<BaseChatModelCallOptions['tool_choice']>): ToolChoice {
  if (typeof choice === 'object') return { name: (choice as { function: { name: string } }).function.name };
  if (choice === 'any') return 'required';
  return choice === 'auto' || choice === 'none' || choice === 'required' ? choice : { name: choice };
}
