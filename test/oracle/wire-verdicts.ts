/** The reasons for differences between our responses and those recorded with vLLM 0.32. */

export interface Found {
  /** The exchange's name. */
  name: string;
  path: string;
  theirs: string;
  ours: string;
}

interface Rule {
  /** Names of exchanges. Default: all. */
  names?: RegExp;
  path: RegExp;
  theirs?: RegExp;
  ours?: RegExp;
  verdict: string;
}

const RULES: readonly Rule[] = [
  {
    names: /^(load|render)$/,
    path: /^status$/,
    ours: /^501 /,
    verdict: 'known routes that are not implemented return 501 `not_implemented`',
  },
  {
    names: /^embeddings$/,
    path: /^status$/,
    ours: /^400 unsupported_task/,
    verdict: 'routes that the model does not work with return 400 `unsupported_task`',
  },
  {
    names: /^(tools empty|max_tokens 0)$/,
    path: /^status$/,
    ours: /^200/,
    verdict: '`tools: []` means no tools',
  },
  { names: /^no content type$/, path: /^status$/, ours: /^200/, verdict: 'a missing Content-Type means JSON' },
  { names: /^content type text$/, path: /^status$/, ours: /^415/, verdict: 'a wrong Content-Type gets 415' },
  {
    names: /^models$/,
    path: /^data\[\]\.status$/,
    ours: /^object$/,
    verdict: '`status` says whether a model is loaded, as in llama.cpp',
  },
  {
    names: /^GET on chat$/,
    path: /^status$/,
    ours: /^200/,
    verdict: '`GET /v1/chat/completions` lists stored chat completions, as in OpenAI',
  },
  { names: /^model by id$/, path: /^status$/, ours: /^200/, verdict: '`GET /v1/models/{model}` is supported' },
  {
    names: /^(max_tokens string|stream string)$/,
    path: /^status$/,
    ours: /^400 invalid_type/,
    verdict: 'strings are not converted to numbers or booleans',
  },
  {
    names: /^bad role$/,
    path: /^status$/,
    ours: /^400/,
    verdict: 'unknown roles are refused',
  },
  {
    names: /(out of vocabulary|out of range|stop_token_ids)/,
    path: /^status$/,
    ours: /^400 invalid_value/,
    verdict: 'token ids outside the vocabulary are refused',
  },
  {
    names: /^(priority|beam search|echo)$/,
    path: /^status$/,
    ours: /^400 unsupported_value/,
    verdict: 'unsupported fields that would change the response are refused by name',
  },
  {
    path: /^(error|detail|message|object|code|param|type)$/,
    names: /^(unknown path|model by wrong id|embeddings|options|load|render)$/,
    verdict: 'errors have the same shape for every status and path',
  },
  {
    names: /^responses$/,
    path: /^(?!status$)/,
    ours: /^absent$/,
    verdict: "a response has OpenAI's fields, without vLLM's additions",
  },
  { names: /^responses$/, path: /^(?!status$)/, verdict: "a response has all of OpenAI's fields" },
  {
    names: /^anthropic messages$/,
    path: /^(?!status$)/,
    theirs: /^absent$/,
    verdict: "a message has all of Anthropic's fields",
  },
  { path: /^error\.code$/, verdict: 'error codes are strings' },
  { path: /^error\.param$/, theirs: /^null$/, ours: /^string$/, verdict: '`param` names the field' },
  {
    path: /^error\.param$/,
    theirs: /^string$/,
    ours: /^null$/,
    verdict: 'a body that is not a JSON object has no field to name',
  },
  {
    path: /(^|\.)prompt_tokens_details$/,
    verdict: 'cached tokens are reported while prefix caching is on',
  },
  { path: /(^|\.)completion_tokens_details$/, ours: /^absent$/, verdict: 'present only with a reasoning format' },
  {
    path: /(^|\.)(service_tier|system_fingerprint|kv_transfer_params|ec_transfer_params|metrics|routed_experts)$/,
    ours: /^absent$/,
    verdict: 'not part of our responses',
  },
  {
    path: /(^|\.)message\.(refusal|annotations|audio|function_call)$/,
    ours: /^absent$/,
    verdict: 'not part of our responses',
  },
  {
    path: /(^|\.)message\.reasoning_content$/,
    theirs: /^absent$/,
    verdict: '`reasoning_content` is always present, null without reasoning',
  },
  {
    path: /(^|\.)(message|delta)\.reasoning$/,
    theirs: /^null$/,
    ours: /^absent$/,
    verdict: '`reasoning` is present only when it is not null',
  },
  {
    path: /(^|\.)message\.tool_calls$/,
    theirs: /^absent$/,
    ours: /^array$/,
    verdict: '`tool_calls` is always present, `[]` without calls',
  },
  {
    path: /(^|\.)(token_ids|prompt_token_ids|prompt_text)$/,
    theirs: /^null$/,
    ours: /^absent$/,
    verdict: 'present only on request',
  },
  {
    path: /\.stop_reason$/,
    theirs: /^number$/,
    ours: /^null$/,
    verdict: 'null at an end-of-sequence token; vLLM treats the second one of generation_config.json as a stop token',
  },
  {
    names: /^stop_token_ids$/,
    path: /\.stop_reason$/,
    ours: /^number$/,
    verdict: 'the models differ: ours generates one of the ids',
  },
  {
    names: /^tools (required|named) stream$/,
    path: /^chunks\[\]\.choices\[\]\.delta\.content$/,
    verdict: 'a delta has only new content; text and calls have separate deltas',
  },
  // Tokens that are ready together share a chunk, so a short text may be one chunk with the finish reason.
  {
    path: /^chunks\[\]\.choices\[\]\.finish_reason$/,
    theirs: /^null or string$/,
    ours: /^string$/,
    verdict: 'a chunk has all tokens that are ready',
  },
  { path: /^data\[\]\.meta$/, verdict: '`meta` has the task and the default sampling parameters' },
];

/** Returns the verdict of the first matching rule, or undefined for an undecided difference. */
export function verdictOf({ name, path, theirs, ours }: Found): string | undefined {
  return RULES.find(
    (rule) =>
      (rule.names?.test(name) ?? true) &&
      rule.path.test(path) &&
      (rule.theirs?.test(theirs) ?? true) &&
      (rule.ours?.test(ours) ?? true),
  )?.verdict;
}
