import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { UsageError } from '../base/usage-error';

/** The service and the management token that `capstan login` keeps for the user. */
export interface Profile {
  /** Without a trailing slash. */
  url: string;
  token: string;
}

/** Returns the file of the profile, in the user's configuration folder. */
export function profileFile(env: NodeJS.ProcessEnv): string {
  const { XDG_CONFIG_HOME: configHome = '' } = env;
  const folder = path.isAbsolute(configHome) ? configHome : path.join(env.HOME ?? os.homedir(), '.config');
  return path.join(folder, 'capstan', 'profile.json');
}

const MAX_PROFILE_BYTES = 65_536;
/** Refuses a symbolic link, and does not wait for the writer of a FIFO. Windows has neither flag. */
const OPEN_FLAGS = fs.constants.O_RDONLY | (fs.constants.O_NOFOLLOW ?? 0) | (fs.constants.O_NONBLOCK ?? 0);

/** Returns undefined without a profile. @throws UsageError for a file that `capstan login` did not write this way */
export function readProfile(env: NodeJS.ProcessEnv): Profile | undefined {
  const file = profileFile(env);
  const text = readPrivate(file);
  return text === undefined ? undefined : parseProfile(text, file);
}

/** Replaces the profile in one step. Only the user can read it. Returns its file. */
export function writeProfile(env: NodeJS.ProcessEnv, { url, token }: Profile): string {
  const file = profileFile(env);
  const fresh = `${file}.${process.pid}`;
  const cannotKeep = (error: unknown): UsageError =>
    new UsageError(`${file}: cannot save the login (${codeOf(error)})`);
  try {
    fs.mkdirSync(path.dirname(file), { recursive: true, mode: 0o700 });
  } catch (error) {
    throw cannotKeep(error);
  }
  try {
    fs.writeFileSync(fresh, `${JSON.stringify({ url, token })}\n`, { mode: 0o600, flag: 'wx' });
    fs.renameSync(fresh, file);
  } catch (error) {
    fs.rmSync(fresh, { force: true });
    throw cannotKeep(error);
  }
  return file;
}

/** Returns the file, or undefined if there was no profile. @throws UsageError if it cannot be deleted */
export function deleteProfile(env: NodeJS.ProcessEnv): string | undefined {
  const file = profileFile(env);
  try {
    if (fs.lstatSync(file).isDirectory())
      throw new UsageError(`${file}: expected a file that capstan login wrote, got a folder`);
    fs.unlinkSync(file);
  } catch (error) {
    if (error instanceof UsageError) throw error;
    if (isMissing(error)) return undefined;
    throw new UsageError(`${file}: cannot delete the login (${codeOf(error)})`);
  }
  return file;
}

/** Returns undefined without a file. @throws UsageError unless the text is the user's own */
function readPrivate(file: string): string | undefined {
  let descriptor: number;
  try {
    descriptor = fs.openSync(file, OPEN_FLAGS);
  } catch (error) {
    if (isMissing(error)) return undefined;
    if (codeOf(error) === 'ELOOP') throw wrongKind(file, 'a symbolic link');
    throw new UsageError(`${file}: expected a readable file (${codeOf(error)})`);
  }
  try {
    const stats = fs.fstatSync(descriptor);
    demandOwn(file, stats);
    if (stats.size > MAX_PROFILE_BYTES) throw notProfile(file);
    return fs.readFileSync(descriptor, 'utf8');
  } finally {
    fs.closeSync(descriptor);
  }
}

/** Another user could have written the URL that the token is sent to, or read the token. */
function demandOwn(file: string, stats: fs.Stats): void {
  if (!stats.isFile()) throw wrongKind(file, stats.isDirectory() ? 'a folder' : 'another kind of file');
  const uid = process.getuid?.();
  if (uid !== undefined && stats.uid !== uid)
    throw new UsageError(
      `${file}: expected a file of this user (uid ${uid}), got one of uid ${stats.uid}. Run the command as that user, or delete the file and run capstan login again`,
    );
  if ((stats.mode & 0o077) === 0 || process.platform === 'win32') return;
  throw new UsageError(
    `${file}: expected mode 600, got ${(stats.mode & 0o777).toString(8)}. Another user may have read the token: delete it in the console, then run capstan login again`,
  );
}

function wrongKind(file: string, got: string): UsageError {
  return new UsageError(`${file}: expected a regular file, got ${got}. Delete it, then run capstan login again`);
}

function notProfile(file: string): UsageError {
  return new UsageError(`${file}: expected the JSON that capstan login writes. Run capstan login URL again`);
}

function codeOf(error: unknown): string {
  return (error as NodeJS.ErrnoException).code ?? (error as Error).message;
}

function isMissing(error: unknown): boolean {
  return ['ENOENT', 'ENOTDIR'].includes(codeOf(error));
}

/** NOTE: the message must not repeat the text, which may contain the token. */
function parseProfile(text: string, file: string): Profile {
  try {
    const { url, token } = JSON.parse(text) as Partial<Profile>;
    if (typeof url === 'string' && URL.canParse(url) && typeof token === 'string' && token !== '')
      return { url, token };
  } catch {
    // Reported below.
  }
  throw notProfile(file);
}
