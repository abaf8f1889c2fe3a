import { MESSAGE_SCHEMAS } from './message-schemas';
import { RESPONSES_SCHEMAS } from './responses-schemas';
import {
  boolean,
  count,
  exactly,
  list,
  nullable,
  ref,
  type ResponseSchema,
  seconds,
  string,
  tokenIds,
} from './schema-parts';

/**
 * JSON Schemas of the response bodies: the `components` of the OpenAPI document. Tests check real responses against
 * them.
 */

export type ResponseSchemaName = keyof typeof RESPONSE_SCHEMAS;

/** A page of a list. */
function page(item: string): ResponseSchema {
  return exactly({
    object: { const: 'list' },
    data: list(ref(item)),
    first_id: nullable(string),
    last_id: nullable(string),
    has_more: boolean,
  });
}

const stopReason = {
  type: ['string', 'integer', 'null'],
  description:
    'The stop string or stop token id that ended the choice. Null for the end of text, the token limit and tool calls.',
};
const finishReason = { type: 'string', enum: ['stop', 'length', 'tool_calls'] };
const completionFinishReason = { type: 'string', enum: ['stop', 'length'] };

const toolCall = {
  oneOf: [
    exactly({
      id: string,
      type: { const: 'function' },
      function: exactly({
        name: string,
        arguments: { type: 'string', description: 'JSON text, as the model wrote it' },
      }),
    }),
    exactly({ id: string, type: { const: 'custom' }, custom: exactly({ name: string, input: string }) }),
  ],
};

const toolCallDelta = {
  oneOf: [
    exactly(
      { index: count, function: exactly({ arguments: string }, { name: string }) },
      { id: { type: 'string', description: 'Only in the first delta of a call' }, type: { const: 'function' } },
    ),
    exactly({
      index: count,
      id: string,
      type: { const: 'custom' },
      custom: { ...exactly({ name: string, input: string }), description: 'The whole call' },
    }),
  ],
};

const tokenLogprob = {
  token: string,
  logprob: { type: 'number' },
  bytes: list({ type: 'integer', minimum: 0, maximum: 255 }),
};

const chunkHead = { id: string, created: seconds, model: string };

const chatChoice = {
  index: count,
  logprobs: nullable(ref('ChatLogprobs')),
  finish_reason: finishReason,
  stop_reason: stopReason,
};
const chatCompletion = {
  id: string,
  object: { const: 'chat.completion' },
  created: seconds,
  model: string,
  choices: list(
    exactly(
      {
        ...chatChoice,
        message: exactly(
          { role: string, reasoning_content: nullable(string), content: string, tool_calls: list(toolCall) },
          { reasoning: string },
        ),
      },
      { token_ids: tokenIds },
    ),
    { minItems: 1 },
  ),
  usage: ref('Usage'),
  prompt_logprobs: nullable(ref('PromptLogprobs')),
};
/** A service stores the completions of other servers too, and of streams. They have fewer fields. */
const storedChoice = exactly(
  {
    index: count,
    message: exactly(
      { role: string, content: nullable(string) },
      { reasoning_content: nullable(string), reasoning: string, tool_calls: list(toolCall) },
    ),
    logprobs: chatChoice.logprobs,
    finish_reason: finishReason,
  },
  { stop_reason: stopReason, token_ids: tokenIds },
);
const promptParts = { prompt_token_ids: tokenIds, prompt_text: string };
const asSent = { description: 'As sent, else null' };

export const RESPONSE_SCHEMAS = {
  Usage: exactly(
    { prompt_tokens: count, total_tokens: count, completion_tokens: count },
    {
      prompt_tokens_details: {
        ...nullable(exactly({ cached_tokens: count })),
        description: 'Null without a prefix cache',
      },
      completion_tokens_details: exactly({ reasoning_tokens: count }),
    },
  ),
  ChatLogprobs: exactly({ content: list(exactly({ ...tokenLogprob, top_logprobs: list(exactly(tokenLogprob)) })) }),
  PromptLogprobs: list(
    nullable({
      type: 'object',
      additionalProperties: exactly({ logprob: { type: 'number' }, rank: count, decoded_token: string }),
    }),
    {
      description: 'One entry per prompt token, by token id. The first entry is null.',
    },
  ),
  ChatCompletion: exactly(chatCompletion, promptParts),
  ChatCompletionList: page('StoredChatCompletion'),
  StoredChatCompletion: exactly(
    {
      ...chatCompletion,
      choices: list(storedChoice, { minItems: 1 }),
      usage: nullable(ref('Usage')),
      request_id: string,
      metadata: { type: 'object', additionalProperties: string },
      frequency_penalty: asSent,
      input_user: { description: 'The field user of the request' },
      presence_penalty: asSent,
      response_format: asSent,
      seed: asSent,
      temperature: asSent,
      tool_choice: asSent,
      tools: asSent,
      top_p: asSent,
    },
    promptParts,
  ),
  DeletedChatCompletion: exactly({
    id: string,
    object: { const: 'chat.completion.deleted' },
    deleted: { const: true },
  }),
  StoredMessages: exactly({
    object: { const: 'list' },
    data: list({
      type: 'object',
      required: ['id', 'role', 'content', 'content_parts', 'name'],
      properties: {
        id: string,
        content: nullable(string),
        content_parts: { description: 'The parts of a content that is a list' },
      },
    }),
    first_id: nullable(string),
    last_id: nullable(string),
    has_more: boolean,
  }),
  ChatCompletionChunk: exactly(
    {
      ...chunkHead,
      object: { const: 'chat.completion.chunk' },
      choices: list(
        exactly(
          {
            index: count,
            delta: exactly(
              {},
              {
                role: string,
                content: nullable({ type: 'string', description: 'Null with the role, if the model may call tools' }),
                reasoning_content: string,
                reasoning: string,
                tool_calls: list(toolCallDelta, { minItems: 1, maxItems: 1 }),
              },
            ),
            logprobs: nullable(ref('ChatLogprobs')),
            finish_reason: nullable(finishReason),
          },
          { stop_reason: stopReason, token_ids: tokenIds },
        ),
        { maxItems: 1 },
      ),
    },
    { usage: ref('Usage'), prompt_token_ids: tokenIds, prompt_text: string },
  ),
  CompletionLogprobs: exactly({
    text_offset: list(count),
    token_logprobs: list({ type: ['number', 'null'] }),
    tokens: list(string),
    top_logprobs: list(nullable({ type: 'object', additionalProperties: { type: 'number' } })),
  }),
  Completion: exactly({
    id: string,
    object: { const: 'text_completion' },
    created: seconds,
    model: string,
    choices: list(
      exactly(
        {
          index: count,
          text: string,
          logprobs: nullable(ref('CompletionLogprobs')),
          finish_reason: completionFinishReason,
          stop_reason: stopReason,
          prompt_logprobs: nullable(ref('PromptLogprobs')),
        },
        { token_ids: tokenIds, prompt_token_ids: tokenIds },
      ),
      { minItems: 1 },
    ),
    usage: ref('Usage'),
  }),
  CompletionChunk: exactly(
    {
      ...chunkHead,
      object: { const: 'text_completion' },
      choices: list(
        exactly(
          {
            index: count,
            text: string,
            logprobs: nullable(ref('CompletionLogprobs')),
            finish_reason: nullable(completionFinishReason),
            stop_reason: stopReason,
          },
          { token_ids: tokenIds, prompt_token_ids: tokenIds },
        ),
        { maxItems: 1 },
      ),
    },
    { usage: ref('Usage') },
  ),
  Embeddings: exactly({
    id: string,
    object: { const: 'list' },
    created: seconds,
    model: string,
    data: list(
      exactly({
        object: { const: 'embedding' },
        index: count,
        embedding: {
          type: ['array', 'string'],
          items: { type: 'number' },
          description: 'Numbers, or base64 of little-endian 32-bit floats with "encoding_format": "base64"',
        },
      }),
      { minItems: 1 },
    ),
    usage: ref('Usage'),
  }),
  Ranking: exactly({
    id: string,
    model: string,
    usage: exactly({ prompt_tokens: count, total_tokens: count }),
    results: list(
      exactly({ index: count, relevance_score: { type: 'number' } }, { document: exactly({ text: string }) }),
      { description: 'The most relevant document first. index is its place in the request.' },
    ),
    meta: exactly({ tokens: exactly({ input_tokens: count }) }),
  }),
  Scores: exactly({
    id: string,
    object: { const: 'list' },
    created: seconds,
    model: string,
    data: list(exactly({ index: count, object: { const: 'score' }, score: { type: 'number' } }), { minItems: 1 }),
    usage: ref('Usage'),
  }),
  Tokens: exactly({ count, max_model_len: count, tokens: tokenIds, token_strs: nullable(list(string)) }),
  Text: exactly({ prompt: string }),
  Model: exactly(
    {
      id: string,
      object: { const: 'model' },
      created: seconds,
      owned_by: string,
      root: string,
      parent: { type: ['string', 'null'] },
      max_model_len: count,
      permission: list(
        exactly({
          id: string,
          object: { const: 'model_permission' },
          created: seconds,
          allow_create_engine: boolean,
          allow_sampling: boolean,
          allow_logprobs: boolean,
          allow_search_indices: boolean,
          allow_view: boolean,
          allow_fine_tuning: boolean,
          organization: string,
          group: { type: 'null' },
          is_blocking: boolean,
        }),
      ),
      meta: exactly(
        { task: { type: 'string', enum: ['generate', 'embed', 'score'] } },
        {
          default_sampling: exactly({
            temperature: { type: 'number' },
            top_p: { type: 'number' },
            top_k: count,
            repetition_penalty: { type: 'number' },
          }),
          embedding_size: count,
          prompt_names: list(string),
        },
      ),
    },
    {
      status: exactly(
        { value: { type: 'string', enum: ['unloaded', 'loading', 'loaded', 'unloading', 'sleeping'] } },
        { failed: { const: true } },
      ),
    },
  ),
  ModelList: exactly({ object: { const: 'list' }, data: list(ref('Model'), { minItems: 1 }) }),
  AnthropicModel: exactly({
    type: { const: 'model' },
    id: string,
    display_name: string,
    created_at: { type: 'string', format: 'date-time' },
    max_input_tokens: nullable(count),
  }),
  AnthropicModelList: exactly({
    data: list(ref('AnthropicModel')),
    has_more: boolean,
    first_id: nullable(string),
    last_id: nullable(string),
  }),
  File: exactly({
    id: string,
    object: { const: 'file' },
    bytes: count,
    created_at: seconds,
    filename: string,
    purpose: { type: 'string', enum: ['batch', 'batch_output'] },
    status: { const: 'processed' },
  }),
  FileList: page('File'),
  DeletedFile: exactly({ id: string, object: { const: 'file' }, deleted: { const: true } }),
  Batch: exactly({
    id: string,
    object: { const: 'batch' },
    endpoint: string,
    errors: nullable(
      exactly({
        object: { const: 'list' },
        data: list(exactly({ code: string, message: string, param: nullable(string), line: nullable(count) })),
      }),
    ),
    input_file_id: string,
    completion_window: string,
    status: {
      type: 'string',
      enum: ['validating', 'failed', 'in_progress', 'finalizing', 'completed', 'expired', 'cancelling', 'cancelled'],
    },
    output_file_id: nullable(string),
    error_file_id: nullable(string),
    created_at: seconds,
    in_progress_at: nullable(seconds),
    expires_at: seconds,
    finalizing_at: nullable(seconds),
    completed_at: nullable(seconds),
    failed_at: nullable(seconds),
    expired_at: nullable(seconds),
    cancelling_at: nullable(seconds),
    cancelled_at: nullable(seconds),
    request_counts: exactly({ total: count, completed: count, failed: count }),
    metadata: nullable({ type: 'object', additionalProperties: string }),
  }),
  BatchList: page('Batch'),
  Version: exactly({ version: string }),
  ...RESPONSES_SCHEMAS,
  ...MESSAGE_SCHEMAS,
} satisfies Record<string, ResponseSchema>;

/** Returns the schema of an error with one of these codes and types. */
export function errorSchema(codes: readonly string[], types: readonly string[]): ResponseSchema {
  return exactly({
    error: exactly({
      message: { type: 'string', minLength: 1 },
      type: { type: 'string', enum: [...new Set(types)] },
      param: { type: ['string', 'null'], description: 'Path of the invalid field' },
      code: { type: 'string', enum: codes },
    }),
  });
}
