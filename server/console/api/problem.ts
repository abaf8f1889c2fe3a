import type { Problem } from '../../api/objects';

/** What the interface refused, or why it could not be reached. */
export class ApiProblem extends Error {
  override readonly name = 'ApiProblem';
  /** 0: nothing answered. */
  readonly status: number;
  readonly code: string;
  readonly fields: readonly { pointer: string; message: string }[];
  readonly requestId: string | null;
  /** From `Retry-After`. */
  readonly retryAfterS: number | null;

  constructor(
    {
      status,
      code,
      detail,
      errors,
      request_id: requestId,
    }: Pick<Problem, 'status' | 'code' | 'detail'> & Partial<Problem>,
    retryAfterS: number | null = null,
  ) {
    super(detail);
    this.status = status;
    this.code = code;
    this.fields = errors ?? [];
    this.requestId = requestId ?? null;
    this.retryAfterS = retryAfterS;
  }
}

/** The problem of an answer that is none of success, whatever its body is. */
export function problemOf(status: number, body: string, retryAfter: string | null = null): ApiProblem {
  const seconds = retryAfter !== null && /^\d+$/.test(retryAfter) ? Number(retryAfter) : null;
  const parsed = parseObject(body);
  if (parsed === undefined || typeof parsed.code !== 'string')
    return new ApiProblem({ status, code: codeOf(status), detail: '' }, seconds);
  const errors = Array.isArray(parsed.errors) ? parsed.errors.filter(isFieldError) : [];
  const text = (value: unknown) => (typeof value === 'string' ? value : undefined);
  return new ApiProblem(
    {
      status,
      code: parsed.code,
      detail: text(parsed.detail) ?? text(parsed.title) ?? '',
      errors,
      request_id: text(parsed.request_id),
    },
    seconds,
  );
}

export function toProblem(error: unknown): ApiProblem {
  return error instanceof ApiProblem ? error : new ApiProblem({ status: 0, code: 'unreachable', detail: '' });
}

/** What the interface says of one field: `/name`, or `/compute/cpu_millis`. */
export function fieldMessage(problem: ApiProblem | null, pointer: string): string | undefined {
  return problem?.fields.find((field) => field.pointer === pointer || field.pointer === `/body${pointer}`)?.message;
}

/** Their titles say all of it, in the language of the page. */
const SAID_BY_TITLE = new Set(['bad_credentials', 'otp_required', 'internal_error', 'storage_full']);

/** What the service said of this very case, where that tells more than the title. */
export function detailOf({ code, message }: ApiProblem): string {
  return SAID_BY_TITLE.has(code) ? '' : message;
}

function codeOf(status: number): string {
  if (status === 401) return 'unauthenticated';
  return status === 404 ? 'not_found' : status >= 500 ? 'internal_error' : 'refused';
}

function parseObject(text: string): Record<string, unknown> | undefined {
  try {
    const value = JSON.parse(text) as unknown;
    return typeof value === 'object' && value !== null && !Array.isArray(value)
      ? (value as Record<string, unknown>)
      : undefined;
  } catch {
    return undefined;
  }
}

function isFieldError(value: unknown): value is { pointer: string; message: string } {
  return (
    typeof value === 'object' &&
    value !== null &&
    typeof (value as { pointer?: unknown }).pointer === 'string' &&
    typeof (value as { message?: unknown }).message === 'string'
  );
}
