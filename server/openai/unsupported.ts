import { ApiError } from '../errors';
import { show } from './validate';

const always = (): boolean => true;
const unlessEmpty = (value: unknown): boolean => !(Array.isArray(value) && value.length === 0);
const is = (wanted: unknown) => (value: unknown): boolean => value === wanted;
const not = (...usual: unknown[]) => (value: unknown): boolean => !usual.includes(value);

/** Fields that would change the answer and are not done yet, with the values that would; any other value passes. */
const UNSUPPORTED: Readonly<Record<string, (value: unknown) => boolean>> = {
  prompt_logprobs: always,
  bad_words: unlessEmpty,
  truncate_prompt_tokens: always,
  return_token_ids: is(true),
  return_tokens_as_token_ids: is(true),
  return_prompt_text: is(true),
  echo: is(true),
  add_special_tokens: is(true),
  spaces_between_special_tokens: is(false),
  chat_template: always,
  documents: unlessEmpty,
  structured_outputs: always,
  guided_json: always,
  guided_regex: always,
  guided_choice: always,
  guided_grammar: always,
  grammar: always,
  json_schema: always,
  regex: always,
  ebnf: always,
  priority: not(0),
  thinking_token_budget: always,
  include_reasoning: is(false),
  separate_reasoning: is(false),
  use_beam_search: is(true),
  length_penalty: not(1),
  best_of: not(1),
  functions: unlessEmpty,
  function_call: not('none', 'auto'),
  modalities: (value) => !Array.isArray(value) || value.some(not('text')),
  audio: always,
  web_search_options: always,
};

/** @throws ApiError `unsupported_value` that names the first such field. */
export function refuseUnsupported(body: Readonly<Record<string, unknown>>): void {
  for (const [field, changesAnswer] of Object.entries(UNSUPPORTED)) {
    const value = body[field];
    if (value !== undefined && value !== null && changesAnswer(value)) throw unsupported(field, value);
  }
}

export function unsupported(param: string, value: unknown): ApiError {
  return new ApiError('unsupported_value', `${param}: ${show(value)} is not supported by this version of the server`, { param });
}
