import type { TestRequest } from '../../api/objects';
import { EXAMPLES, type ModelTask } from '../format/snippets';

export type Method = TestRequest['method'];
export const METHODS: readonly Method[] = ['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'HEAD', 'OPTIONS'];

/** A request of the test tool while it is edited. */
export interface RequestDraft {
  method: Method;
  path: string;
  query: readonly [name: string, value: string][];
  headers: readonly [name: string, value: string][];
  body: string;
  bodyType: 'none' | 'json' | 'text';
  auth: 'none' | 'key';
  key: string;
}

export type RequestProblem = 'test.error.path' | 'test.error.json' | 'test.error.header' | 'test.error.key';

export function requestProblems({
  path,
  headers,
  body,
  bodyType,
  auth,
  key,
}: RequestDraft): Partial<Record<'path' | 'body' | 'headers' | 'key', RequestProblem>> {
  const problems: ReturnType<typeof requestProblems> = {};
  if (!/^\/(?![/\\])[!-~]*$/.test(path)) problems.path = 'test.error.path';
  if (bodyType === 'json' && !isJson(body)) problems.body = 'test.error.json';
  if (
    headers.some(
      ([name, value]) =>
        !/^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/.test(name) || /[\u0000-\u0008\u000a-\u001f\u007f]/.test(value),
    )
  )
    problems.headers = 'test.error.header';
  if (auth === 'key' && key.trim() === '') problems.key = 'test.error.key';
  return problems;
}

export function toTestRequest({ method, path, query, headers, body, bodyType, auth, key }: RequestDraft): TestRequest {
  const hasBody = bodyType !== 'none' && method !== 'GET' && method !== 'HEAD';
  const isTyped = headers.some(([name]) => name.toLowerCase() === 'content-type');
  const type: [string, string][] =
    hasBody && !isTyped
      ? [['Content-Type', bodyType === 'json' ? 'application/json' : 'text/plain; charset=utf-8']]
      : [];
  return {
    method,
    path,
    query: query.filter(([name]) => name !== ''),
    headers: [...headers.filter(([name]) => name !== ''), ...type],
    body: hasBody ? body : null,
    auth: auth === 'none' ? { type: 'none' } : { type: 'key', key: key.trim() },
  };
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** An example request for a model of the task. */
export function requestExample(task: ModelTask, model: string): Pick<RequestDraft, 'path' | 'body'> {
  const { path, fields } = EXAMPLES[task];
  return { path, body: JSON.stringify({ model, ...fields }, null, 2) };
}
