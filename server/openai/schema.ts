/** The request body of POST /v1/chat/completions, as JSON Schema and as a type; fields that are not here are ignored or in `unsupported.ts`. */

export interface ChatCompletionRequest {
  model?: string;
  messages: WireMessage[];
  stream?: boolean;
  stream_options?: { include_usage?: boolean; continuous_usage_stats?: boolean };
  max_tokens?: number;
  max_completion_tokens?: number;
  temperature?: number;
  top_p?: number;
  top_k?: number;
  min_p?: number;
  n?: number;
  stop?: string | string[];
  stop_token_ids?: number[];
  seed?: number;
  presence_penalty?: number;
  frequency_penalty?: number;
  repetition_penalty?: number;
  min_tokens?: number;
  ignore_eos?: boolean;
  include_stop_str_in_output?: boolean;
  skip_special_tokens?: boolean;
  logit_bias?: Record<string, number>;
  allowed_token_ids?: number[];
  logprobs?: boolean;
  top_logprobs?: number;
  tools?: WireTool[];
  tool_choice?: string | { type: string; function?: { name: string } };
  parallel_tool_calls?: boolean;
  response_format?: { type: string };
  reasoning_effort?: string;
  chat_template_kwargs?: Record<string, unknown>;
  add_generation_prompt?: boolean;
  continue_final_message?: boolean;
  cache_salt?: string;
  request_id?: string;
}

export interface WireMessage {
  role: 'system' | 'developer' | 'user' | 'assistant' | 'tool';
  content?: string | { type: string; text?: string }[];
  name?: string;
  tool_calls?: { id?: string; type?: string; function: { name: string; arguments: string } }[];
  tool_call_id?: string;
  reasoning?: string;
  reasoning_content?: string;
}

export interface WireTool {
  type: 'function';
  function: { name: string; description?: string; parameters?: Record<string, unknown>; strict?: boolean };
}

/** JSON Schema as this server writes it. */
export interface Schema {
  type?: string | string[];
  enum?: readonly unknown[];
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  additionalProperties?: Schema;
  minItems?: number;
  minLength?: number;
  maxLength?: number;
  pattern?: string;
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
  /** What the value has to be, where the rest does not say it well. */
  description?: string;
}

const boolean: Schema = { type: 'boolean' };
const string: Schema = { type: 'string' };
const object: Schema = { type: 'object' };
const number = (minimum: number, maximum: number): Schema => ({ type: 'number', minimum, maximum });
const integer = (minimum?: number, maximum?: number): Schema => ({ type: 'integer', ...(minimum === undefined ? {} : { minimum }), ...(maximum === undefined ? {} : { maximum }) });
const above = (exclusiveMinimum: number, maximum?: number): Schema => ({ type: 'number', exclusiveMinimum, ...(maximum === undefined ? {} : { maximum }) });
const tokenIds: Schema = { type: 'array', items: integer(0), description: 'an array of token ids' };

const toolCall: Schema = {
  type: 'object',
  required: ['function'],
  properties: {
    id: string,
    type: { type: 'string', enum: ['function'] },
    function: { type: 'object', required: ['name', 'arguments'], properties: { name: string, arguments: string } },
  },
};

const message: Schema = {
  type: 'object',
  required: ['role'],
  properties: {
    role: { type: 'string', enum: ['system', 'developer', 'user', 'assistant', 'tool'] },
    content: {
      type: ['string', 'array'],
      description: 'a string or an array of text parts',
      items: { type: 'object', required: ['type'], properties: { type: string, text: string } },
    },
    name: string,
    tool_calls: { type: 'array', items: toolCall },
    tool_call_id: string,
    reasoning: string,
    reasoning_content: string,
  },
};

const tool: Schema = {
  type: 'object',
  required: ['type', 'function'],
  properties: {
    type: { type: 'string', enum: ['function'] },
    function: {
      type: 'object',
      required: ['name'],
      properties: { name: { type: 'string', minLength: 1 }, description: string, parameters: object, strict: boolean },
    },
  },
};

export const CHAT_COMPLETION_REQUEST: Schema = {
  type: 'object',
  required: ['messages'],
  properties: {
    model: string,
    messages: { type: 'array', items: message, minItems: 1 },
    stream: boolean,
    stream_options: { type: 'object', properties: { include_usage: boolean, continuous_usage_stats: boolean } },
    max_tokens: integer(1),
    max_completion_tokens: integer(1),
    temperature: number(0, 2),
    top_p: above(0, 1),
    top_k: integer(-1),
    min_p: number(0, 1),
    n: integer(1, 128),
    stop: { type: ['string', 'array'], minLength: 1, items: { type: 'string', minLength: 1 }, description: 'a string of at least one character, or an array of them' },
    stop_token_ids: tokenIds,
    seed: integer(),
    presence_penalty: number(-2, 2),
    frequency_penalty: number(-2, 2),
    repetition_penalty: above(0),
    min_tokens: integer(0),
    ignore_eos: boolean,
    include_stop_str_in_output: boolean,
    skip_special_tokens: boolean,
    logit_bias: { type: 'object', additionalProperties: number(-100, 100), description: 'an object from token id to a number from -100 to 100' },
    allowed_token_ids: { ...tokenIds, minItems: 1 },
    logprobs: boolean,
    top_logprobs: integer(0, 20),
    tools: { type: 'array', items: tool },
    tool_choice: { type: ['string', 'object'], required: ['type'], properties: { type: string, function: { type: 'object', required: ['name'], properties: { name: string } } } },
    parallel_tool_calls: boolean,
    response_format: { type: 'object', required: ['type'], properties: { type: { type: 'string', enum: ['text', 'json_object', 'json_schema'] } } },
    reasoning_effort: { type: 'string', enum: ['none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max'] },
    chat_template_kwargs: object,
    add_generation_prompt: boolean,
    continue_final_message: boolean,
    cache_salt: { type: 'string', minLength: 1, maxLength: 128, pattern: '^[^@/\\\\\\u0000]*$', description: 'a string of 1 to 128 characters without @, / and \\' },
    request_id: { type: 'string', pattern: '^[\\x21-\\x7e]{1,128}$', description: 'a string of 1 to 128 visible ASCII characters' },
  },
};
