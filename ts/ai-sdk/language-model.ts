import type {
  LanguageModelV4,
  LanguageModelV4CallOptions,
  LanguageModelV4StreamPart,
  SharedV4Warning,
} from '@ai-sdk/provider' with { 'resolution-mode': 'import' };
import type { CallContext } from '../call-context';
import type { ChatOptions, ToolChoice } from '../chat';
import { checkEngine } from '../checks';
import type { Engine } from '../engine';
import { CapstanError } from '../errors';
import type { ChatEvent } from '../events';
import type { Generation } from '../generation';
import { withoutDialect } from '../standard-schema';
import type { Tool } from '../text/messages';
import { PartWriter, toContent, toFinishReason, toUsage } from './parts';
import { toMessages } from './prompt';

/** Defaults of each call. A call overrides them by its settings, and by `providerOptions.capstan`. */
export type LanguageSettings = Omit<ChatOptions, 'tools' | 'toolChoice' | 'n' | 'structuredOutput'>;

/**
 * Returns a language model for `generateText`, `streamText` and other functions of the AI SDK.
 * `providerOptions.capstan` takes options of {@link Engine.chat} that the AI SDK has no name for, such as `minP`.
 */
export function languageModel(engine: Engine, settings: LanguageSettings = {}): LanguageModelV4 {
  const { modelName: modelId } = checkEngine(engine).info;
  return {
    specificationVersion: 'v4',
    provider: 'capstan',
    modelId,
    supportedUrls: {},
    doGenerate: async (options) => {
      const { call, warnings } = start(engine, settings, options);
      const { id, choices, usage } = await orAborted(call.result(), options.abortSignal);
      const [choice] = choices;
      return {
        content: toContent(choice),
        finishReason: toFinishReason(choice.finishReason, choice.toolCalls.length > 0),
        usage: toUsage(usage),
        response: { id, modelId, timestamp: new Date() },
        warnings,
      };
    },
    doStream: async (options) => {
      const { call, warnings } = start(engine, settings, options);
      await orAborted(call.submitted, options.abortSignal);
      const first: LanguageModelV4StreamPart[] = [
        { type: 'stream-start', warnings },
        { type: 'response-metadata', id: call.id, modelId, timestamp: new Date() },
      ];
      return { stream: toStream(call, first, options.abortSignal) };
    },
  };
}

function start(
  engine: Engine,
  settings: LanguageSettings,
  options: LanguageModelV4CallOptions,
): { call: Generation<ChatEvent>; warnings: SharedV4Warning[] } {
  const warnings: SharedV4Warning[] = [];
  const chat = { ...settings, ...toChatOptions(options, warnings), signal: options.abortSignal };
  return { call: engine.chat(toMessages(options.prompt), chat), warnings };
}

function toChatOptions(options: LanguageModelV4CallOptions, warnings: SharedV4Warning[]): ChatOptions & CallContext {
  const { tools = [], toolChoice, responseFormat, reasoning, providerOptions } = options;
  const functions = tools.flatMap((tool): Tool[] => {
    if (tool.type !== 'function') {
      warnings.push({ type: 'unsupported', feature: `the provider's tool ${tool.id}` });
      return [];
    }
    const { name, description, inputSchema, strict } = tool;
    const parameters = withoutDialect(inputSchema as Record<string, unknown>);
    return [{ type: 'function', function: { name, description, parameters, strict } }];
  });
  const given: ChatOptions = {
    maxTokens: options.maxOutputTokens,
    temperature: options.temperature,
    topP: options.topP,
    topK: options.topK,
    presencePenalty: options.presencePenalty,
    frequencyPenalty: options.frequencyPenalty,
    stop: options.stopSequences,
    seed: options.seed,
    ...(functions.length === 0 ? {} : { tools: functions }),
    ...(toolChoice === undefined || functions.length === 0 ? {} : { toolChoice: toToolChoice(toolChoice) }),
    ...(responseFormat?.type === 'json'
      ? { structuredOutput: { type: 'json', schema: responseFormat.schema as Record<string, unknown> | undefined } }
      : {}),
    ...(reasoning === undefined || reasoning === 'provider-default' ? {} : { reasoningEffort: reasoning }),
    ...(providerOptions?.capstan as ChatOptions | undefined),
  };
  return Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined));
}

function toToolChoice(choice: NonNullable<LanguageModelV4CallOptions['toolChoice']>): ToolChoice {
  return choice.type === 'tool' ? { name: choice.toolName } : choice.type;
}

/** Reads the events only when the consumer asks for parts. */
function toStream(
  call: Generation<ChatEvent>,
  first: readonly LanguageModelV4StreamPart[],
  signal: AbortSignal | undefined,
): ReadableStream<LanguageModelV4StreamPart> {
  const writer = new PartWriter();
  const events = call[Symbol.asyncIterator]();
  return new ReadableStream<LanguageModelV4StreamPart>({
    start: (controller) => first.forEach((part) => controller.enqueue(part)),
    pull: async (controller) => {
      try {
        // A pull that enqueues nothing is not repeated.
        for (let isEmpty = true; isEmpty;) {
          const { done, value } = await orAborted(events.next(), signal);
          if (done === true) return controller.close();
          for (const part of writer.write(value)) {
            controller.enqueue(part);
            isEmpty = false;
          }
        }
      } catch (error) {
        controller.enqueue({ type: 'error', error });
        controller.close();
      }
    },
    cancel: (reason) => call.abort(reason),
  });
}

/** The AI SDK recognizes an abort by the reason of its signal. */
export async function orAborted<T>(work: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  try {
    return await work;
  } catch (error) {
    if (signal?.aborted === true && error instanceof CapstanError && error.code === 'aborted') throw signal.reason;
    throw error;
  }
}
