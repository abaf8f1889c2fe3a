import { boolean, count, exactly, list, nullable, ref, type ResponseSchema, seconds, string } from './schema-parts';

const status = { type: 'string', enum: ['in_progress', 'completed', 'incomplete'] };
const anything = {};
const alternative = { token: string, logprob: { type: 'number' }, bytes: list({ type: 'integer' }) };
const outputText = exactly({
  type: { const: 'output_text' },
  text: string,
  annotations: list(anything, { maxItems: 0 }),
  logprobs: list(exactly({ ...alternative, top_logprobs: list(exactly(alternative)) })),
});
const callFields = { id: string, status, call_id: string, name: string };
const reasoningText = exactly({ type: { const: 'reasoning_text' }, text: string });

const outputItem = {
  anyOf: [
    exactly({
      type: { const: 'message' },
      id: string,
      status,
      role: { const: 'assistant' },
      content: list(outputText),
    }),
    exactly({
      type: { const: 'reasoning' },
      id: string,
      status,
      summary: list(anything, { maxItems: 0 }),
      content: list(reasoningText),
      encrypted_content: { type: 'null' },
    }),
    exactly({ type: { const: 'function_call' }, ...callFields, arguments: string }, { namespace: string }),
    exactly({ type: { const: 'custom_tool_call' }, ...callFields, input: string }, { namespace: string }),
  ],
};

const object = { type: 'object' };

/** Response bodies of `/v1/responses`. */
export const RESPONSES_SCHEMAS = {
  Response: exactly({
    id: string,
    object: { const: 'response' },
    created_at: seconds,
    status: { type: 'string', enum: ['in_progress', 'completed', 'incomplete', 'failed'] },
    background: { const: false },
    error: nullable(exactly({ code: string, message: string })),
    incomplete_details: nullable(exactly({ reason: { const: 'max_output_tokens' } })),
    model: string,
    output: list(ref('OutputItem')),
    instructions: nullable(string),
    max_output_tokens: nullable(count),
    metadata: { description: 'As sent' },
    parallel_tool_calls: boolean,
    previous_response_id: nullable(string),
    prompt_cache_key: { description: 'As sent' },
    reasoning: exactly({ effort: nullable(string), summary: nullable(string) }),
    safety_identifier: { description: 'As sent' },
    temperature: { type: 'number' },
    text: object,
    tool_choice: { description: 'As sent' },
    tools: list(object),
    top_p: { type: 'number' },
    user: { description: 'As sent' },
    top_logprobs: count,
    max_tool_calls: { type: 'null' },
    service_tier: { const: 'default' },
    store: { type: 'boolean', description: 'Whether the response is stored' },
    truncation: { const: 'disabled' },
    usage: nullable(
      exactly({
        input_tokens: count,
        input_tokens_details: exactly({ cached_tokens: count, cache_write_tokens: { const: 0 } }),
        output_tokens: count,
        output_tokens_details: exactly({ reasoning_tokens: count }),
        total_tokens: count,
      }),
    ),
  }),
  OutputItem: outputItem,
  ResponseEvent: {
    type: 'object',
    description: 'The fields depend on the type, as in the interface of OpenAI',
    required: ['type', 'sequence_number'],
    properties: {
      type: { type: 'string', pattern: '^response\\.' },
      sequence_number: count,
      output_index: count,
      content_index: count,
      item_id: string,
      item: ref('OutputItem'),
      delta: string,
      response: ref('Response'),
    },
  },
  DeletedResponse: exactly({ id: string, object: { const: 'response' }, deleted: { const: true } }),
  InputTokens: exactly({ object: { const: 'response.input_tokens' }, input_tokens: count }),
  InputItems: exactly({
    object: { const: 'list' },
    data: list({ type: 'object', required: ['id', 'type'] }),
    first_id: nullable(string),
    last_id: nullable(string),
    has_more: boolean,
  }),
} satisfies Record<string, ResponseSchema>;
