/**
 * What the gateway and the replicas behind it tell each other beside a request. A replica takes and gives these only where the secret is right, and the gateway takes them out of what its own clients send and
 * get.
 */

/** Request: the secret that the replica was started with (`CAPSTAN_REPLICA_SECRET`). Sent with every request, health checks too. */
export const SECRET_HEADER = 'X-Capstan-Replica-Secret';
/** Request: the part of the prefix cache that the call belongs to. */
export const SALT_HEADER = 'X-Capstan-Salt';
/** Answer: how busy the replica is, in the form of {@link formatLoad}. */
export const LOAD_HEADER = 'X-Capstan-Load';
/** Answer in one piece: what it used, in the form of {@link formatUsage}. A stream says it in a comment after `data: [DONE]`. */
export const USAGE_HEADER = 'X-Capstan-Usage';
/** Begins the last comment of a stream; then {@link formatUsage}, then an empty line, and nothing after it. */
export const USAGE_COMMENT = ': capstan-usage ';
/** GET: the load alone, as the {@link LOAD_HEADER} of an empty answer. */
export const LOAD_PATH = '/capstan/load';

/** How busy a replica is. */
export interface ReplicaLoad {
  /** Requests that are being answered, this one included. */
  open: number;
  /** Prompt tokens of requests that wait for their turn. */
  queuedPromptTokens: number;
  /** KV cache blocks that a new request can have: free, or cached and unused. */
  freeBlocks: number;
  numBlocks: number;
}

export interface ReplicaUsage {
  promptTokens: number;
  completionTokens: number;
  /** Of the prompt. */
  cachedTokens: number;
}

const LOAD_FIELDS = {
  open: 'open',
  queuedPromptTokens: 'queued',
  freeBlocks: 'free',
  numBlocks: 'blocks',
} as const satisfies Record<keyof ReplicaLoad, string>;
const USAGE_FIELDS = {
  promptTokens: 'prompt',
  completionTokens: 'completion',
  cachedTokens: 'cached',
} as const satisfies Record<keyof ReplicaUsage, string>;

/** `open=1;queued=0;free=90;blocks=128` */
export function formatLoad(load: ReplicaLoad): string {
  return format(load, LOAD_FIELDS);
}

/** undefined where the text is of another form. */
export function parseLoad(text: string): ReplicaLoad | undefined {
  return parse(text, LOAD_FIELDS);
}

/** `prompt=12;completion=30;cached=0` */
export function formatUsage(usage: ReplicaUsage): string {
  return format(usage, USAGE_FIELDS);
}

/** undefined where the text is of another form. */
export function parseUsage(text: string): ReplicaUsage | undefined {
  return parse(text, USAGE_FIELDS);
}

function format<T extends Record<keyof T, number>>(values: T, fields: Readonly<Record<keyof T, string>>): string {
  return (Object.keys(fields) as (keyof T)[]).map((name) => `${fields[name]}=${values[name]}`).join(';');
}

function parse<T extends Record<keyof T, number>>(
  text: string,
  fields: Readonly<Record<keyof T, string>>,
): T | undefined {
  const given = new Map(text.split(';').map((part) => part.split('=', 2) as [string, string | undefined]));
  const values: Partial<Record<keyof T, number>> = {};
  for (const name of Object.keys(fields) as (keyof T)[]) {
    const value = given.get(fields[name]);
    if (value === undefined || !/^\d{1,15}$/.test(value)) return undefined;
    values[name] = Number(value);
  }
  return values as T;
}
