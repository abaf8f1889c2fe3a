import { CapstanError } from '../errors';

/** The name of a model from the hub: `ORG/NAME[@revision][:variant]`. */
export interface HubName {
  /** `ORG/NAME` */
  repository: string;
  /** A branch, a tag or a commit; undefined: the hub's default branch. */
  revision: string | undefined;
  /** A GGUF quantization such as `Q4_K_M`, or a `.gguf` file of the repository. */
  variant: string | undefined;
}

const PREFIX = 'hf:';
const MAX_PART = 96;
const MAX_REVISION = 200;
/** What the hub allows in the name of an organization or a model. */
const PART = /^[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?$/;
const REVISION = /^[A-Za-z0-9_][\w.+/-]*$/;

export const NAME_FORM = 'ORG/NAME[@revision][:quantization or file]';

/** Whether the name can only mean the hub. */
export function isHubOnly(name: string): boolean {
  return name.startsWith(PREFIX);
}

/** Returns undefined for a text that is not a name on the hub. */
export function parseHubName(text: string): HubName | undefined {
  const name = isHubOnly(text) ? text.slice(PREFIX.length) : text;
  const colon = name.indexOf(':');
  const [beforeColon, variant] = colon < 0 ? [name, undefined] : [name.slice(0, colon), name.slice(colon + 1)];
  const at = beforeColon.indexOf('@');
  const [repository, revision] =
    at < 0 ? [beforeColon, undefined] : [beforeColon.slice(0, at), beforeColon.slice(at + 1)];
  const isValid =
    isRepository(repository) &&
    (revision === undefined || isRevision(revision)) &&
    (variant === undefined || isSafePath(variant));
  return isValid ? { repository, revision, variant } : undefined;
}

/** @throws CapstanError `invalid_argument` for a text that is not a name on the hub. */
export function demandHubName(text: string): HubName {
  const name = parseHubName(text);
  if (name === undefined) throw CapstanError.argument('name', `a name on the hub, ${NAME_FORM}`, text);
  return name;
}

export function showHubName({ repository, revision, variant }: HubName): string {
  return repository + (revision === undefined ? '' : `@${revision}`) + (variant === undefined ? '' : `:${variant}`);
}

/** `--` separates the parts of a folder name in the cache. */
function isRepository(text: string): boolean {
  const parts = text.split('/');
  const isPart = (part: string): boolean => part.length <= MAX_PART && PART.test(part) && !/--|\.\./.test(part);
  return parts.length === 2 && parts.every(isPart);
}

/** A revision is also the path of a file in the cache. */
function isRevision(text: string): boolean {
  return text.length <= MAX_REVISION && REVISION.test(text) && isSafePath(text);
}

const MAX_PATH = 1024;
const MAX_SEGMENT = 255;

/**
 * Whether a path of the hub may name a file below a folder: relative, with forward slashes, without `..`, empty parts
 * and control characters.
 */
export function isSafePath(path: string): boolean {
  if (path === '' || path.length > MAX_PATH || /[\p{Cc}\\]/u.test(path) || /^[A-Za-z]:/.test(path)) return false;
  return path
    .split('/')
    .every((part) => part !== '' && part !== '.' && part !== '..' && Buffer.byteLength(part) <= MAX_SEGMENT);
}
