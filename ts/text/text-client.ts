import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { Worker } from 'node:worker_threads';
import { CapstanError, closedError } from '../errors';
import { ThreadCalls } from '../thread-calls';
import { reviveError, type ThreadError } from '../thread-error';
import type {
  Conversation,
  EncodedChat,
  EncodeOptions,
  InputOptions,
  TextServiceOptions,
  TextTraits,
  TextWork,
} from './text-service';
import type { EncodedInput, TextInput } from './truncate-input';

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

/** Sends calls to the thread. If the thread dies, its open calls fail and the next call starts a new one. */
class TextThread implements OpenText {
  traits!: TextTraits;
  readonly #thread: ThreadCalls<ThreadError>;

  private constructor(start: () => Worker) {
    this.#thread = new ThreadCalls({
      start,
      revive: reviveError,
      toError: (message, cause) => new CapstanError('internal_error', `The text thread ${message}`, { cause }),
    });
  }

  static async open(options: TextServiceOptions, start: typeof startThread): Promise<TextThread> {
    const text = new TextThread(() => start(options));
    try {
      text.traits = (await text.#thread.call('traits', [])) as TextTraits;
    } catch (error) {
      await text.close();
      throw error;
    }
    return text;
  }

  encode(text: string, options: EncodeOptions, signal?: AbortSignal): Promise<Int32Array> {
    return this.#call('encode', [text, options], signal);
  }

  encodeInputs(inputs: readonly TextInput[], options: InputOptions, signal?: AbortSignal): Promise<EncodedInput[]> {
    return this.#call('encodeInputs', [inputs, options], signal);
  }

  encodeTexts(texts: readonly string[]): Promise<Int32Array[]> {
    return this.#call('encodeTexts', [texts]);
  }

  render(conversation: Conversation, signal?: AbortSignal): Promise<string> {
    return this.#call('render', [conversation], signal);
  }

  encodeChat(conversation: Conversation, options: EncodeOptions, signal?: AbortSignal): Promise<EncodedChat> {
    return this.#call('encodeChat', [conversation, options], signal);
  }

  close(): Promise<void> {
    return this.#thread.close(closedError());
  }

  /** @throws CapstanError `invalid_argument` for values such as functions, which cannot be sent to a thread. */
  async #call<T>(method: keyof TextWork, args: unknown[], signal?: AbortSignal): Promise<T> {
    try {
      return (await this.#thread.call(method, args, { signal })) as T;
    } catch (cause) {
      if ((cause as Error).name !== 'DataCloneError') throw cause;
      throw new CapstanError(
        'invalid_argument',
        `expected values that can be copied to a thread, got others (${(cause as Error).message})`,
        { cause },
      );
    }
  }
}
