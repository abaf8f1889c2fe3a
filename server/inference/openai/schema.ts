/**
 * The request bodies: each schema defines the TypeScript type, the validation and the OpenAPI description. A new
 * sampling field is four edits: its schema in SAMPLING_PROPERTIES here, its library name in `LIBRARY_NAMES`
 * (sampling-request.ts), the field of `SamplingParams` and its check (ts/sampling.ts), and `NativeSampling`
 * (ts/addon-types.ts). A forgotten one does not compile. Fields that are in no schema are ignored, or refused by
 * unsupported.ts.
 */
import { MAX_BAD_WORDS, MAX_STRUCTURED_CHOICES } from '../../../ts';
import {
  above,
  array,
  boolean,
  integer,
  number,
  object,
  oneOf,
  openObject,
  type Static,
  string,
  stringOr,
  text,
  unsafe,
} from '../../base/json/schema-types';

/** Limits far above any real request. They bound the time that a hostile one takes. */
export const MAX_MESSAGES = 65_536;
export const MAX_CONTENT_PARTS = 65_536;
export const MAX_TOOLS = 16_384;
export const MAX_PROMPTS = 1_024;
export const MAX_STOPS = 1_024;
const MAX_BIASES = 65_536;
const MAX_DETOKENIZED = 1_048_576;

export const nonEmptyText = text({ minLength: 1 });
const tokenId = integer({ minimum: 0, description: 'token ids of 0 or more' });

export type SentPrompts = string | (string | number | number[])[];

/** A text, token ids, or a list of either. `toPrompts` checks that a list has items of one kind. */
export const prompts = unsafe<SentPrompts>({
  type: ['string', 'array'],
  items: {
    type: ['string', 'integer', 'array'],
    minimum: 0,
    items: tokenId,
    description: 'items that are strings, token ids of 0 or more, or arrays of token ids',
  },
  minItems: 1,
  description: 'a string, an array of token ids, or an array of strings or of arrays of token ids',
});

const functionCall = object({ name: string, arguments: string }, ['name', 'arguments']);
const customCall = object({ name: string, input: string }, ['name', 'input']);
/** Which of the fields `function` and `custom` an object needs depends on its type. `checkPart` checks it. */
const kind = oneOf('function', 'custom');

const message = object(
  {
    role: oneOf('system', 'developer', 'user', 'assistant', 'tool', 'function'),
    content: stringOr(
      array(object({ type: string, text: string, refusal: string }, ['type']), {
        maxItems: MAX_CONTENT_PARTS,
        description: 'a string or an array of text parts',
      }),
    ),
    name: string,
    tool_calls: array(object({ id: string, type: kind, function: functionCall, custom: customCall }), {
      maxItems: MAX_TOOLS,
    }),
    tool_call_id: string,
    function_call: functionCall,
    reasoning: string,
    reasoning_content: string,
  },
  ['role'],
);

const functionDefinition = object(
  { name: nonEmptyText, description: string, parameters: openObject, strict: boolean },
  ['name'],
);

const customDefinition = object({ name: nonEmptyText, description: string, format: openObject }, ['name']);

const tool = object({ type: kind, function: functionDefinition, custom: customDefinition }, ['type']);

/** The fields that the chat template renders into a prompt. */
export const CONVERSATION_PROPERTIES = {
  messages: array(message, { minItems: 1, maxItems: MAX_MESSAGES }),
  tools: array(tool, { maxItems: MAX_TOOLS }),
  chat_template_kwargs: openObject,
  add_generation_prompt: boolean,
  continue_final_message: boolean,
};

/** The fields that decide how tokens are chosen and when a completion ends. */
export const SAMPLING_PROPERTIES = {
  temperature: number(0, 2),
  top_p: above(0, 1),
  top_k: integer({ minimum: -1 }),
  min_p: number(0, 1),
  n: integer({ minimum: 1, maximum: 128 }),
  best_of: integer({ minimum: 1 }),
  stop: stringOr(array(nonEmptyText, { maxItems: MAX_STOPS }), {
    minLength: 1,
    description: `a string of at least one character, or an array of up to ${MAX_STOPS} of them`,
  }),
  stop_token_ids: array(tokenId, { description: 'an array of token ids' }),
  seed: integer({ description: 'a 64-bit integer' }),
  presence_penalty: number(-2, 2),
  frequency_penalty: number(-2, 2),
  repetition_penalty: above(0),
  repeat_penalty: above(0),
  min_tokens: integer({ minimum: 0 }),
  ignore_eos: boolean,
  include_stop_str_in_output: boolean,
  skip_special_tokens: boolean,
  spaces_between_special_tokens: boolean,
  logit_bias: unsafe<Record<string, number>>({
    type: 'object',
    additionalProperties: number(-100, 100),
    maxProperties: MAX_BIASES,
    description: `an object of up to ${MAX_BIASES} token ids, each with a number from -100 to 100`,
  }),
  allowed_token_ids: array(tokenId, { minItems: 1, description: 'an array of at least one token id' }),
  bad_words: array(nonEmptyText, {
    maxItems: MAX_BAD_WORDS,
    description: `an array of up to ${MAX_BAD_WORDS} strings of at least one character`,
  }),
  truncate_prompt_tokens: integer({ minimum: -1 }),
  truncation_side: oneOf('left', 'right'),
};

/** The fields of every request that the engine computes something for. */
export const CALL_PROPERTIES = {
  cache_salt: text({
    minLength: 1,
    maxLength: 128,
    pattern: '^[^@/\\\\\\u0000]*$',
    description: 'a string of 1 to 128 characters without @, / and \\',
  }),
  request_id: text({
    pattern: '^[\\x21-\\x7e]{1,128}$',
    description: 'a string of 1 to 128 visible ASCII characters',
  }),
};

/** The fields of both kinds of completion. */
const GENERATION_PROPERTIES = {
  model: string,
  stream: boolean,
  stream_options: object({ include_usage: boolean, continuous_usage_stats: boolean }),
  ...SAMPLING_PROPERTIES,
  prompt_logprobs: integer({ minimum: -1 }),
  add_special_tokens: boolean,
  return_token_ids: boolean,
  return_tokens_as_token_ids: boolean,
  response_format: object({ type: oneOf('text', 'json_object', 'json_schema'), json_schema: openObject }, ['type']),
  structured_outputs: openObject,
  guided_json: unsafe<unknown>({ type: ['object', 'string', 'boolean'] }),
  guided_regex: nonEmptyText,
  guided_choice: array(nonEmptyText, {
    maxItems: MAX_STRUCTURED_CHOICES,
    description: 'an array of at least one string',
    minItems: 1,
  }),
  guided_grammar: nonEmptyText,
  ...CALL_PROPERTIES,
};

export const CHAT_COMPLETION_REQUEST = object(
  {
    ...CONVERSATION_PROPERTIES,
    ...GENERATION_PROPERTIES,
    store: boolean,
    // Checked if the completion is stored.
    metadata: unsafe<unknown>({}),
    max_tokens: integer({ minimum: 1 }),
    max_completion_tokens: integer({ minimum: 1 }),
    logprobs: boolean,
    top_logprobs: integer({ minimum: -1 }),
    tool_choice: stringOr(
      object(
        {
          type: string,
          function: object({ name: string }, ['name']),
          custom: object({ name: string }, ['name']),
          allowed_tools: object({ mode: string, tools: array(openObject, { maxItems: MAX_TOOLS }) }, ['tools']),
        },
        ['type'],
      ),
    ),
    parallel_tool_calls: boolean,
    functions: array(functionDefinition, { maxItems: MAX_TOOLS }),
    function_call: stringOr(object({ name: string }, ['name'])),
    reasoning_effort: oneOf('none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max'),
    thinking_token_budget: integer({ minimum: -1 }),
    include_reasoning: boolean,
    separate_reasoning: boolean,
    stream_reasoning: boolean,
    reasoning_format: oneOf('auto', 'none', 'deepseek'),
    return_prompt_text: boolean,
  },
  ['messages'],
);

export const COMPLETION_REQUEST = object(
  {
    prompt: prompts,
    ...GENERATION_PROPERTIES,
    max_tokens: integer({ minimum: 0 }),
    echo: boolean,
    logprobs: integer({ minimum: -1 }),
    suffix: string,
  },
  ['prompt'],
);

export const TOKENIZE_REQUEST = object({
  model: string,
  prompt: string,
  ...CONVERSATION_PROPERTIES,
  add_special_tokens: boolean,
  return_token_strs: boolean,
});

export const DETOKENIZE_REQUEST = object(
  {
    model: string,
    tokens: array(tokenId, {
      maxItems: MAX_DETOKENIZED,
      description: `an array of up to ${MAX_DETOKENIZED} token ids`,
    }),
  },
  ['tokens'],
);

export type WireMessage = Static<typeof message>;
export type WireToolCall = NonNullable<WireMessage['tool_calls']>[number];
export type WireTool = Static<typeof tool>;
export type ConversationFields = Static<ReturnType<typeof object<typeof CONVERSATION_PROPERTIES, 'messages'>>>;
export type SamplingFields = Static<ReturnType<typeof object<typeof SAMPLING_PROPERTIES>>>;
export type GenerationFields = Static<ReturnType<typeof object<typeof GENERATION_PROPERTIES>>>;
export type ChatCompletionRequest = Static<typeof CHAT_COMPLETION_REQUEST>;
export type CompletionRequest = Static<typeof COMPLETION_REQUEST>;
export type TokenizeRequest = Static<typeof TOKENIZE_REQUEST>;
