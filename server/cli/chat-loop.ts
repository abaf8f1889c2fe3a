import { readFileSync, writeFileSync } from 'node:fs';
import { createInterface, type Interface } from 'node:readline';
import type { Readable, Writable } from 'node:stream';
import type { ChatEvent, ChatMessage, ChatOptions, Engine, FinishEvent, Generation } from '../../ts';
import { CapstanError, ChatSession } from '../../ts/index.js';
import { UsageError } from '../base/usage-error';
import { counted } from '../base/words';
import { printable, type Style, styleFor } from './terminal-style';

const HELP = `/system TEXT   set the system message, and start again
/reset         start again with the same system message
/save FILE     write the conversation to a file, for capstan chat --load FILE
/help          print this help
/exit          leave, as Ctrl-D does
"""            begin and end a message of several lines; \\ at the end of a line continues it too
Ctrl-C stops an answer. Ctrl-D leaves.
`;

/** The conversation and the settings of a chat. */
export interface ChatLoopOptions extends ChatOptions {
  system: string | undefined;
  messages: readonly ChatMessage[] | undefined;
}

/** Reads messages and commands line by line, and writes the answers. */
export class ChatLoop {
  readonly #engine: Engine;
  readonly #options: ChatOptions;
  #session: ChatSession;
  #answer: Generation<ChatEvent> | undefined;
  #style: Style = styleFor(false, {});
  /** Input and output are a terminal. */
  #isTerminal = false;
  #isOutputTerminal = false;
  #write: (text: string) => void = () => {};
  /** Lines of an unfinished message. */
  #lines: string[] = [];
  #isInBlock = false;
  #exitCode = 0;
  /** The lines that a pipe has read ahead come even from a closed reader. */
  #isStopped = false;

  constructor(engine: Engine, { system, messages = [], ...options }: ChatLoopOptions) {
    this.#engine = engine;
    this.#options = options;
    this.#session = new ChatSession(engine, { ...options, system, messages });
  }

  /** Returns the exit code when the input ends: 1 if a message of a pipe failed. */
  async run(input: Readable & { isTTY?: boolean }, output: Writable & { isTTY?: boolean }): Promise<number> {
    this.#isOutputTerminal = output.isTTY === true;
    this.#isTerminal = input.isTTY === true && this.#isOutputTerminal;
    this.#style = styleFor(this.#isTerminal, process.env);
    this.#write = (text) => void output.write(text);
    const terminal = this.#isTerminal ? { output, terminal: true } : { terminal: false };
    const reader = createInterface({ input, ...terminal, historySize: 1000 });
    const lines: AsyncIterator<string, undefined> = reader[Symbol.asyncIterator]();
    const onInterrupt = (): void => this.#interrupt(reader);
    reader.on('SIGINT', onInterrupt);
    const onOutputGone = (): void => this.#stop(reader, 0);
    process.on('SIGINT', onInterrupt);
    output.on('error', onOutputGone);
    try {
      this.#note(`${this.#engine.info.modelName}. /help lists the commands.`);
      while (!this.#isStopped) {
        this.#prompt(reader);
        const { done, value } = await lines.next();
        if (done === true || this.#isStopped) break;
        await this.#take(value, reader);
      }
      if (this.#isTerminal) this.#write('\n');
      return this.#exitCode;
    } finally {
      process.off('SIGINT', onInterrupt);
      output.off('error', onOutputGone);
      reader.close();
    }
  }

  #prompt(reader: Interface): void {
    if (!this.#isTerminal) return;
    reader.setPrompt(this.#style.bold(this.#isInBlock || this.#lines.length > 0 ? '… ' : '> '));
    reader.prompt();
  }

  #interrupt(reader: Interface): void {
    if (!this.#isTerminal) return this.#stop(reader, 130);
    if (this.#answer !== undefined) return this.#answer.abort();
    this.#lines = [];
    this.#isInBlock = false;
    this.#write(`\n${this.#style.dim('Ctrl-D leaves.')}\n`);
    // Clears the typed line.
    reader.write(null, { ctrl: true, name: 'u' });
    this.#prompt(reader);
  }

  #stop(reader: Interface, exitCode: number): void {
    this.#isStopped = true;
    this.#exitCode = exitCode;
    this.#answer?.abort();
    reader.close();
  }

  /** Adds a line to the message, and sends the message if it is complete. */
  async #take(line: string, reader: Interface): Promise<void> {
    if (line.trim() === '"""') {
      this.#isInBlock = !this.#isInBlock;
      if (this.#isInBlock) return;
      return this.#send(this.#takeLines());
    }
    const continues = !this.#isInBlock && line.endsWith('\\');
    this.#lines.push(continues ? line.slice(0, -1) : line);
    if (this.#isInBlock || continues) return;
    const text = this.#takeLines();
    if (text.startsWith('/')) this.#command(text, reader);
    else await this.#send(text);
  }

  #takeLines(): string {
    return this.#lines.splice(0).join('\n');
  }

  #command(text: string, reader: Interface): void {
    const [name, ...rest] = text.trim().split(/\s+/);
    const argument = text.trim().slice(name.length).trim();
    switch (name) {
      case '/help':
        return this.#write(HELP);
      case '/reset':
        return this.#session.reset();
      case '/system':
        this.#session = new ChatSession(this.#engine, {
          ...this.#options,
          ...(rest.length === 0 ? {} : { system: argument }),
        });
        return;
      case '/save':
        return this.#save(argument);
      case '/exit':
      case '/quit':
      case '/bye':
        return this.#stop(reader, this.#exitCode);
      default:
        return this.#fail(`expected /help, /system, /reset, /save or /exit, got ${name}`);
    }
  }

  #save(file: string): void {
    if (file === '') return this.#fail('expected a file: /save conversation.json');
    try {
      writeFileSync(file, `${JSON.stringify(this.#session, null, 2)}\n`);
      this.#note(`Saved ${counted(this.#session.messages.length, 'message')} to ${file}.`);
    } catch (error) {
      this.#fail(`${file} cannot be written: ${(error as Error).message}`);
    }
  }

  async #send(message: string): Promise<void> {
    if (message.trim() === '') return;
    const numDropped = this.#session.numDropped;
    const answer = this.#session.send(message);
    this.#answer = answer;
    let text = '';
    try {
      for await (const event of answer) {
        if (event.type === 'delta') text += event.textDelta;
        this.#show(event);
      }
      if (this.#session.numDropped > numDropped)
        this.#note('The conversation no longer fits the context. The oldest messages were left out.');
    } catch (error) {
      this.#write('\n');
      if (!(error instanceof CapstanError && error.code === 'aborted')) this.#fail((error as Error).message);
      // What was shown of a stopped answer stays in the conversation.
      else if (text !== '')
        this.#session.append({ role: 'user', content: message }, { role: 'assistant', content: text });
      if (!this.#isTerminal && !this.#isStopped) this.#exitCode ||= 1;
    } finally {
      this.#answer = undefined;
    }
  }

  #show(event: ChatEvent): void {
    if (event.type === 'delta') this.#write(this.#clean(event.textDelta));
    // A pipe gets only the answers.
    else if (event.type === 'reasoning' && this.#isTerminal) this.#write(this.#style.dim(this.#clean(event.textDelta)));
    else if (event.type === 'finish') this.#finish(event);
  }

  #finish({ usage, finishReason }: FinishEvent): void {
    this.#write('\n');
    const { completionTokens, timings } = usage;
    const seconds = timings.decodeMs / 1000;
    const speed =
      completionTokens > 1 && seconds > 0 ? `, ${((completionTokens - 1) / seconds).toFixed(1)} tokens/s` : '';
    const first = `first token after ${Math.round(timings.queueMs + timings.prefillMs)} ms`;
    this.#note(
      `${counted(completionTokens, 'token')}${speed}, ${first}${finishReason === 'length' ? ', cut off' : ''}`,
    );
  }

  #note(text: string): void {
    if (this.#isTerminal) this.#write(`${this.#style.dim(this.#clean(text))}\n`);
  }

  #clean(text: string): string {
    return this.#isOutputTerminal ? printable(text) : text;
  }

  #fail(message: string): void {
    process.stderr.write(`error: ${printable(message)}\n`);
    if (!this.#isTerminal) this.#exitCode = 1;
  }
}

/** Reads what `/save` wrote. @throws UsageError */
export function readConversation(file: string): readonly ChatMessage[] {
  try {
    const { messages } = JSON.parse(readFileSync(file, 'utf8')) as { messages?: unknown };
    if (Array.isArray(messages)) return messages as ChatMessage[];
  } catch (error) {
    throw new UsageError(`--load: ${file} cannot be read: ${(error as Error).message}`);
  }
  throw new UsageError(`--load: expected a file that /save wrote, got ${file}`);
}
