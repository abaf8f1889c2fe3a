/** The request bodies, one JSON Schema per route; fields that are not here are ignored or in `unsupported.ts`. */
import { MAX_BAD_WORDS, MAX_STRUCTURED_CHOICES } from '../../ts';

/** JSON Schema as this server writes it. */
export interface Schema {
  type?: string | string[];
  enum?: readonly unknown[];
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  additionalProperties?: Schema;
  minItems?: number;
  maxItems?: number;
  maxProperties?: number;
  minLength?: number;
  maxLength?: number;
  pattern?: string;
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
  /** What the value has to be, where the rest does not say it well. */
  description?: string;
}

/** Generous, and yet no request can make the server walk lists without end. */
const MAX_MESSAGES = 65_536;
const MAX_CONTENT_PARTS = 65_536;
const MAX_TOOLS = 16_384;
const MAX_PROMPTS = 1_024;
const MAX_STOPS = 1_024;
const MAX_BIASES = 65_536;
const MAX_DETOKENIZED = 1_048_576;

const boolean: Schema = { type: 'boolean' };
const string: Schema = { type: 'string' };
const object: Schema = { type: 'object' };
const number = (minimum: number, maximum: number): Schema => ({ type: 'number', minimum, maximum });
const integer = (minimum?: number, maximum?: number): Schema => ({
  type: 'integer',
  ...(minimum === undefined ? {} : { minimum }),
  ...(maximum === undefined ? {} : { maximum }),
});
const above = (exclusiveMinimum: number, maximum?: number): Schema => ({
  type: 'number',
  exclusiveMinimum,
  ...(maximum === undefined ? {} : { maximum }),
});
const tokenId: Schema = { ...integer(0), description: 'token ids of 0 or more' };
const tokenIds: Schema = { type: 'array', items: tokenId, description: 'an array of token ids' };
const texts = (maxItems: number, description: string): Schema => ({
  type: 'array',
  items: { type: 'string', minLength: 1 },
  maxItems,
  description,
});

const functionCall: Schema = {
  type: 'object',
  required: ['name', 'arguments'],
  properties: { name: string, arguments: string },
};

const message: Schema = {
  type: 'object',
  required: ['role'],
  properties: {
    role: { type: 'string', enum: ['system', 'developer', 'user', 'assistant', 'tool', 'function'] },
    content: {
      type: ['string', 'array'],
      description: 'a string or an array of text parts',
      items: { type: 'object', required: ['type'], properties: { type: string, text: string } },
      maxItems: MAX_CONTENT_PARTS,
    },
    name: string,
    tool_calls: {
      type: 'array',
      items: {
        type: 'object',
        required: ['function'],
        properties: { id: string, type: { type: 'string', enum: ['function'] }, function: functionCall },
      },
      maxItems: MAX_TOOLS,
    },
    tool_call_id: string,
    function_call: functionCall,
    reasoning: string,
    reasoning_content: string,
  },
};

const functionDefinition: Schema = {
  type: 'object',
  required: ['name'],
  properties: { name: { type: 'string', minLength: 1 }, description: string, parameters: object, strict: boolean },
};

const tools: Schema = {
  type: 'array',
  items: {
    type: 'object',
    required: ['type', 'function'],
    properties: { type: { type: 'string', enum: ['function'] }, function: functionDefinition },
  },
  maxItems: MAX_TOOLS,
};

/** What a prompt is rendered from. */
const conversation: Record<string, Schema> = {
  messages: { type: 'array', items: message, minItems: 1, maxItems: MAX_MESSAGES },
  tools,
  chat_template_kwargs: object,
  add_generation_prompt: boolean,
  continue_final_message: boolean,
};

/** How tokens are chosen, and what is told of them; for both kinds of completion. */
const generation: Record<string, Schema> = {
  model: string,
  stream: boolean,
  stream_options: { type: 'object', properties: { include_usage: boolean, continuous_usage_stats: boolean } },
  temperature: number(0, 2),
  top_p: above(0, 1),
  top_k: integer(-1),
  min_p: number(0, 1),
  n: integer(1, 128),
  best_of: integer(1),
  stop: {
    type: ['string', 'array'],
    minLength: 1,
    items: { type: 'string', minLength: 1 },
    maxItems: MAX_STOPS,
    description: `a string of at least one character, or an array of up to ${MAX_STOPS} of them`,
  },
  stop_token_ids: tokenIds,
  seed: { ...integer(), description: 'a 64-bit integer' },
  presence_penalty: number(-2, 2),
  frequency_penalty: number(-2, 2),
  repetition_penalty: above(0),
  repeat_penalty: above(0),
  min_tokens: integer(0),
  ignore_eos: boolean,
  include_stop_str_in_output: boolean,
  skip_special_tokens: boolean,
  spaces_between_special_tokens: boolean,
  logit_bias: {
    type: 'object',
    additionalProperties: number(-100, 100),
    maxProperties: MAX_BIASES,
    description: `an object from up to ${MAX_BIASES} token ids to a number from -100 to 100 each`,
  },
  allowed_token_ids: { ...tokenIds, minItems: 1, description: 'an array of at least one token id' },
  bad_words: texts(MAX_BAD_WORDS, `an array of up to ${MAX_BAD_WORDS} strings of at least one character`),
  truncate_prompt_tokens: integer(-1),
  truncation_side: { type: 'string', enum: ['left', 'right'] },
  prompt_logprobs: integer(-1),
  add_special_tokens: boolean,
  return_token_ids: boolean,
  return_tokens_as_token_ids: boolean,
  response_format: {
    type: 'object',
    required: ['type'],
    properties: { type: { type: 'string', enum: ['text', 'json_object', 'json_schema'] }, json_schema: object },
  },
  structured_outputs: object,
  guided_json: { type: ['object', 'string', 'boolean'] },
  guided_regex: { type: 'string', minLength: 1 },
  guided_choice: { ...texts(MAX_STRUCTURED_CHOICES, 'an array of at least one string'), minItems: 1 },
  guided_grammar: { type: 'string', minLength: 1 },
  cache_salt: {
    type: 'string',
    minLength: 1,
    maxLength: 128,
    pattern: '^[^@/\\\\\\u0000]*$',
    description: 'a string of 1 to 128 characters without @, / and \\',
  },
  request_id: {
    type: 'string',
    pattern: '^[\\x21-\\x7e]{1,128}$',
    description: 'a string of 1 to 128 visible ASCII characters',
  },
};

export const CHAT_COMPLETION_REQUEST: Schema = {
  type: 'object',
  required: ['messages'],
  properties: {
    ...conversation,
    ...generation,
    max_tokens: integer(1),
    max_completion_tokens: integer(1),
    logprobs: boolean,
    top_logprobs: integer(-1),
    tool_choice: {
      type: ['string', 'object'],
      required: ['type'],
      properties: { type: string, function: { type: 'object', required: ['name'], properties: { name: string } } },
    },
    parallel_tool_calls: boolean,
    functions: { type: 'array', items: functionDefinition, maxItems: MAX_TOOLS },
    function_call: { type: ['string', 'object'], required: ['name'], properties: { name: string } },
    reasoning_effort: { type: 'string', enum: ['none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max'] },
    thinking_token_budget: integer(-1),
    include_reasoning: boolean,
    separate_reasoning: boolean,
    stream_reasoning: boolean,
    reasoning_format: { type: 'string', enum: ['auto', 'none', 'deepseek'] },
    return_prompt_text: boolean,
  },
};

export const COMPLETION_REQUEST: Schema = {
  type: 'object',
  required: ['prompt'],
  properties: {
    prompt: {
      type: ['string', 'array'],
      items: {
        type: ['string', 'integer', 'array'],
        minimum: 0,
        items: tokenId,
        description: 'texts, token ids of 0 or more, or arrays of them as items',
      },
      minItems: 1,
      description: 'a string, an array of token ids, or an array of one of them',
    },
    ...generation,
    max_tokens: integer(0),
    echo: boolean,
    logprobs: integer(-1),
    suffix: string,
  },
};

export const TOKENIZE_REQUEST: Schema = {
  type: 'object',
  properties: {
    model: string,
    prompt: string,
    ...conversation,
    add_special_tokens: boolean,
    return_token_strs: boolean,
  },
};

export const DETOKENIZE_REQUEST: Schema = {
  type: 'object',
  required: ['tokens'],
  properties: {
    model: string,
    tokens: { ...tokenIds, maxItems: MAX_DETOKENIZED, description: `an array of up to ${MAX_DETOKENIZED} token ids` },
  },
};

export { MAX_PROMPTS };
