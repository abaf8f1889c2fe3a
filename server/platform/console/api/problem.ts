import type { Problem } from '../../api/objects';
import { serviceText } from '../i18n/texts';

/** A refused request, or the reason why the service could not be reached. */
export class ApiProblem extends Error {
  override readonly name = 'ApiProblem';
  /** The HTTP status, or 0 without a response. */
  readonly status: number;
  readonly code: string;
  readonly fields: readonly { pointer: string; message: string }[];
  readonly requestId: string | null;
  /** From the `Retry-After` header. */
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

/** Creates the problem of an unsuccessful response. The body may be anything. */
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

/** The message for one field, such as `/name` or `/compute/cpu_millis`. */
export function fieldMessage(problem: ApiProblem | null, pointer: string): string | undefined {
  const field = problem?.fields.find((one) => one.pointer === pointer || one.pointer === `/body${pointer}`);
  return field === undefined ? undefined : serviceText(field.message);
}

/** Codes whose translated title is complete without a detail. */
const COMPLETE_TITLES = new Set(['bad_credentials', 'otp_required', 'internal_error', 'storage_full']);

/** The detail from the service, or an empty string if the title says everything. */
export function detailOf({ code, message }: ApiProblem): string {
  return COMPLETE_TITLES.has(code) ? '' : message;
}

function codeOf(status: number): string {
  if (status === 401) return 'unauthenticated';
  if (status === 404) return 'not_found';
  return status >= 500 ? 'internal_error' : 'refused';
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
