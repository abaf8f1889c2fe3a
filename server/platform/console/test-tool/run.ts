import type { Deployment } from '../../api/objects';
import { openStream } from '../api/client';
import { readEvents } from '../api/sse';
import { type RequestDraft, toTestRequest } from './request';
import { parseTestEvent, ResponseReader, type TestResponse } from './response-reader';

/** Sends a request to the deployment through the gateway. Yields the response each time that more of it has arrived. */
export async function* testResponses(
  of: Deployment,
  draft: RequestDraft,
  signal: AbortSignal,
): AsyncGenerator<TestResponse, void> {
  const reader = new ResponseReader();
  const body = toTestRequest(draft);
  for await (const { data } of readEvents(await openStream('POST', `/deployments/${of.id}/test`, { body, signal }))) {
    const event = parseTestEvent(data);
    if (event !== undefined) yield reader.add(event);
  }
}

/** The message of an error response, or its text. */
export function errorText(body: string): string {
  try {
    const { error } = JSON.parse(body) as { error?: { message?: string } };
    return error?.message ?? body;
  } catch {
    return body;
  }
}
