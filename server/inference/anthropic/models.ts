import { ApiError } from '../../base/errors';
import { show } from '../../base/json/validate';

/** What a list of OpenAI's interface says about a model. */
export interface ListedModel {
  id: string;
  /** Seconds since 1970. */
  created: number;
  max_model_len?: number;
}

const DEFAULT_LIMIT = 20;
const MAX_LIMIT = 1_000;

/** Returns a model in Anthropic's form. */
export function anthropicModel({ id, created, max_model_len: maxLength }: ListedModel): object {
  return {
    type: 'model',
    id,
    display_name: id,
    created_at: new Date(created * 1_000).toISOString(),
    max_input_tokens: maxLength ?? null,
  };
}

/** Returns a page of a list in Anthropic's form. Throws ApiError for an invalid query. */
export function anthropicModelPage(models: readonly ListedModel[], query: string): object {
  const parameters = new URLSearchParams(query);
  const limit = limitIn(parameters);
  const afterId = parameters.get('after_id');
  const beforeId = parameters.get('before_id');
  if (afterId !== null && beforeId !== null)
    throw invalid('before_id', 'expected either before_id or after_id, got both');
  const start = afterId === null ? 0 : indexOf(models, 'after_id', afterId) + 1;
  const end = beforeId === null ? models.length : indexOf(models, 'before_id', beforeId);
  const page = beforeId === null ? models.slice(start, start + limit) : models.slice(Math.max(0, end - limit), end);
  return {
    data: page.map(anthropicModel),
    has_more: page.length < end - start,
    first_id: page.at(0)?.id ?? null,
    last_id: page.at(-1)?.id ?? null,
  };
}

function limitIn(parameters: URLSearchParams): number {
  const text = parameters.get('limit');
  if (text === null) return DEFAULT_LIMIT;
  const limit = /^\d{1,4}$/.test(text) ? Number(text) : 0;
  if (limit < 1 || limit > MAX_LIMIT)
    throw invalid('limit', `expected an integer from 1 to ${MAX_LIMIT}, got ${show(text)}`);
  return limit;
}

function indexOf(models: readonly ListedModel[], param: string, wanted: string): number {
  const index = models.findIndex(({ id }) => id === wanted);
  if (index < 0) throw invalid(param, `expected the id of a listed model, got ${show(wanted)}`);
  return index;
}

function invalid(param: string, problem: string): ApiError {
  return new ApiError('invalid_value', `${param}: ${problem}`, { param });
}
