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

/** Returns undefined without a profile. @throws UsageError for a file of others' making or with a wider mode */
export function readProfile(env: NodeJS.ProcessEnv): Profile | undefined {
  const file = profileFile(env);
  const found = readPrivate(file);
  if (found === undefined) return undefined;
  const mode = (found.mode & 0o777).toString(8);
  if ((found.mode & 0o077) !== 0 && process.platform !== 'win32')
    throw new UsageError(
      `${file}: expected mode 600, got ${mode}. Another user may have read the token: delete it in the console, then run capstan login again`,
    );
  return parseProfile(found.text, file);
}

/** Replaces the profile in one step. Only the user can read it. Returns its file. */
export function writeProfile(env: NodeJS.ProcessEnv, { url, token }: Profile): string {
  const file = profileFile(env);
  fs.mkdirSync(path.dirname(file), { recursive: true, mode: 0o700 });
  const fresh = `${file}.${process.pid}`;
  try {
    fs.writeFileSync(fresh, `${JSON.stringify({ url, token })}\n`, { mode: 0o600, flag: 'wx' });
    fs.renameSync(fresh, file);
  } catch (error) {
    fs.rmSync(fresh, { force: true });
    throw error;
  }
  return file;
}

/** Returns the file, or undefined if there was no profile. */
export function deleteProfile(env: NodeJS.ProcessEnv): string | undefined {
  const file = profileFile(env);
  if (!fs.existsSync(file)) return undefined;
  fs.rmSync(file);
  return file;
}

/** Reads the text and the mode of the same file. */
function readPrivate(file: string): { text: string; mode: number } | undefined {
  let descriptor: number;
  try {
    descriptor = fs.openSync(file, 'r');
  } catch (error) {
    const { code = '' } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT' || code === 'ENOTDIR') return undefined;
    throw new UsageError(`${file}: expected a readable file (${code})`);
  }
  try {
    return { text: fs.readFileSync(descriptor, 'utf8'), mode: fs.fstatSync(descriptor).mode };
  } finally {
    fs.closeSync(descriptor);
  }
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
  throw new UsageError(`${file}: expected the JSON that capstan login writes. Run capstan login URL again`);
}
