/** Requests that found a fault, named by that fault. */
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
  'a response before the end of a long body was lost when the connection was reset': post(
    '/nothing',
    JSON.stringify({ prompt: 'a'.repeat(5_000_000) }),
  ),
  'a response before the end of a long body in pieces was lost': post(
    '/nothing',
    JSON.stringify({ prompt: 'a'.repeat(5_000_000) }),
    {
      delivery: 'pieces',
    },
  ),
  'bytes after a refused request got a second response': post(
    '/v1/chat/completions',
    JSON.stringify({ messages: [], x: 'y'.repeat(300_000) }),
    { isWellFramed: false, headers: [...HEADERS, ['Transfer-Encoding', 'gzip']] },
  ),
  'a HEAD request that cannot be parsed got a body': {
    method: 'HEAD',
    path: '/ü',
    headers: HEADERS,
    body: Buffer.alloc(0),
    isWellFramed: true,
    delivery: 'whole',
    summary: '',
  },
  'an unknown Expect header got an error without the envelope': post('/v1/chat/completions', '{"messages": []}', {
    headers: [...HEADERS, ['Expect', 'weird']],
  }),
};
