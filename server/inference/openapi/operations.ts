import type { ApiErrorCode } from '../../base/errors';
import type { ResponseSchemaName } from './response-schemas';

/** The description of a route, in addition to what the route itself declares. */
export interface Operation {
  /** For routes that declare none. */
  summary?: string;
  /** The body of a 200 response: a component, plain text, any object, or none if absent. */
  response?: ResponseSchemaName | 'text' | 'object' | 'bytes';
  /** The fields of a `multipart/form-data` body, all required. */
  form?: Readonly<Record<string, object>>;
  /** Optional fields of the query. */
  query?: Readonly<Record<string, object>>;
  /** The body of the response to a request with the header `anthropic-version`. Absent: the header changes nothing. */
  anthropicResponse?: ResponseSchemaName;
  /** The component of each event of a stream. */
  event?: ResponseSchemaName;
  /** Errors in addition to those of every route. */
  errors: readonly ApiErrorCode[];
  /** Example request bodies. */
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
/** Errors of requests that wait for their model to load. */
const WAIT_ERRORS = ['model_load_failed', 'queue_full'] as const;
/** Errors of routes for which the engine computes something. */
const COMPUTE_ERRORS = [
  ...FIELD_ERRORS,
  ...MODEL_ERRORS,
  'unsupported_task',
  ...WAIT_ERRORS,
  'context_length_exceeded',
  'engine_dead',
] as const;
const STORED_ERRORS = [
  ...MODEL_ERRORS,
  'response_not_found',
  'invalid_value',
  'unsupported_value',
  'permission_denied',
] as const;
const STORED_COMPLETION_ERRORS = [
  ...MODEL_ERRORS,
  'completion_not_found',
  'invalid_value',
  'permission_denied',
] as const;
const HEALTH_ERRORS = ['model_loading', 'shutting_down', 'engine_dead'] as const;

/** Errors of files and batches. */
const STORE_ERRORS = ['not_implemented', 'internal_error', 'permission_denied'] as const;
const PAGING = {
  after: { type: 'string', description: 'The id of the last item of the page before' },
  limit: { type: 'integer', minimum: 1 },
};
const ANTHROPIC_PAGING = 'With the header anthropic-version alone';

const QUESTION = [{ role: 'user', content: 'What is Capstan?' }];
const WEATHER_TOOL = {
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'Returns the weather of a city',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
};

const RANKING: Operation = {
  response: 'Ranking',
  errors: COMPUTE_ERRORS,
  examples: {
    ranking: { query: 'What is Capstan?', documents: ['An inference runtime', { text: 'A drum on a ship' }], top_n: 1 },
  },
};
const SCORES: Operation = {
  response: 'Scores',
  errors: COMPUTE_ERRORS,
  examples: {
    'one query': { queries: 'What is Capstan?', documents: ['An inference runtime', 'A drum on a ship'] },
    pairs: { text_1: ['One', 'Two'], text_2: ['1', '2'] },
  },
};

export const OPERATIONS: Readonly<Record<string, Operation>> = {
  'POST /v1/chat/completions': {
    response: 'ChatCompletion',
    event: 'ChatCompletionChunk',
    errors: COMPUTE_ERRORS,
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
  'GET /v1/chat/completions': {
    response: 'ChatCompletionList',
    query: {
      ...PAGING,
      order: { type: 'string', enum: ['asc', 'desc'] },
      model: { type: 'string' },
      'metadata[key]': { type: 'string', description: 'The value that the metadata has at a key' },
    },
    errors: [...STORED_COMPLETION_ERRORS, 'queue_full'],
  },
  'GET /v1/chat/completions/{completion_id}': { response: 'StoredChatCompletion', errors: STORED_COMPLETION_ERRORS },
  'POST /v1/chat/completions/{completion_id}': {
    response: 'StoredChatCompletion',
    errors: [
      ...STORED_COMPLETION_ERRORS,
      'invalid_json',
      'invalid_type',
      'missing_required_parameter',
      'unsupported_media_type',
      'request_timeout',
    ],
  },
  'DELETE /v1/chat/completions/{completion_id}': {
    response: 'DeletedChatCompletion',
    errors: STORED_COMPLETION_ERRORS,
  },
  'GET /v1/chat/completions/{completion_id}/messages': {
    response: 'StoredMessages',
    query: { ...PAGING, order: { type: 'string', enum: ['asc', 'desc'] } },
    errors: STORED_COMPLETION_ERRORS,
  },
  'POST /v1/completions': {
    response: 'Completion',
    event: 'CompletionChunk',
    errors: COMPUTE_ERRORS,
    examples: {
      text: { prompt: 'Once upon a time', max_tokens: 8 },
      scoring: { prompt: 'One two three', max_tokens: 0, echo: true, logprobs: 1 },
    },
  },
  'POST /v1/responses': {
    response: 'Response',
    event: 'ResponseEvent',
    errors: [...COMPUTE_ERRORS, 'response_not_found'],
    examples: {
      question: { input: 'What is Capstan?', max_output_tokens: 16 },
      tools: {
        instructions: 'Be brief.',
        input: [{ role: 'user', content: 'How is the weather in Bern?' }],
        tools: [{ type: 'function', ...WEATHER_TOOL.function }],
        max_output_tokens: 64,
        store: false,
      },
    },
  },
  'POST /v1/responses/input_tokens': {
    response: 'InputTokens',
    errors: [...COMPUTE_ERRORS, 'response_not_found'],
    examples: { question: { input: 'What is Capstan?' } },
  },
  'GET /v1/responses/{response_id}': { response: 'Response', errors: STORED_ERRORS },
  'DELETE /v1/responses/{response_id}': { response: 'DeletedResponse', errors: STORED_ERRORS },
  'POST /v1/responses/{response_id}/cancel': { errors: STORED_ERRORS },
  'GET /v1/responses/{response_id}/input_items': { response: 'InputItems', errors: STORED_ERRORS },
  'POST /v1/messages': {
    response: 'Message',
    event: 'MessageEvent',
    errors: [...COMPUTE_ERRORS, 'thread_not_found'],
    examples: {
      question: { messages: QUESTION, max_tokens: 16 },
      tools: {
        system: 'Be brief.',
        messages: [{ role: 'user', content: [{ type: 'text', text: 'How is the weather in Bern?' }] }],
        tools: [{ name: 'get_weather', input_schema: WEATHER_TOOL.function.parameters }],
        max_tokens: 64,
        thinking: { type: 'disabled' },
      },
    },
  },
  'POST /v1/messages/count_tokens': {
    response: 'TokenCount',
    errors: COMPUTE_ERRORS,
    examples: { question: { messages: QUESTION } },
  },
  'POST /v1/embeddings': {
    response: 'Embeddings',
    errors: COMPUTE_ERRORS,
    examples: {
      texts: { input: ['What is Capstan?', 'An inference runtime'] },
      base64: { input: [72, 101, 108], encoding_format: 'base64' },
    },
  },
  'POST /v1/rerank': RANKING,
  'POST /v2/rerank': RANKING,
  'POST /rerank': RANKING,
  'POST /v1/score': SCORES,
  'POST /score': SCORES,
  'POST /tokenize': {
    response: 'Tokens',
    errors: [...FIELD_ERRORS, ...MODEL_ERRORS, ...WAIT_ERRORS],
    examples: { text: { prompt: 'One two three' }, conversation: { messages: QUESTION } },
  },
  'POST /detokenize': {
    response: 'Text',
    errors: [...FIELD_ERRORS, ...MODEL_ERRORS, ...WAIT_ERRORS],
    examples: { tokens: { tokens: [72, 101, 108] } },
  },
  'GET /v1/models': {
    response: 'ModelList',
    anthropicResponse: 'AnthropicModelList',
    query: {
      limit: { type: 'integer', minimum: 1, maximum: 1_000, default: 20, description: ANTHROPIC_PAGING },
      after_id: { type: 'string', description: ANTHROPIC_PAGING },
      before_id: { type: 'string', description: ANTHROPIC_PAGING },
    },
    errors: [...MODEL_ERRORS, 'invalid_value'],
  },
  'GET /v1/models/{model}': {
    response: 'Model',
    anthropicResponse: 'AnthropicModel',
    errors: [...MODEL_ERRORS, 'model_not_found'],
  },
  'POST /v1/files': {
    response: 'File',
    form: {
      purpose: { const: 'batch' },
      file: { type: 'string', format: 'binary', description: 'A line of JSON for each request' },
    },
    errors: [
      ...STORE_ERRORS,
      'missing_required_parameter',
      'invalid_type',
      'unsupported_value',
      'unsupported_media_type',
      'request_timeout',
      'storage_full',
    ],
  },
  'GET /v1/files': {
    response: 'FileList',
    query: {
      ...PAGING,
      order: { type: 'string', enum: ['asc', 'desc'] },
      purpose: { type: 'string', enum: ['batch', 'batch_output'] },
    },
    errors: [...STORE_ERRORS, 'invalid_value'],
  },
  'GET /v1/files/{file_id}': { response: 'File', errors: [...STORE_ERRORS, 'file_not_found'] },
  'GET /v1/files/{file_id}/content': { response: 'bytes', errors: [...STORE_ERRORS, 'file_not_found'] },
  'DELETE /v1/files/{file_id}': {
    response: 'DeletedFile',
    errors: [...STORE_ERRORS, 'file_not_found', 'invalid_value'],
  },
  'POST /v1/batches': {
    response: 'Batch',
    errors: [
      ...STORE_ERRORS,
      'invalid_json',
      'invalid_type',
      'invalid_value',
      'missing_required_parameter',
      'unsupported_value',
      'unsupported_media_type',
      'request_timeout',
      'file_not_found',
      'queue_full',
      'storage_full',
      'model_loading',
    ],
  },
  'GET /v1/batches': { response: 'BatchList', query: PAGING, errors: [...STORE_ERRORS, 'invalid_value'] },
  'GET /v1/batches/{batch_id}': { response: 'Batch', errors: [...STORE_ERRORS, 'batch_not_found'] },
  'POST /v1/batches/{batch_id}/cancel': {
    response: 'Batch',
    errors: [...STORE_ERRORS, 'batch_not_found', 'invalid_value', 'storage_full'],
  },
  'GET /health': { summary: 'Check the engine', errors: HEALTH_ERRORS },
  'GET /ping': { summary: 'Same as /health', errors: HEALTH_ERRORS },
  'POST /ping': { summary: 'Same as /health', errors: HEALTH_ERRORS },
  'GET /version': { summary: 'Get the server version', response: 'Version', errors: [] },
  'GET /metrics': { summary: 'Get metrics in Prometheus text format', response: 'text', errors: ['internal_error'] },
  'GET /openapi.json': { summary: 'Get this document', response: 'object', errors: ['internal_error'] },
};
