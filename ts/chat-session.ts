import { type CallContext, CONTEXT_KEYS } from './call-context';
import { CHAT_KEYS, type ChatOptions } from './chat';
import { checkBoolean, checkEngine, checkKnownKeys, checkNumber, checkObject, checkString } from './checks';
import type { Engine } from './engine';
import { CapstanError } from './errors';
import type { ChatEvent, Choice } from './events';
import type { Generation } from './generation';
import { type ChatMessage, checkMessages, joinContent } from './text/messages';

/** Options of a {@link ChatSession}. Those of a chat are defaults of each {@link ChatSession.send}. */
export interface ChatSessionOptions extends ChatOptions, Pick<CallContext, 'cacheSalt'> {
  /** Text of a system message at the start. Not beside `messages` that begin with one. */
  system?: string;
  /** The conversation so far, such as the `messages` of an earlier session. */
  messages?: readonly ChatMessage[];
  /**
   * Leaves the oldest turns out of the prompt when it would not fit. If false, such a call fails with
   * `context_length_exceeded`. Default: true.
   */
  contextShift?: boolean;
}

const SESSION_KEYS = ['system', 'messages', 'contextShift', ...CHAT_KEYS, ...CONTEXT_KEYS];
/** Tokens kept for the answer if `maxTokens` is not set, at most a quarter of the context. */
const ANSWER_TOKENS = 1024;
/** After a shift the prompt fills at most this share of the limit, so that not every turn shifts. */
const KEPT_SHARE = 0.75;
/** Upper bound of the tokens that a template adds to a message. */
const TEMPLATE_TOKENS = 256;

interface FittedPrompt {
  messages: readonly ChatMessage[];
  begin: number;
}

/**
 * A conversation with a model: keeps the history, and fits it to the context. Each answer reuses the cached prompt of
 * the one before. A session has no memory in the engine, so it needs no closing.
 */
export class ChatSession {
  /** The engine that answers. The session does not close it. */
  readonly engine: Engine;
  readonly #options: ChatOptions & Pick<CallContext, 'cacheSalt'>;
  readonly #contextShift: boolean;
  #first: readonly ChatMessage[];
  #messages: ChatMessage[];
  /** Index of the first message after the system messages that the prompt has. 0: all. */
  #begin = 0;
  /** Tokens of the last prompt and its answer. */
  #lastTokens: number | undefined;
  #open: Generation<ChatEvent> | undefined;

  /**
   * @param engine Answers the messages.
   * @param options The start of the conversation, and defaults of each call.
   * @throws CapstanError `invalid_argument` for a value that is not an engine, unknown options, invalid messages, or a
   *   `system` beside messages that begin with one.
   */
  constructor(engine: Engine, options: ChatSessionOptions = {}) {
    checkKnownKeys('options', checkObject('options', options), SESSION_KEYS);
    const { system, messages = [], contextShift = true, ...rest } = options;
    if (system !== undefined) checkString('system', system);
    if (messages.length !== 0) checkMessages(messages);
    this.engine = checkEngine(engine);
    this.#options = rest;
    this.#contextShift = checkBoolean('contextShift', contextShift);
    this.#first = system === undefined ? [] : [{ role: 'system', content: system }];
    if (system !== undefined && isSystem(messages[0]))
      throw CapstanError.argument('system', 'no text beside messages that begin with a system message', system);
    this.#messages = [...this.#first, ...messages];
  }

  /** The whole conversation. The prompt may lack its oldest turns. */
  get messages(): readonly ChatMessage[] {
    return this.#messages;
  }

  /** Number of messages that no longer fit, so the prompt lacks them. */
  get numDropped(): number {
    return this.#begin === 0 ? 0 : this.#begin - countSystem(this.#messages);
  }

  /**
   * Sends a user message, or other messages such as tool results, and returns the answer. When the answer is complete,
   * both are in the history. A call that fails or is aborted leaves the history as it was. One call at a time.
   */
  send(
    message: string | ChatMessage | readonly ChatMessage[],
    options: ChatOptions & CallContext = {},
  ): Generation<ChatEvent> {
    const sent = toMessages(message);
    const all = { ...this.#options, ...options };
    if (this.#open !== undefined)
      return this.engine.chat(() =>
        Promise.reject(
          new CapstanError('invalid_argument', 'send: expected a session without an open answer. Await or abort it'),
        ),
      );
    let begin = this.#begin;
    const generation = this.engine.chat(async () => {
      if (sent.length !== 0) checkMessages(sent);
      const fitted = await this.#fit(sent, all);
      begin = fitted.begin;
      return fitted.messages;
    }, all);
    this.#open = generation;
    void generation.result().then(
      ({ choices, usage }) => {
        // A reset may have come first.
        if (this.#open !== generation) return;
        this.#messages.push(...sent, toMessage(choices[0]));
        this.#begin = begin;
        this.#lastTokens = usage.totalTokens;
        this.#open = undefined;
      },
      () => {
        if (this.#open === generation) this.#open = undefined;
      },
    );
    return generation;
  }

  /**
   * Adds messages to the history without a call.
   * @throws CapstanError `invalid_argument` for an invalid message.
   */
  append(...messages: ChatMessage[]): void {
    if (messages.length !== 0) checkMessages(messages);
    this.#messages.push(...messages);
    this.#lastTokens = undefined;
  }

  /**
   * Returns a session with a copy of the history, whose answers do not affect this one.
   * @param numMessages Copies only this many messages from the start. Default: all.
   * @throws CapstanError `invalid_argument` for a number that is not from 0 to the length of the history.
   */
  branch(numMessages = this.#messages.length): ChatSession {
    checkNumber('numMessages', numMessages, { min: 0, max: this.#messages.length, isInteger: true });
    const branch = new ChatSession(this.engine, { ...this.#options, contextShift: this.#contextShift });
    branch.#first = this.#first;
    branch.#messages = this.#messages.slice(0, numMessages);
    if (this.#begin < branch.#messages.length) branch.#begin = this.#begin;
    return branch;
  }

  /** Removes everything but the `system` text. */
  reset(): void {
    this.#open?.abort();
    this.#open = undefined;
    this.#messages = [...this.#first];
    this.#begin = 0;
    this.#lastTokens = undefined;
  }

  /** The history, for `JSON.stringify`. Pass it to the constructor to continue. */
  toJSON(): {
    /** The whole conversation. */
    messages: readonly ChatMessage[];
  } {
    return { messages: this.#messages };
  }

  /** Returns the conversation of the prompt, shifted if it would not fit, and the `#begin` of the shift. */
  async #fit(sent: readonly ChatMessage[], options: ChatOptions): Promise<FittedPrompt> {
    const messages = checkMessages([...this.#messages, ...sent]);
    const system = messages.slice(0, countSystem(messages));
    const from = (begin: number): readonly ChatMessage[] =>
      begin === 0 ? messages : [...system, ...messages.slice(begin)];
    const limit = this.#limit(options);
    const fitted = (begin: number): FittedPrompt => ({ messages: from(begin), begin });
    const last = this.#begin;
    if (!this.#contextShift || this.#surelyFits(sent, limit)) return fitted(last);
    const fits = async (begin: number, tokens: number): Promise<boolean> =>
      (await this.#count(from(begin), options)) <= tokens;
    if (await fits(last, limit)) return fitted(last);
    // A turn is dropped as a whole, so that the order of roles stays as templates demand.
    const turns = messages.flatMap(({ role }, i) =>
      role === 'user' && messages[i - 1]?.role !== 'user' && i > last && i > system.length ? [i] : [],
    );
    let [low, high] = [0, turns.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (await fits(turns[middle], limit * KEPT_SHARE)) high = middle;
      else low = middle + 1;
    }
    return fitted(turns[low] ?? last);
  }

  #limit({ maxTokens }: ChatOptions): number {
    const { maxModelLen } = this.engine.info;
    const answer = Math.min(maxTokens ?? ANSWER_TOKENS, Math.floor(maxModelLen / (maxTokens === undefined ? 4 : 2)));
    return maxModelLen - answer;
  }

  /** Saves the count: no token is shorter than a byte. */
  #surelyFits(sent: readonly ChatMessage[], limit: number): boolean {
    if (this.#lastTokens === undefined) return false;
    const bytes = sent.reduce((sum, { content }) => sum + Buffer.byteLength(joinContent(content)) + TEMPLATE_TOKENS, 0);
    return this.#lastTokens + bytes <= limit;
  }

  /** Number of tokens of a prompt, by the template of the model. */
  async #count(messages: readonly ChatMessage[], options: ChatOptions): Promise<number> {
    const { signal, cacheSalt: _, requestId: _id, ...chat } = options as ChatOptions & CallContext;
    const text = await this.engine.renderChat(messages, chat, { signal });
    const { addSpecialTokens = false } = options;
    return (await this.engine.tokenize(text, { addSpecialTokens }, { signal })).length;
  }
}

function isSystem(message: ChatMessage | undefined): boolean {
  return message?.role === 'system' || message?.role === 'developer';
}

/** Number of system messages at the start. */
function countSystem(messages: readonly ChatMessage[]): number {
  const index = messages.findIndex((message) => !isSystem(message));
  return index < 0 ? messages.length : index;
}

function toMessages(message: string | ChatMessage | readonly ChatMessage[]): readonly ChatMessage[] {
  if (typeof message === 'string') return [{ role: 'user', content: message }];
  return Array.isArray(message) ? (message as readonly ChatMessage[]) : [message as ChatMessage];
}

/** The message of an answer in a history. */
export function toMessage({ text, toolCalls, reasoning }: Choice): ChatMessage {
  return {
    role: 'assistant',
    content: text,
    ...(toolCalls.length === 0 ? {} : { toolCalls }),
    ...(reasoning === undefined ? {} : { reasoning }),
  };
}
