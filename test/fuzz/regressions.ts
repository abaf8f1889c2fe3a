/** Requests that found something once, with what it was. */
import type { FuzzRequest } from './requests';

const HEADERS: [string, string][] = [
  ['Host', 'localhost'],
  ['Content-Type', 'application/json'],
];

function post(path: string, body: string, changes: Partial<FuzzRequest> = {}): FuzzRequest {
  return {
    method: 'POST',
    path,
    headers: HEADERS,
    body: Buffer.from(body),
    isWellFramed: true,
    delivery: 'whole',
    summary: '',
    ...changes,
  };
}

export const REGRESSIONS: Readonly<Record<string, FuzzRequest>> = {
  'an answer before the end of a long body was lost when the connection was reset': post(
    '/nothing',
    JSON.stringify({ prompt: 'a'.repeat(5_000_000) }),
  ),
  'the same, while the body still comes': post('/nothing', JSON.stringify({ prompt: 'a'.repeat(5_000_000) }), {
    delivery: 'pieces',
  }),
  'a refused request was answered once more for what followed it': post(
    '/v1/chat/completions',
    JSON.stringify({ messages: [], x: 'y'.repeat(300_000) }),
    { isWellFramed: false, headers: [...HEADERS, ['Transfer-Encoding', 'gzip']] },
  ),
  'an unknown expectation was answered without an envelope': post('/v1/chat/completions', '{"messages": []}', {
    headers: [...HEADERS, ['Expect', 'weird']],
  }),
};
