import type { ChatEvent, FinishReason, Usage } from '../../../ts';
import { isLightReply } from '../../base/json/light';

/** What the response of another server ends with. */
export interface Outcome {
  finishReason: FinishReason;
  /** The server withheld content by its own rules. */
  isFiltered: boolean;
  stopSequence: string | null;
  usage: UpstreamUsage | undefined;
}

export type UpstreamUsage = Pick<
  Usage,
  'promptTokens' | 'completionTokens' | 'totalTokens' | 'cachedTokens' | 'reasoningTokens'
>;

/** Reads the response of another server in one interface, as events of a chat. Throws UpstreamFormatError. */
export interface UpstreamReader {
  /** Takes the data of one event of a stream. */
  takeEvent(data: string): ChatEvent[];
  /** Takes a whole response. */
  takeWhole(body: unknown): ChatEvent[];
  /** undefined until the response is complete. */
  readonly outcome: Outcome | undefined;
  /** What the response has reported so far. */
  readonly usage: UpstreamUsage | undefined;
}

/** The response is not of the expected form, or it is an error. */
export class UpstreamFormatError extends Error {
  override readonly name = 'UpstreamFormatError';
}

export type Json = Readonly<Record<string, unknown>>;

export function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

export function objectIn(value: unknown, what: string): Json {
  if (isObject(value)) return value;
  throw new UpstreamFormatError(`expected ${what} to be an object`);
}

export function listIn(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? (value as unknown[]) : [];
}

export function textIn(value: unknown): string {
  return typeof value === 'string' ? value : '';
}

export function parseEvent(data: string): Json {
  if (!isLightReply(data)) throw new UpstreamFormatError('an event of the stream is too complex');
  try {
    return objectIn(JSON.parse(data), 'an event');
  } catch (error) {
    if (error instanceof UpstreamFormatError) throw error;
    throw new UpstreamFormatError('an event of the stream is not valid JSON');
  }
}

const MAX_ERROR_CHARS = 500;

/** Returns the message of an error object in OpenAI's or Anthropic's form. */
export function errorMessageIn(body: unknown): string | undefined {
  const { error, message } = isObject(body) ? body : {};
  const found = isObject(error) ? error.message : (error ?? message);
  return typeof found === 'string' && found !== '' ? found.slice(0, MAX_ERROR_CHARS) : undefined;
}

const MAX_COUNT = 1e9;

/** Whether a value is a count of tokens. */
export function isCount(value: unknown): value is number {
  return Number.isInteger(value) && (value as number) >= 0 && (value as number) <= MAX_COUNT;
}

/** Returns a count of tokens. 0 for anything else. */
export function countIn(value: unknown): number {
  return isCount(value) ? value : 0;
}
