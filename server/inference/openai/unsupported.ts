import { ApiError } from '../../base/errors';
import { show } from '../../base/json/validate';

/** The values of a field that change nothing. */
interface Harmless {
  has: (value: unknown) => boolean;
  /** For errors: what the field may be. */
  expected: string;
}

const always: Harmless = { has: () => false, expected: 'no value' };
const unlessEmpty: Harmless = {
  has: (value) => Array.isArray(value) && value.length === 0,
  expected: '[] or no value',
};
const onlyText: Harmless = {
  has: (value) => Array.isArray(value) && value.every((one) => one === 'text'),
  expected: '["text"] or no value',
};
const is = (effective: unknown): Harmless => ({
  has: (value) => value !== effective,
  expected: typeof effective === 'boolean' ? `${!effective} or no value` : `another value than ${show(effective)}`,
});
const not = (...defaults: unknown[]): Harmless => ({
  has: (value) => defaults.includes(value),
  expected: `${defaults.map(show).join(' or ')} or no value`,
});

/** Fields of other servers. Values that would change the response are refused, all others are ignored. */
export type UnsupportedFields = Readonly<Record<string, Harmless>>;

const COMMON_UNSUPPORTED: UnsupportedFields = {
  grammar: always,
  json_schema: always,
  regex: always,
  ebnf: always,
  stop_regex: unlessEmpty,
  no_stop_trim: is(true),
  guided_whitespace_pattern: always,
  priority: not(0),
  use_beam_search: is(true),
  length_penalty: not(1),
  lora_path: always,
  dynatemp_range: not(0),
  typical_p: not(1),
  mirostat: not(0),
  dry_multiplier: not(0),
  xtc_probability: not(0),
  top_n_sigma: not(-1, 0),
  samplers: always,
  n_probs: not(0),
  repeat_last_n: always,
  t_max_predict_ms: not(-1, 0),
  timings_per_token: is(true),
  return_progress: is(true),
  logits_processors: unlessEmpty,
};

export const CHAT_UNSUPPORTED: UnsupportedFields = {
  ...COMMON_UNSUPPORTED,
  echo: is(true),
  chat_template: always,
  documents: unlessEmpty,
  input_ids: always,
  modalities: onlyText,
  audio: always,
  web_search_options: always,
};

export const COMPLETION_UNSUPPORTED: UnsupportedFields = {
  ...COMMON_UNSUPPORTED,
  suffix: not(''),
  prompt_embeds: always,
};

export const RESPONSES_UNSUPPORTED: UnsupportedFields = {
  ...COMMON_UNSUPPORTED,
  background: is(true),
  conversation: always,
  prompt: always,
  // An input that is too long is an error, so 'auto' changes no answer.
  truncation: not('disabled', 'auto'),
  modalities: onlyText,
  chat_template: always,
};

/** Fields that change what the model sees or may do. */
export const MESSAGES_UNSUPPORTED: UnsupportedFields = {
  ...COMMON_UNSUPPORTED,
  mcp_servers: unlessEmpty,
  container: always,
  chat_template: always,
};

export const TOKENIZE_UNSUPPORTED: UnsupportedFields = { chat_template: always };

const POOLING_UNSUPPORTED: UnsupportedFields = {
  priority: not(0),
  // Inputs always lose their end.
  truncation_side: not('right'),
  truncate: is(true),
  padding: not('do_not_pad'),
  mm_processor_kwargs: always,
};

export const EMBEDDING_UNSUPPORTED: UnsupportedFields = {
  ...POOLING_UNSUPPORTED,
  embed_dtype: not('float32'),
  endianness: not('native', 'little'),
  chat_template: always,
  input_type: always,
  task: always,
  late_chunking: is(true),
};

/** Scores without the model's last function, and other ways to shorten documents. */
export const SCORE_UNSUPPORTED: UnsupportedFields = {
  ...POOLING_UNSUPPORTED,
  use_activation: is(false),
  activation: is(false),
  softmax: is(false),
  messages: always,
  chat_template_kwargs: always,
};

export const RERANK_UNSUPPORTED: UnsupportedFields = {
  ...SCORE_UNSUPPORTED,
  max_tokens_per_doc: always,
  max_chunks_per_doc: always,
  rank_fields: unlessEmpty,
};

/** Throws ApiError `unsupported_value` for the first field with a value that would change the response. */
export function refuseUnsupported(body: unknown, fields: UnsupportedFields): void {
  for (const [field, { has, expected }] of Object.entries(fields)) {
    const value = (body as Readonly<Record<string, unknown>>)[field];
    if (value !== undefined && value !== null && !has(value)) throw unsupportedValue(field, value, expected);
  }
}

/** @param expected The values that are supported. */
export function unsupportedValue(param: string, value: unknown, expected: string): ApiError {
  return new ApiError(
    'unsupported_value',
    `${param}: expected ${expected}, got ${show(value)}, which this version of the server does not support`,
    { param },
  );
}
