import type { ApiErrorCode } from '../errors';
import type { AnswerSchemaName } from './answer-schemas';

/** What the description says of a route beyond what the route says of itself. */
export interface Operation {
  /** Where the route has none of its own. */
  summary?: string;
  /** The body of a 200: one of the components, plain text or nothing. */
  answer?: AnswerSchemaName | 'text' | 'object';
  /** The events of a stream. */
  event?: AnswerSchemaName;
  /** Errors of its own, beside those that every route answers. */
  errors: readonly ApiErrorCode[];
  /** Bodies to try. */
  examples?: Readonly<Record<string, object>>;
}

const FIELD_ERRORS = [
  'invalid_json',
  'invalid_type',
  'invalid_value',
  'missing_required_parameter',
  'unsupported_value',
  'unsupported_media_type',
  'request_timeout',
  'model_not_found',
] as const;
const MODEL_ERRORS = ['model_loading', 'shutting_down', 'internal_error'] as const;
const GENERATION_ERRORS = [
  ...FIELD_ERRORS,
  ...MODEL_ERRORS,
  'context_length_exceeded',
  'queue_full',
  'engine_dead',
] as const;
const HEALTH_ERRORS = ['model_loading', 'shutting_down', 'engine_dead'] as const;

const QUESTION = [{ role: 'user', content: 'What is Capstan?' }];
const WEATHER_TOOL = {
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'The weather of a city',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
};

export const OPERATIONS: Readonly<Record<string, Operation>> = {
  'POST /v1/chat/completions': {
    answer: 'ChatCompletion',
    event: 'ChatCompletionChunk',
    errors: GENERATION_ERRORS,
    examples: {
      question: { messages: QUESTION, max_tokens: 16 },
      stream: { messages: QUESTION, max_tokens: 16, stream: true, stream_options: { include_usage: true } },
      tools: {
        messages: [{ role: 'user', content: 'How is the weather in Bern?' }],
        tools: [WEATHER_TOOL],
        max_tokens: 64,
        temperature: 0,
      },
    },
  },
  'POST /v1/completions': {
    answer: 'Completion',
    event: 'CompletionChunk',
    errors: GENERATION_ERRORS,
    examples: {
      text: { prompt: 'Once upon a time', max_tokens: 8 },
      scoring: { prompt: 'One two three', max_tokens: 0, echo: true, logprobs: 1 },
    },
  },
  'POST /tokenize': {
    answer: 'Tokens',
    errors: [...FIELD_ERRORS, ...MODEL_ERRORS, 'queue_full'],
    examples: { text: { prompt: 'One two three' }, conversation: { messages: QUESTION } },
  },
  'POST /detokenize': {
    answer: 'Text',
    errors: [...FIELD_ERRORS, ...MODEL_ERRORS],
    examples: { tokens: { tokens: [72, 101, 108] } },
  },
  'GET /v1/models': { answer: 'ModelList', errors: MODEL_ERRORS },
  'GET /v1/models/{model}': { answer: 'Model', errors: [...MODEL_ERRORS, 'model_not_found'] },
  'GET /health': { summary: 'Whether the engine answers', errors: HEALTH_ERRORS },
  'GET /ping': { summary: 'The same as /health', errors: HEALTH_ERRORS },
  'POST /ping': { summary: 'The same as /health', errors: HEALTH_ERRORS },
  'GET /version': { summary: 'The version of the server', answer: 'Version', errors: [] },
  'GET /metrics': { summary: 'Metrics in the text format of Prometheus', answer: 'text', errors: ['internal_error'] },
  'GET /openapi.json': { summary: 'This description', answer: 'object', errors: ['internal_error'] },
};
