import { dirname } from 'node:path';
import { CapstanError } from '../errors';
import { checkTextLength } from '../sampling';
import { looseTextBytes } from '../text-limits';
import { findGguf } from '../model/gguf/files';
import { readGgufText } from '../model/gguf/text';
import { ChatTemplate, type RenderOptions } from './chat-template';
import { checkMessages, type ChatMessage, joinContent, type TemplateMessage, toTemplateMessage } from './messages';
import {
  effortVariables,
  findReasoningFormat,
  type ReasoningEffort,
  type ReasoningFormat,
  type ThinkingState,
} from './reasoning';
import { findToolCallFormat, type ToolCallFormat } from './tool-calls';
import { Tokenizer } from './tokenizer';
import type { EncodedInput, TextInput } from './truncate-input';
import type { Vocabulary } from './vocabulary';

/** What a text service loads. */
export interface TextServiceOptions {
  /** The model directory, or a GGUF file. */
  modelPath: string;
  /** Source of a chat template to use instead of the model's. */
  chatTemplate?: string | undefined;
  /** Name of a tool call format, or `auto`. */
  toolCallFormat: string;
  /** Name of a reasoning format, `none` or `auto`. */
  reasoningFormat: string;
}

/** What a loaded text service found in the model's files. */
export interface TextTraits {
  vocabulary: Vocabulary;
  /** The token that ends a text; undefined if the files name none. */
  eosToken: string | undefined;
  /** Name of the format in which the model writes tool calls; undefined if its chat template shows no known format. */
  toolCallFormat: string | undefined;
  /** Name of the format in which the model writes reasoning; undefined: reasoning is not separated from the text. */
  reasoningFormat: string | undefined;
}

/**
 * Messages as values, or as the JSON text of their array: a string, or UTF-8 bytes. Bytes of a SharedArrayBuffer are
 * not copied to the thread that renders them.
 */
export type Messages =
  | readonly ChatMessage[]
  | {
      /** JSON text of an array of {@link ChatMessage}. */
      readonly json: string | Uint8Array;
    };

/** What the chat template renders. */
export interface Conversation extends RenderOptions {
  messages: Messages;
  /** Sets the variables of the template that stand for it. `templateKwargs` overrides them. */
  reasoningEffort?: ReasoningEffort;
}

/** How a prompt is tokenized. */
export interface EncodeOptions {
  /** Runs the post-processor, which adds tokens such as BOS. */
  addSpecialTokens: boolean;
  /** A prompt that is longer in any tokenization is refused before the work. undefined: no limit. */
  maxModelLen?: number | undefined;
  /** The prompt will be truncated to the context, so only `looseTextBytes` limits it. */
  isTruncated?: boolean;
}

/** How inputs of a model that pools are tokenized. */
export interface InputOptions {
  addSpecialTokens: boolean;
  /** Infinity: the inputs are complete. */
  maxTokens: number;
}

export interface EncodedChat {
  promptTokenIds: Int32Array;
  /** Where the completion starts; undefined: reasoning is not parsed. */
  thinking: ThinkingState | undefined;
}

/**
 * The work whose time grows with the length of a text: rendering and tokenizing. It runs in a separate thread. A signal
 * that aborts skips work that has not started.
 */
export interface TextWork {
  /** @throws CapstanError `context_length_exceeded`. */
  encode(text: string, options: EncodeOptions, signal?: AbortSignal): Promise<Int32Array>;
  /**
   * Encodes inputs of a model that pools. The texts of an input of more than `maxTokens` lose their ends.
   * @throws CapstanError `context_length_exceeded` for a text that is far too long.
   */
  encodeInputs(inputs: readonly TextInput[], options: InputOptions, signal?: AbortSignal): Promise<EncodedInput[]>;
  /** Encodes several short texts without special tokens. */
  encodeTexts(texts: readonly string[]): Promise<Int32Array[]>;
  /** Returns the text of the prompt. @throws CapstanError `invalid_argument` or `template_error`. */
  render(conversation: Conversation, signal?: AbortSignal): Promise<string>;
  /** @throws CapstanError `context_length_exceeded`, `invalid_argument` or `template_error`. */
  encodeChat(conversation: Conversation, options: EncodeOptions, signal?: AbortSignal): Promise<EncodedChat>;
}

/** The formats of a model. */
interface Formats {
  toolCalls: ToolCallFormat | undefined;
  reasoning: ReasoningFormat | undefined;
}

interface Loaded {
  tokenizer: Tokenizer;
  chatTemplate: ChatTemplate;
  formats: Formats;
}

function findFormats(chatTemplate: ChatTemplate, { toolCallFormat, reasoningFormat }: TextServiceOptions): Formats {
  const mentions = (text: string): boolean => chatTemplate.mentions(text);
  return {
    toolCalls: findToolCallFormat(toolCallFormat, mentions),
    reasoning: findReasoningFormat(reasoningFormat, mentions),
  };
}

/** Returns the texts that the parsers search for. They must stay even if the tokenizer calls them special. */
function markersOf({ toolCalls, reasoning }: Formats): ReadonlySet<string> {
  return new Set([...(toolCalls?.markers ?? []), ...(reasoning?.markers ?? [])]);
}

async function loadFolder(modelDir: string, options: TextServiceOptions): Promise<Loaded> {
  const template = await ChatTemplate.load(modelDir, options.chatTemplate);
  const formats = findFormats(template, options);
  const tokenizer = await Tokenizer.load(modelDir, markersOf(formats));
  return { tokenizer, chatTemplate: template.withSpecialTokens(tokenizer.specialTokens), formats };
}

/** The tokenizer of a file without a vocabulary is in the files beside it. */
async function loadGguf(path: string, options: TextServiceOptions): Promise<Loaded> {
  const text = await readGgufText(path);
  if (text === undefined) return loadFolder(dirname(path), options);
  const chatTemplate = await ChatTemplate.create(text.templates, text.specialTokens, options.chatTemplate);
  const formats = findFormats(chatTemplate, options);
  return { tokenizer: Tokenizer.convert(text, markersOf(formats), text.file), chatTemplate, formats };
}

/** Renders and tokenizes in the calling thread. */
export class TextService implements TextWork {
  readonly traits: TextTraits;
  readonly #tokenizer: Tokenizer;
  readonly #chatTemplate: ChatTemplate;
  readonly #formats: Formats;

  private constructor({ tokenizer, chatTemplate, formats }: Loaded) {
    this.#tokenizer = tokenizer;
    this.#chatTemplate = chatTemplate;
    this.#formats = formats;
    this.traits = {
      vocabulary: tokenizer.vocabulary,
      eosToken: chatTemplate.eosToken,
      toolCallFormat: formats.toolCalls?.name,
      reasoningFormat: formats.reasoning?.name,
    };
  }

  /** @throws CapstanError `invalid_model`, `unsupported_model`, `io_error`, or `invalid_argument` for a template. */
  static async load(options: TextServiceOptions): Promise<TextService> {
    const { modelPath } = options;
    const gguf = await findGguf(modelPath);
    return new TextService(gguf === undefined ? await loadFolder(modelPath, options) : await loadGguf(gguf, options));
  }

  async encode(text: string, options: EncodeOptions, signal?: AbortSignal): Promise<Int32Array> {
    this.#checkLength([text], options);
    return this.#tokenizer.encode(text, options.addSpecialTokens, signal);
  }

  async encodeInputs(
    inputs: readonly TextInput[],
    options: InputOptions,
    signal?: AbortSignal,
  ): Promise<EncodedInput[]> {
    return Promise.all(inputs.map((input) => this.#tokenizer.encodeInput(input, options, signal)));
  }

  encodeTexts(texts: readonly string[]): Promise<Int32Array[]> {
    return Promise.all(texts.map((text) => this.#tokenizer.encode(text, false)));
  }

  async render(conversation: Conversation): Promise<string> {
    return this.#render(conversation, this.#toTemplateMessages(checkMessages(parseMessages(conversation))));
  }

  async encodeChat(conversation: Conversation, options: EncodeOptions, signal?: AbortSignal): Promise<EncodedChat> {
    const messages = checkMessages(parseMessages(conversation));
    this.#checkConversation(messages, conversation, options);
    const written = this.#toTemplateMessages(messages);
    const prompt = await this.#render(conversation, written);
    const finalContent = conversation.continueFinalMessage === true ? (written.at(-1)?.content as string) : undefined;
    return {
      promptTokenIds: await this.encode(prompt, options, signal),
      thinking: this.#thinkingState(prompt, finalContent),
    };
  }

  #checkLength(texts: readonly string[], { maxModelLen, isTruncated = false }: EncodeOptions): void {
    if (maxModelLen === undefined) return;
    const strictBytes = maxModelLen * this.#tokenizer.vocabulary.maxTokenBytes;
    checkTextLength(texts, maxModelLen, isTruncated ? looseTextBytes(maxModelLen) : strictBytes);
  }

  /**
   * Refuses a conversation that is too long in any template, before it is rendered. Each message becomes at least one
   * token.
   * @throws CapstanError `context_length_exceeded`.
   */
  #checkConversation(messages: readonly ChatMessage[], { tools }: Conversation, options: EncodeOptions): void {
    const { maxModelLen = Infinity } = options;
    if (messages.length > maxModelLen) {
      throw new CapstanError(
        'context_length_exceeded',
        `This model's maximum context length is ${maxModelLen} tokens, but the prompt has ${messages.length} messages`,
        { param: 'prompt', expected: `at most ${maxModelLen} messages`, received: String(messages.length) },
      );
    }
    const texts = messages.flatMap(({ content }) =>
      typeof content === 'string' ? [content] : (content ?? []).map(({ text }) => text),
    );
    this.#checkLength(tools === undefined ? texts : [...texts, JSON.stringify(tools)], options);
  }

  #toTemplateMessages(messages: readonly ChatMessage[]): TemplateMessage[] {
    const { traits } = this.#chatTemplate;
    const { toPromptId, toPromptMessages, write } = this.#formats.toolCalls ?? {};
    const converted = toPromptMessages?.(messages) ?? messages;
    const written =
      write === undefined || this.#chatTemplate.mentions('tool_calls')
        ? converted
        : converted.map((message) => withCallsInContent(message, write));
    return written.map((message) => toTemplateMessage(message, traits, toPromptId));
  }

  /** @param finalContent The message that the completion continues, if it does. */
  #thinkingState(prompt: string, finalContent: string | undefined): ThinkingState | undefined {
    const { reasoning } = this.#formats;
    return finalContent === undefined ? reasoning?.stateAfter(prompt) : reasoning?.stateWithin(finalContent);
  }

  #render(
    { messages: _, reasoningEffort, templateKwargs, ...options }: Conversation,
    messages: readonly TemplateMessage[],
  ): Promise<string> {
    const mentions = (text: string): boolean => this.#chatTemplate.mentions(text);
    const variables = reasoningEffort === undefined ? {} : effortVariables(reasoningEffort, mentions);
    return this.#chatTemplate.render(messages, { ...options, templateKwargs: { ...variables, ...templateKwargs } });
  }
}

/** Moves the calls of a message to its content. */
function withCallsInContent(message: ChatMessage, write: NonNullable<ToolCallFormat['write']>): ChatMessage {
  const { toolCalls = [], content, ...rest } = message;
  if (toolCalls.length === 0) return message;
  return { ...rest, content: joinContent(content) + write(toolCalls) };
}

function parseMessages({ messages }: Conversation): unknown {
  if (typeof messages !== 'object' || messages === null || !('json' in messages)) return messages;
  const { json } = messages;
  return JSON.parse(
    typeof json === 'string' ? json : Buffer.from(json.buffer, json.byteOffset, json.byteLength).toString(),
  );
}
