/**
 * Headers between the gateway and its replicas. A replica reads and sends them only if the request carries the right
 * secret. The gateway removes them from the requests of its clients and from the responses to them.
 */

/**
 * Request: the replica's secret (`CAPSTAN_REPLICA_SECRET`). The gateway sends it with every request, health checks
 * included.
 */
export const SECRET_HEADER = 'X-Capstan-Replica-Secret';
/** Request: the partition of the prefix cache that the request uses. */
export const SALT_HEADER = 'X-Capstan-Salt';
/** Response: the load of the replica, in the form of {@link formatLoad}. */
export const LOAD_HEADER = 'X-Capstan-Load';
/**
 * Response without streaming: its token usage, in the form of {@link formatUsage}. A stream sends it in a comment after
 * `data: [DONE]`.
 */
export const USAGE_HEADER = 'X-Capstan-Usage';
/**
 * Request: what the request may cost, in the form of {@link formatAllowance}. Prices and total have the same unit. The
 * replica lowers the completion tokens to what the total pays.
 */
export const ALLOWANCE_HEADER = 'X-Capstan-Allowance';
/** GET: the usage of a request with an allowance, in the {@link USAGE_HEADER}, once it has ended. The id follows. */
export const ENDED_USAGE_PATH = '/capstan/usage/';
/** Start of the last comment of a stream. {@link formatUsage} and an empty line follow and end the stream. */
export const USAGE_COMMENT = ': capstan-usage ';
/** GET: an empty response with the {@link LOAD_HEADER}. */
export const LOAD_PATH = '/capstan/load';

/** The load of a replica. */
export interface ReplicaLoad {
  /** Requests in progress, this one included. */
  open: number;
  /** Prompt tokens of waiting requests. */
  queuedPromptTokens: number;
  /** KV cache blocks available to a new request: free ones, and cached ones that no sequence uses. */
  freeBlocks: number;
  numBlocks: number;
}

export interface ReplicaUsage {
  promptTokens: number;
  completionTokens: number;
  /** Prompt tokens found in the prefix cache. */
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

/** Returns text such as `open=1;queued=0;free=90;blocks=128`. */
export function formatLoad(load: ReplicaLoad): string {
  return format(load, LOAD_FIELDS);
}

/** Returns undefined for text of another form. */
export function parseLoad(text: string): ReplicaLoad | undefined {
  return parse(text, LOAD_FIELDS);
}

/** Returns text such as `prompt=12;completion=30;cached=0`. */
export function formatUsage(usage: ReplicaUsage): string {
  return format(usage, USAGE_FIELDS);
}

/** Returns undefined for text of another form. */
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
  const parts = new Map(text.split(';').map((part) => part.split('=', 2) as [string, string | undefined]));
  const values: Partial<Record<keyof T, number>> = {};
  for (const name of Object.keys(fields) as (keyof T)[]) {
    const value = parts.get(fields[name]);
    if (value === undefined || !/^\d{1,15}$/.test(value)) return undefined;
    values[name] = Number(value);
  }
  return values as T;
}

/** What a request may cost. */
export interface ReplicaAllowance {
  /** Chosen by the gateway for each attempt. */
  id: string;
  total: bigint;
  /** Price of a prompt token. */
  prompt: bigint;
  /** Price of a completion token. */
  completion: bigint;
}

const ALLOWANCE = /^id=([0-9a-f]{32});total=(\d{1,40});prompt=(\d{1,40});completion=(\d{1,40})$/;

/** Returns text such as `id=…;total=5000;prompt=2;completion=10`. */
export function formatAllowance({ id, total, prompt, completion }: ReplicaAllowance): string {
  return `id=${id};total=${total};prompt=${prompt};completion=${completion}`;
}

/** Returns undefined for text of another form. */
export function parseAllowance(text: string): ReplicaAllowance | undefined {
  const [, id, total, prompt, completion] = ALLOWANCE.exec(text) ?? [];
  if (id === undefined) return undefined;
  return { id, total: BigInt(total), prompt: BigInt(prompt), completion: BigInt(completion) };
}
