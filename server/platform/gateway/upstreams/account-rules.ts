import { ApiError, threadNotFound } from 'capstan/internal';
import type { UpstreamSettings } from '../targets';
import { COUNTED_BY, type UpstreamRoute } from './routes';

/**
 * All clients of an upstream share its key. So no request may reach what the account stores, or buy what is not
 * counted in tokens.
 */

type Json = Readonly<Record<string, unknown>>;

/** Fields that name what the account stores. */
const STORED: Readonly<Partial<Record<UpstreamRoute, readonly string[]>>> = {
  responses: ['previous_response_id', 'conversation', 'prompt'],
  messages: ['container'],
};
/** Fields that buy something else than tokens, or other tokens. */
const BOUGHT: Readonly<Partial<Record<UpstreamRoute, readonly string[]>>> = {
  chat: ['web_search_options', 'search_parameters', 'plugins', 'models'],
  messages: ['mcp_servers', 'inference_geo', 'fallbacks'],
};
/** Fields whose other values cost another price. */
type Priced = readonly [field: string, harmless: readonly unknown[]];
const TIER: Priced = ['service_tier', ['auto', 'default', 'standard_only']];
const SPEED: Priced = ['speed', ['standard']];
const FUNCTIONS = /^(?:function|custom)$/;
/** Tools that the client runs, or that cost nothing but tokens. */
const OWN_TOOLS: Readonly<Partial<Record<UpstreamRoute, RegExp>>> = {
  chat: FUNCTIONS,
  responses: /^(?:function|custom|namespace|local_shell|apply_patch|computer|computer_use_preview|tool_search)$/,
  messages: /^(?:custom|(?:bash|text_editor|computer|memory)_\d+|tool_search_tool_\w+)$/,
};
/** Fields of messages, items and parts that hold further ones. */
const INNER = ['content', 'output', 'file', 'source'] as const;
const STORED_TYPES = new Set<unknown>(['item_reference', 'container_upload']);

/** Throws ApiError for what a client of a shared account must not ask for. */
export function checkAccount(asked: UpstreamRoute, value: Json): void {
  const route = COUNTED_BY[asked] ?? asked;
  for (const [field, harmless] of route === 'messages' ? [TIER, SPEED] : [TIER])
    if (isSet(value[field]) && !harmless.includes(value[field]))
      throw refused(field, `expected ${harmless.map((one) => JSON.stringify(one)).join(' or ')}. Others cost more`);
  for (const field of BOUGHT[route] ?? [])
    if (isSet(value[field])) throw refused(field, 'expected no value, because the upstream charges for it');
  for (const field of STORED[route] ?? []) if (isSet(value[field])) throw stored(field);
  const ownTools = OWN_TOOLS[route];
  if (ownTools === undefined) return;
  if (route === 'responses' && value.background === true) throw stored('background');
  for (const field of ['input', 'messages', 'system'])
    for (const part of partsOf(value[field])) {
      if (isReference(part)) throw stored(field);
      // A conversation may add tools.
      checkTools(field, part.tools, ownTools);
      checkTools(field, [objectOf(part.tool).definition], ownTools);
    }
  checkTools('tools', value.tools, ownTools);
}

function checkTools(field: string, tools: unknown, own: RegExp): void {
  for (const tool of listOf(tools)) {
    const { type, tools: inner } = objectOf(tool);
    if (isSet(type) && (typeof type !== 'string' || !own.test(type)))
      throw refused(
        field,
        `expected only tools that the client runs, got the type ${JSON.stringify(type).slice(0, 100)}. The upstream would run it and charge for it`,
      );
    // A namespace holds functions.
    if (isSet(inner)) checkTools(field, inner, FUNCTIONS);
  }
}

/** Returns messages or items, and the parts in them. */
function* partsOf(messages: unknown): Generator<Json> {
  const open = [messages];
  for (let i = 0; i < open.length; i++) {
    for (const item of Array.isArray(open[i]) ? (open[i] as unknown[]) : [open[i]]) {
      const part = objectOf(item);
      yield part;
      for (const name of INNER) if (typeof part[name] === 'object' && part[name] !== null) open.push(part[name]);
    }
  }
}

/** Whether a part names a file or an item that the account stores. */
function isReference({ file_id: file, audio, type }: Json): boolean {
  return isSet(file) || isSet(objectOf(audio).id) || STORED_TYPES.has(type);
}

/**
 * Whether a request asks to store its conversation in the account. Throws ApiError for one that continues a stored
 * conversation. The official client then sends all messages.
 */
export function startsThread(route: UpstreamRoute, { thread }: Json): boolean {
  if (route !== 'messages' || !isSet(thread)) return false;
  if (objectOf(thread).type === 'continue') throw threadNotFound();
  return true;
}

/**
 * Whether a request must say that its response is not stored. Servers that have only chat completions may refuse the
 * field, so they get it only if the client sends it.
 */
export function mustNotStore(
  route: UpstreamRoute,
  { store }: Json,
  { interfaces }: Pick<UpstreamSettings, 'interfaces'>,
): boolean {
  if (route === 'responses') return store !== false;
  return route === 'chat' && store !== false && (store !== undefined || interfaces.includes('responses'));
}

function isSet(value: unknown): boolean {
  return value !== undefined && value !== null;
}

function objectOf(value: unknown): Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Json) : {};
}

function listOf(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : [];
}

function refused(param: string, expected: string): ApiError {
  return new ApiError('unsupported_value', `${param}: ${expected}`, { param });
}

function stored(param: string): ApiError {
  return refused(param, 'expected no reference to what an upstream stores. Send the content itself');
}
