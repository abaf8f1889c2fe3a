import { readFileSync } from 'node:fs';
import { UsageError } from 'capstan/internal';
import type { ServiceStore } from '../store/store';
import { ServiceError } from '../store/errors';
import type { UpOptions } from './options';

export type FirstRun =
  /** An account that can sign in already exists. */
  | { type: 'done' }
  /** The administrator was created just now, from the flags. */
  | { type: 'made'; email: string }
  /** Token of the one-time setup link. NOTE: print it to standard output only, never to a log. */
  | { type: 'link'; token: string };

/**
 * Creates the first administrator from the flags, or a setup link with which a user creates it.
 * Throws UsageError when the flags do not form a valid account.
 */
export async function bootstrap(
  store: Pick<ServiceStore, 'ensureFirstAdmin' | 'createBootstrapLink'>,
  { bootstrapEmail, bootstrapPasswordFile }: Pick<UpOptions, 'bootstrapEmail' | 'bootstrapPasswordFile'>,
): Promise<FirstRun> {
  try {
    if (bootstrapEmail === undefined || bootstrapPasswordFile === undefined)
      return { type: 'link', token: await store.createBootstrapLink() };
    const account = await store.ensureFirstAdmin({
      email: bootstrapEmail,
      name: bootstrapEmail.split('@')[0],
      password: readPassword(bootstrapPasswordFile),
    });
    return account === undefined ? { type: 'done' } : { type: 'made', email: account.email };
  } catch (error) {
    if (!(error instanceof ServiceError)) throw error;
    if (error.code === 'gone') return { type: 'done' };
    throw new UsageError(
      error.message.replace(
        /^(email|password):/,
        (_all, field: string) => `${field === 'email' ? '--bootstrap-email' : '--bootstrap-password-file'}:`,
      ),
    );
  }
}

/** Drops the trailing line break that editors add. */
function readPassword(file: string): string {
  try {
    return readFileSync(file, 'utf8').replace(/\r?\n$/, '');
  } catch (error) {
    throw new UsageError(
      `--bootstrap-password-file: expected a readable file, got '${file}' (${(error as NodeJS.ErrnoException).code ?? 'unreadable'})`,
    );
  }
}
