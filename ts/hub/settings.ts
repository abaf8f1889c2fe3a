import { readFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join, resolve } from 'node:path';
import { checkOneOf, checkString } from '../checks';
import { CapstanError } from '../errors';

/** A site that models are downloaded from. */
export type HubKind = 'huggingface' | 'modelscope';

const HUBS: readonly HubKind[] = ['huggingface', 'modelscope'];

/** Where models come from and where they are kept. */
export interface HubSettings {
  kind: HubKind;
  /** Without a trailing slash in its path, and without a user name or password. */
  endpoint: URL;
  /** A secret. It is sent to the endpoint's origin only. */
  token: string | undefined;
  /** Folder in the layout of huggingface_hub. */
  cacheDir: string;
  /** Whether requests are forbidden. */
  isOffline: boolean;
  defaultRevision: string;
  /** For messages: where the token comes from. */
  tokenSource: string;
  /** For messages: how to use another disk. */
  moveAdvice: string;
}

/** Settings that come from options, and not from the environment. */
export interface HubChoice {
  hub?: HubKind | undefined;
  token?: string | null | undefined;
  cacheDir?: string | undefined;
}

/** @throws CapstanError `invalid_argument` that names the first invalid option. */
export function checkHubChoice({ hub, token, cacheDir }: HubChoice): HubChoice {
  if (hub !== undefined) checkOneOf('hub', hub, HUBS);
  if (token !== undefined && token !== null) checkString('token', token);
  if (cacheDir !== undefined) checkString('cacheDir', cacheDir);
  return { hub, token, cacheDir };
}

const ENDPOINTS: Readonly<Record<HubKind, string>> = {
  huggingface: 'https://huggingface.co',
  modelscope: 'https://modelscope.cn',
};
const DEFAULT_REVISIONS: Readonly<Record<HubKind, string>> = { huggingface: 'main', modelscope: 'master' };
const TOKEN_VARIABLES = { huggingface: 'HF_TOKEN', modelscope: 'MODELSCOPE_API_TOKEN' } as const;
const MAX_TOKEN_CHARS = 1024;

/**
 * Reads the environment variables of huggingface_hub, and `MODELSCOPE_API_TOKEN`.
 * @throws CapstanError `invalid_argument` that names the variable.
 */
export function hubSettings(choice: HubChoice, env: NodeJS.ProcessEnv): HubSettings {
  const { hub: kind = 'huggingface', token, cacheDir } = checkHubChoice(choice);
  const home = homeFolder(env);
  const ownFolder = set(env.HF_HUB_CACHE) ?? set(env.HUGGINGFACE_HUB_CACHE);
  const shared = ownFolder === undefined ? join(home, 'hub') : expand(ownFolder, env);
  const isHuggingFace = kind === 'huggingface';
  const readOwnToken = (): string | undefined =>
    isHuggingFace ? readToken(home, env) : checkToken(env.MODELSCOPE_API_TOKEN, TOKEN_VARIABLES.modelscope);
  return {
    kind,
    endpoint: isHuggingFace ? readEndpoint(env.HF_ENDPOINT) : new URL(ENDPOINTS.modelscope),
    token: token === undefined ? readOwnToken() : checkToken(token ?? undefined, 'token'),
    // Other tools assume that the shared folder holds copies of Hugging Face's repositories only.
    cacheDir: resolve(cacheDir ?? (isHuggingFace ? shared : join(home, 'modelscope'))),
    isOffline: isTrue(env.HF_HUB_OFFLINE) || isTrue(env.TRANSFORMERS_OFFLINE),
    defaultRevision: DEFAULT_REVISIONS[kind],
    tokenSource: token === undefined ? TOKEN_VARIABLES[kind] : 'the option token',
    moveAdvice: `${cacheDir === undefined ? 'set HF_HOME to' : 'use'} a folder on another disk`,
  };
}

function homeFolder(env: NodeJS.ProcessEnv): string {
  const home = set(env.HF_HOME);
  if (home !== undefined) return expand(home, env);
  const cache = set(env.XDG_CACHE_HOME);
  return join(cache === undefined ? join(userFolder(env), '.cache') : expand(cache, env), 'huggingface');
}

function readEndpoint(variable: string | undefined): URL {
  const text = set(variable) ?? ENDPOINTS.huggingface;
  const url = URL.canParse(text) ? new URL(text) : undefined;
  const isUsable = url !== undefined && /^https?:$/.test(url.protocol) && url.search === '' && url.hash === '';
  // The text may contain a password, so the message does not repeat it.
  if (!isUsable || url.username !== '' || url.password !== '')
    throw new CapstanError(
      'invalid_argument',
      `HF_ENDPOINT: expected a URL such as ${ENDPOINTS.huggingface}, without a user name, got another text`,
      { param: 'HF_ENDPOINT' },
    );
  url.pathname = url.pathname.replace(/\/+$/, '');
  return url;
}

/** Returns the token from the environment, or from the file that `hf auth login` writes. */
function readToken(home: string, env: NodeJS.ProcessEnv): string | undefined {
  for (const name of ['HF_TOKEN', 'HUGGING_FACE_HUB_TOKEN'] as const) {
    const token = checkToken(env[name], name);
    if (token !== undefined) return token;
  }
  const file = set(env.HF_TOKEN_PATH);
  const path = file === undefined ? join(home, 'token') : expand(file, env);
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT' || code === 'ENOTDIR') return undefined;
    throw new CapstanError('invalid_argument', `${path}: expected a readable file with a token (${code})`);
  }
  return checkToken(text, path);
}

/** @throws CapstanError that does not repeat the token. */
function checkToken(value: string | undefined, source: string): string | undefined {
  const token = value?.trim() ?? '';
  if (token === '') return undefined;
  if (token.length > MAX_TOKEN_CHARS || !/^[\x21-\x7e]+$/.test(token))
    throw new CapstanError('invalid_argument', `${source}: expected a token of printable ASCII characters`, {
      param: source,
    });
  return token;
}

function set(value: string | undefined): string | undefined {
  return value === undefined || value === '' ? undefined : value;
}

function isTrue(value: string | undefined): boolean {
  return /^(1|on|yes|true)$/i.test(value ?? '');
}

function userFolder(env: NodeJS.ProcessEnv): string {
  return set(env.HOME) ?? homedir();
}

function expand(path: string, env: NodeJS.ProcessEnv): string {
  return resolve(path.replace(/^~(?=\/|$)/, () => userFolder(env)));
}
