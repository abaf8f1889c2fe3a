import { ApiError } from '../errors';
import { show } from './validate';

type ChangesAnswer = (value: unknown) => boolean;

const always: ChangesAnswer = () => true;
const unlessEmpty: ChangesAnswer = (value) => !(Array.isArray(value) && value.length === 0);
const is =
  (wanted: unknown): ChangesAnswer =>
  (value) =>
    value === wanted;
const not =
  (...usual: unknown[]): ChangesAnswer =>
  (value) =>
    !usual.includes(value);

/** Fields that other servers know and this one does not, with the values that would change an answer; any other value passes. */
export type UnsupportedFields = Readonly<Record<string, ChangesAnswer>>;

const OF_BOTH: UnsupportedFields = {
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
  ...OF_BOTH,
  echo: is(true),
  chat_template: always,
  documents: unlessEmpty,
  input_ids: always,
  modalities: (value) => !Array.isArray(value) || value.some(not('text')),
  audio: always,
  web_search_options: always,
};

export const COMPLETION_UNSUPPORTED: UnsupportedFields = {
  ...OF_BOTH,
  suffix: not(''),
  prompt_embeds: always,
};

export const TOKENIZE_UNSUPPORTED: UnsupportedFields = { chat_template: always };

/** @throws ApiError `unsupported_value` that names the first such field. */
export function refuseUnsupported(body: unknown, fields: UnsupportedFields): void {
  for (const [field, changesAnswer] of Object.entries(fields)) {
    const value = (body as Readonly<Record<string, unknown>>)[field];
    if (value !== undefined && value !== null && changesAnswer(value)) throw unsupported(field, value);
  }
}

export function unsupported(param: string, value: unknown): ApiError {
  return new ApiError('unsupported_value', `${param}: ${show(value)} is not supported by this version of the server`, {
    param,
  });
}
