import type { LineOutcome } from './batch-runner';

/** Endpoints of batches at OpenAI that lines may name. */
export const BATCH_ENDPOINTS = ['/v1/chat/completions', '/v1/completions', '/v1/embeddings', '/v1/responses'];

/** The body of the result of a line that asks for a stream. Its status is 400. */
export const STREAM_REFUSED = JSON.stringify({
  error: {
    message: 'stream: expected false in a batch, got true',
    type: 'invalid_request_error',
    param: 'stream',
    code: 'invalid_value',
  },
});

/** Returns the outcome of a line that has a response. @param body JSON. */
export function lineDone(status: number, body: string, requestId: string): LineOutcome {
  return { kind: 'done', result: { status, body: oneLine(body), requestId } };
}

/** Returns JSON without newlines. They are between its tokens: texts have them as escapes. */
function oneLine(json: string): string {
  return json.replaceAll('\n', ' ');
}

/** Returns the code of an error of the OpenAI interface. */
export function errorCode(body: string): string {
  const { error } = JSON.parse(body) as { error?: { code?: unknown } };
  return String(error?.code);
}
