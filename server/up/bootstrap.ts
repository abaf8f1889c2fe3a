import { readFileSync } from 'node:fs';
import { UsageError } from '../flag-values';
import type { ServiceStore } from '../service/store';
import { ServiceError } from '../service/errors';
import type { UpOptions } from './options';

export type FirstRun =
  /** Somebody can sign in already. */
  | { type: 'done' }
  /** Made just now, from the flags. */
  | { type: 'made'; email: string }
  /** For a person to open: the token of a link that works once. NOTE: for standard output alone, never for a log. */
  | { type: 'link'; token: string };

/** Makes the first administrator from the flags, or the link by which a person becomes it. @throws UsageError where the flags are no account. */
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

/** Without the line's end, which an editor puts there. */
function readPassword(file: string): string {
  try {
    return readFileSync(file, 'utf8').replace(/\r?\n$/, '');
  } catch (error) {
    throw new UsageError(
      `--bootstrap-password-file: expected a file that can be read, got '${file}' (${(error as NodeJS.ErrnoException).code ?? 'unreadable'})`,
    );
  }
}
