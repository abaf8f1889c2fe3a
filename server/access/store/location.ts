import os from 'node:os';
import path from 'node:path';
import { AccessError } from '../errors';

/** Location of the key database. */
export type DatabaseLocation = { kind: 'file'; file: string } | { kind: 'postgres'; url: string };

export interface LocationOptions {
  /** `--keys-db`: a file or a `postgres://` URL. */
  keysDb?: string;
  /** `--data-dir`: the folder that contains `capstan.db`. */
  dataDir?: string;
}

/**
 * Returns the first location of: `--keys-db`, `--data-dir`, `CAPSTAN_KEYS_DB`, `CAPSTAN_DATA_DIR`, `DATABASE_URL`, and
 * `capstan/capstan.db` in the user's data directory.
 */
export function resolveLocation(options: LocationOptions, env: NodeJS.ProcessEnv = process.env): DatabaseLocation {
  return ownLocation(options, env) ?? sharedLocation(env) ?? defaultLocation(env);
}

/** Returns the location that a flag or a variable of Capstan names. */
export function ownLocation(
  { keysDb, dataDir }: LocationOptions,
  env: NodeJS.ProcessEnv,
): DatabaseLocation | undefined {
  const { CAPSTAN_KEYS_DB: keysDbVariable = '', CAPSTAN_DATA_DIR: dataDirVariable = '' } = env;
  if (keysDb !== undefined) return fromText(keysDb, '--keys-db');
  if (dataDir !== undefined) return { kind: 'file', file: path.resolve(dataDir, 'capstan.db') };
  if (keysDbVariable !== '') return fromText(keysDbVariable, 'CAPSTAN_KEYS_DB');
  if (dataDirVariable !== '') return { kind: 'file', file: path.resolve(dataDirVariable, 'capstan.db') };
  return undefined;
}

/** Returns the location of `DATABASE_URL`, which other programs use, too. */
export function sharedLocation({ DATABASE_URL: url = '' }: NodeJS.ProcessEnv): DatabaseLocation | undefined {
  return url === '' ? undefined : fromText(url, 'DATABASE_URL');
}

export function defaultLocation({ XDG_DATA_HOME: dataHome = '', HOME: home }: NodeJS.ProcessEnv): DatabaseLocation {
  const folder = path.isAbsolute(dataHome) ? dataHome : path.join(home ?? os.homedir(), '.local', 'share');
  return { kind: 'file', file: path.join(folder, 'capstan', 'capstan.db') };
}

export interface ServeAccessOptions extends LocationOptions {
  accessControl: boolean;
  apiKeys: readonly string[];
}

/** Returns the database of a standalone server. Undefined if access control is off or uses only fixed keys. */
export function resolveServeLocation(
  options: ServeAccessOptions,
  env: NodeJS.ProcessEnv = process.env,
): DatabaseLocation | undefined {
  const isWanted = options.keysDb !== undefined || (options.accessControl && options.apiKeys.length === 0);
  return isWanted ? resolveLocation(options, env) : undefined;
}

/** Describes a location for messages, without the password of a URL. */
export function describeLocation(location: DatabaseLocation): string {
  if (location.kind === 'file') return location.file;
  const { hostname, port, pathname } = new URL(location.url);
  return `PostgreSQL at ${hostname || 'localhost'}${port === '' ? '' : `:${port}`}${pathname}`;
}

function fromText(text: string, source: string): DatabaseLocation {
  if (text === '')
    throw new AccessError('invalid_argument', `${source}: expected a file or a postgres:// URL, got an empty value`);
  if (/^postgres(ql)?:\/\//i.test(text)) {
    if (!URL.canParse(text)) throw new AccessError('invalid_argument', `${source}: expected a valid postgres:// URL`);
    return { kind: 'postgres', url: text };
  }
  const scheme = /^([a-z][a-z0-9+.-]+):\/\//i.exec(text)?.[1];
  if (scheme !== undefined && scheme !== 'file')
    throw new AccessError('invalid_argument', `${source}: expected a file or a postgres:// URL, got ${scheme}://`);
  return { kind: 'file', file: path.resolve(text.replace(/^file:\/\//i, '')) };
}
