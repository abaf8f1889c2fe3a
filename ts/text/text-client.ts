import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { Worker } from 'node:worker_threads';
import type { NativeParsedGrammar } from '../addon-types';
import { CapstanError, closedError } from '../errors';
import { abortedError } from '../job-queue';
import type {
  Conversation,
  EncodedChat,
  EncodeOptions,
  TextServiceOptions,
  TextTraits,
  TextWork,
} from './text-service';
import type { TextError, TextMessage, TextMethod, TextReply } from './text-thread';

/** A loaded {@link TextWork}. */
export interface OpenText extends TextWork {
  readonly traits: TextTraits;
  /** Ends the thread. Open calls reject with `engine_closed`. */
  close(): Promise<void>;
}

const THREAD_FILE = join(__dirname, 'text-thread.js');

/**
 * Loads the tokenizer and the chat template in a thread, so that long texts never hold the caller's event loop. Without
 * the compiled file (in tests from sources and in bundles) the work runs in the calling thread.
 * @throws CapstanError as `TextService.load`.
 */
export async function openText(options: TextServiceOptions, createThread?: typeof startThread): Promise<OpenText> {
  if (createThread === undefined && !existsSync(THREAD_FILE)) {
    const { TextService } = await import('./text-service.js');
    return Object.assign(await TextService.load(options), { close: () => Promise.resolve() });
  }
  return TextThread.open(options, createThread ?? startThread);
}

function startThread(options: TextServiceOptions): Worker {
  return new Worker(THREAD_FILE, { workerData: options, name: 'capstan-text' });
}

interface PendingCall {
  resolve(value: unknown): void;
  reject(error: CapstanError): void;
}

/** Sends calls to the thread. If the thread dies, its open calls fail and the next call starts a new one. */
class TextThread implements OpenText {
  traits!: TextTraits;
  readonly #start: () => Worker;
  readonly #pending = new Map<number, PendingCall>();
  #worker: Worker | undefined;
  #isClosed = false;
  #lastId = 0;

  private constructor(start: () => Worker) {
    this.#start = start;
  }

  static async open(options: TextServiceOptions, start: typeof startThread): Promise<TextThread> {
    const thread = new TextThread(() => start(options));
    thread.traits = await new Promise<TextTraits>((resolve, reject) => {
      thread.#pending.set(0, { resolve: resolve, reject });
      thread.#spawn();
    });
    return thread;
  }

  encode(text: string, options: EncodeOptions, signal?: AbortSignal): Promise<Int32Array> {
    return this.#call('encode', [text, options], signal);
  }

  encodeTexts(texts: readonly string[]): Promise<Int32Array[]> {
    return this.#call('encodeTexts', [texts], undefined);
  }

  parseGrammar(json: string): Promise<NativeParsedGrammar> {
    return this.#call('parseGrammar', [json], undefined);
  }

  render(conversation: Conversation, signal?: AbortSignal): Promise<string> {
    return this.#call('render', [conversation], signal);
  }

  encodeChat(conversation: Conversation, options: EncodeOptions, signal?: AbortSignal): Promise<EncodedChat> {
    return this.#call('encodeChat', [conversation, options], signal);
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    const worker = this.#worker;
    this.#fail(worker, closedError());
    await worker?.terminate();
  }

  async #call<T>(method: TextMethod, args: unknown[], signal: AbortSignal | undefined): Promise<T> {
    if (this.#isClosed) throw closedError();
    if (signal?.aborted === true) throw abortedError(signal);
    const worker = (this.#worker ??= this.#spawn());
    const id = ++this.#lastId;
    const onAbort = () => {
      worker.postMessage({ abort: id } satisfies TextMessage);
      this.#settle(id)?.reject(abortedError(signal!));
    };
    signal?.addEventListener('abort', onAbort, { once: true });
    try {
      return await new Promise<T>((resolve, reject) => {
        post(worker, { id, method, args });
        this.#pending.set(id, { resolve: resolve, reject });
        // Keeps the process alive only while a call is open.
        worker.ref();
      });
    } finally {
      signal?.removeEventListener('abort', onAbort);
    }
  }

  #spawn(): Worker {
    const worker = (this.#worker = this.#start());
    worker.on('message', (message: TextReply) => {
      const [id, take] = 'traits' in message ? [0, message.traits] : [message.id, message];
      const call = this.#settle(id);
      if ('error' in message) call?.reject(toError(message.error));
      else call?.resolve('value' in take ? take.value : take);
    });
    worker.on('error', (error: Error) =>
      this.#fail(
        worker,
        new CapstanError('internal_error', `The text thread failed: ${error.message}`, { cause: error }),
      ),
    );
    worker.on('exit', () => this.#fail(worker, new CapstanError('internal_error', 'The text thread exited')));
    return worker;
  }

  #settle(id: number): PendingCall | undefined {
    const call = this.#pending.get(id);
    this.#pending.delete(id);
    if (this.#pending.size === 0) this.#worker?.unref();
    return call;
  }

  #fail(worker: Worker | undefined, error: CapstanError): void {
    if (this.#worker !== worker) return;
    this.#worker = undefined;
    for (const id of [...this.#pending.keys()]) this.#settle(id)?.reject(error);
  }
}

/** @throws CapstanError `invalid_argument` for values such as functions, which cannot be sent to a thread. */
function post(worker: Worker, message: TextMessage): void {
  try {
    worker.postMessage(message);
  } catch (cause) {
    throw new CapstanError(
      'invalid_argument',
      `expected values that can be copied to a thread, got others (${(cause as Error).message})`,
      { cause },
    );
  }
}

function toError({ code, message, stack, ...details }: TextError): CapstanError {
  const error = new CapstanError(code, message, details);
  if (stack !== undefined) error.stack = stack;
  return error;
}
