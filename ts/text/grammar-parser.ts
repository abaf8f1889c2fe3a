import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { Worker } from 'node:worker_threads';
import { loadAddon } from '../addon';
import type { NativeParsedGrammar } from '../addon-types';
import { CapstanError } from '../errors';
import { ThreadCalls } from '../thread-calls';
import { reviveError, type ThreadError } from '../thread-error';
import { buildGrammarSource, type GrammarSpec } from './grammar-source';

const THREAD_FILE = join(__dirname, 'grammar-thread.js');

/** One thread for the process, because building a grammar needs no model. */
let thread: ThreadCalls<ThreadError> | undefined;

/**
 * Builds and parses the grammar of a {@link GrammarSpec} in JSON text. Returns a handle for `compileGrammar`. The work
 * runs in a thread, because a schema may take half a second and prompts must not wait for it. Without the compiled file
 * (in tests from sources and in bundles) it runs in the calling thread.
 * @throws CapstanError `invalid_argument` for a schema that is not supported.
 */
export function parseGrammar(json: string, start?: () => Worker): Promise<NativeParsedGrammar> {
  if (start === undefined && !existsSync(THREAD_FILE)) return parseGrammarHere(json);
  thread ??= new ThreadCalls<ThreadError>({
    start: start ?? (() => new Worker(THREAD_FILE, { name: 'capstan-grammar' })),
    revive: reviveError,
    toError: (message, cause) => new CapstanError('internal_error', `The grammar thread ${message}`, { cause }),
  });
  return thread.call('parseGrammar', [json]) as Promise<NativeParsedGrammar>;
}

/** {@link parseGrammar} in the calling thread. */
export function parseGrammarHere(json: string): Promise<NativeParsedGrammar> {
  return new Promise((resolve) => {
    resolve(loadAddon().parseGrammar(buildGrammarSource(JSON.parse(json) as GrammarSpec)));
  });
}
