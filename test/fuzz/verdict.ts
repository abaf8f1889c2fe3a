/** Checks that hold for every response: the error catalogue, the error envelope and the form of streams. */
import { anthropicType } from '../../server/base/error-styles';
import { ERROR_KINDS } from '../../server/base/errors';
import type { FuzzResponse } from './responses';

const MAX_MESSAGE = 1000;
/** Internal details of the machine or the code, which clients must not see. */
const INSIDES =
  /node_modules|\/work\/|\/tmp\/|\bat \S+ \(|\.(ts|js|cpp|node):\d+|TypeError|RangeError|undefined is not|Cannot read prop/;

/** Returns the first fault of a response, or undefined. */
export function findFault({ status, headers, body }: FuzzResponse, method: string): string | undefined {
  if (status === 500) return `500: ${body.slice(0, 300)}`;
  if (method === 'HEAD') return undefined;
  if (status === 200 || status === 204) {
    if (/^text\/event-stream/.test(headers['content-type'] ?? '')) return findStreamFault(body);
    if (/^application\/json/.test(headers['content-type'] ?? ''))
      return parses(body) ? undefined : `a body that is not JSON: ${body.slice(0, 100)}`;
    return undefined;
  }
  return findErrorFault(status, body);
}

function findErrorFault(status: number, body: string): string | undefined {
  if (!parses(body)) return `${status} without an envelope: ${JSON.stringify(body.slice(0, 100))}`;
  const { error, ...others } = JSON.parse(body);
  if (others.type === 'error') return findAnthropicFault(status, error, others);
  if (Object.keys(others).length > 0 || typeof error !== 'object' || error === null)
    return `${status} with another envelope: ${body.slice(0, 100)}`;
  const { message, type, param, code } = error;
  if (Object.keys(error).join() !== 'message,type,param,code')
    return `${status} with the keys ${Object.keys(error).join()}`;
  if (!Object.hasOwn(ERROR_KINDS, code)) return `${status} with the unknown code ${code}`;
  const kind = ERROR_KINDS[code as keyof typeof ERROR_KINDS];
  if (kind.status !== status || kind.type !== type)
    return `${code} as ${status} ${type}, listed as ${kind.status} ${kind.type}`;
  if (typeof message !== 'string' || message === '' || message.length > MAX_MESSAGE)
    return `a message of ${String(message).length} characters: ${String(message).slice(0, 100)}`;
  if (param !== null && (typeof param !== 'string' || param.length > 300))
    return `param ${String(param).slice(0, 100)}`;
  const inside = INSIDES.exec(message);
  return inside === null ? undefined : `a message that shows ${inside[0]}: ${message.slice(0, 200)}`;
}

/** Checks an error of /v1/messages. */
function findAnthropicFault(status: number, error: any, others: object): string | undefined {
  if (Object.keys(others).join() !== 'type,request_id' || Object.keys(error).join() !== 'type,message')
    return `${status} with other keys than those of Anthropic: ${JSON.stringify(error).slice(0, 100)}`;
  if (error.type !== anthropicType(status)) return `${status} of the type ${error.type}`;
  const inside = INSIDES.exec(error.message);
  return inside === null ? undefined : `a message that shows ${inside[0]}: ${error.message.slice(0, 200)}`;
}

function findStreamFault(body: string): string | undefined {
  const events = body.split('\n\n');
  if (events.pop() !== '') return `a stream that ends inside an event: ${JSON.stringify(body.slice(-80))}`;
  const data = events
    .filter((event) => event !== ':')
    .map((event) => (event.startsWith('data: ') ? event.slice(6) : undefined));
  if (data.includes(undefined)) return 'a stream with lines other than data';
  if (data.pop() !== '[DONE]') return 'a stream without [DONE]';
  const broken = data.find((text) => !parses(text!));
  if (broken !== undefined) return `an event that is not JSON: ${broken.slice(0, 100)}`;
  const errors = data.map((text) => JSON.parse(text!)).filter(({ error }) => error !== undefined);
  if (errors.length > 1) return 'a stream with two errors';
  return errors[0]?.error.code === 'internal_error'
    ? `a stream with an internal error: ${JSON.stringify(errors[0])}`
    : undefined;
}

function parses(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}
