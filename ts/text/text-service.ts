import { dirname } from 'node:path';
import { CapstanError } from '../errors';
import { checkTextLength } from '../sampling';
import { looseTextBytes } from '../text-limits';
import { findGguf } from '../model/gguf/files';
import { readGgufText } from '../model/gguf/text';
import { ChatTemplate, type RenderOptions } from './chat-template';
import { checkMessages, type ChatMessage, type TemplateMessage, toTemplateMessage } from './messages';
import { THINK_CLOSE, THINK_OPEN, type ThinkingState, thinkingStateAfter, thinkingStateWithin } from './reasoning';
import { findToolCallFormat, TOOL_CALL_MARKERS, type ToolCallFormat } from './tool-calls';
import { Tokenizer } from './tokenizer';
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
  /** Name of the format in which the model writes tool calls; undefined if its chat template shows no known format. */
  toolCallFormat: string | undefined;
  /** Whether reasoning is separated from the text. By default, if the chat template contains its markers. */
  hasReasoning: boolean;
}

/**
 * Messages as values, or as the JSON text of their array: a string, or UTF-8 bytes. Bytes of a SharedArrayBuffer are
 * not copied to the thread that renders them.
 */
export type Messages = readonly ChatMessage[] | { readonly json: string | Uint8Array };

/** What the chat template renders. */
export interface Conversation extends RenderOptions {
  messages: Messages;
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
  /** Encodes several short texts without special tokens. */
  encodeTexts(texts: readonly string[]): Promise<Int32Array[]>;
  /** Returns the text of the prompt. @throws CapstanError `invalid_argument` or `template_error`. */
  render(conversation: Conversation, signal?: AbortSignal): Promise<string>;
  /** @throws CapstanError `context_length_exceeded`, `invalid_argument` or `template_error`. */
  encodeChat(conversation: Conversation, options: EncodeOptions, signal?: AbortSignal): Promise<EncodedChat>;
}

/** Markers that the parsers search for. They must stay in the text even if the tokenizer calls them special. */
const MARKERS: ReadonlySet<string> = new Set([THINK_OPEN, THINK_CLOSE, ...TOOL_CALL_MARKERS]);

type Loaded = [Tokenizer, ChatTemplate];

function loadFolder(modelDir: string, { chatTemplate }: TextServiceOptions): Promise<Loaded> {
  return Promise.all([Tokenizer.load(modelDir, MARKERS), ChatTemplate.load(modelDir, chatTemplate)]);
}

/** The tokenizer of a file without a vocabulary is in the files beside it. */
async function loadGguf(path: string, options: TextServiceOptions): Promise<Loaded> {
  const { chatTemplate } = options;
  const text = await readGgufText(path);
  if (text === undefined) return loadFolder(dirname(path), options);
  const { file, tokenizer, templates, specialTokens } = text;
  return [
    Tokenizer.convert(tokenizer, MARKERS, file),
    await ChatTemplate.create(templates, specialTokens, chatTemplate),
  ];
}

/** Renders and tokenizes in the calling thread. */
export class TextService implements TextWork {
  readonly traits: TextTraits;
  readonly #tokenizer: Tokenizer;
  readonly #chatTemplate: ChatTemplate;
  readonly #toolCallFormat: ToolCallFormat | undefined;

  private constructor(tokenizer: Tokenizer, chatTemplate: ChatTemplate, options: TextServiceOptions) {
    const mentions = (text: string): boolean => chatTemplate.mentions(text);
    const { toolCallFormat, reasoningFormat } = options;
    this.#tokenizer = tokenizer;
    this.#chatTemplate = chatTemplate;
    this.#toolCallFormat = findToolCallFormat(toolCallFormat, mentions);
    this.traits = {
      vocabulary: tokenizer.vocabulary,
      toolCallFormat: this.#toolCallFormat?.name,
      hasReasoning: reasoningFormat === 'auto' ? mentions(THINK_CLOSE) : reasoningFormat !== 'none',
    };
  }

  /** @throws CapstanError `invalid_model`, `unsupported_model`, `io_error`, or `invalid_argument` for a template. */
  static async load(options: TextServiceOptions): Promise<TextService> {
    const { modelPath } = options;
    const gguf = await findGguf(modelPath);
    const [tokenizer, chatTemplate] =
      gguf === undefined ? await loadFolder(modelPath, options) : await loadGguf(gguf, options);
    return new TextService(tokenizer, chatTemplate, options);
  }

  async encode(text: string, options: EncodeOptions, signal?: AbortSignal): Promise<Int32Array> {
    this.#checkLength([text], options);
    return this.#tokenizer.encode(text, options.addSpecialTokens, signal);
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
      thinking: this.traits.hasReasoning ? findThinkingState(prompt, finalContent) : undefined,
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
    return messages.map((message) => toTemplateMessage(message, traits, this.#toolCallFormat?.toPromptId));
  }

  #render({ messages: _, ...options }: Conversation, messages: readonly TemplateMessage[]): Promise<string> {
    return this.#chatTemplate.render(messages, options);
  }
}

function parseMessages({ messages }: Conversation): unknown {
  if (typeof messages !== 'object' || messages === null || !('json' in messages)) return messages;
  const { json } = messages;
  return JSON.parse(
    typeof json === 'string' ? json : Buffer.from(json.buffer, json.byteOffset, json.byteLength).toString(),
  );
}

/** @param finalContent The message that the completion continues, if it does. */
function findThinkingState(prompt: string, finalContent: string | undefined): ThinkingState {
  return finalContent === undefined ? thinkingStateAfter(prompt) : thinkingStateWithin(finalContent);
}
