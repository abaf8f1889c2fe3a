import { topLevelValues } from 'capstan/internal';
import type { Bill } from '../billing';
import type { UpstreamRequest } from '../request-head';
import type { UpstreamSettings } from '../targets';

const CHAT_PATH = '/v1/chat/completions';
const OLD = '"max_tokens"';
const NEW = '"max_completion_tokens"';

/**
 * Returns a body for an upstream with the limit of its bill, which is set before the body is converted.
 * @param path Path at the deployment.
 */
export function limitedBody(
  body: UpstreamRequest['body'],
  path: string,
  bill: Bill | undefined,
  { interfaces }: Pick<UpstreamSettings, 'interfaces'>,
): UpstreamRequest['body'] {
  if (bill === undefined) return body;
  const limited = bill.limit({ method: 'POST', target: path, headers: [], body }, false).body;
  if (limited === body) return body;
  const isModern = path === CHAT_PATH && interfaces.includes('responses');
  return isModern && Buffer.isBuffer(body) && Buffer.isBuffer(limited) ? withNewName(body, limited) : limited;
}

/** Newer models refuse `max_tokens`. A field that the client wrote stays. */
function withNewName(original: Buffer, limited: Buffer): Buffer {
  if (topLevelValues(original).has('max_tokens') || !topLevelValues(limited).has('max_tokens')) return limited;
  // A new field comes first.
  const start = limited.indexOf(OLD);
  return Buffer.concat([limited.subarray(0, start), Buffer.from(NEW), limited.subarray(start + OLD.length)]);
}
