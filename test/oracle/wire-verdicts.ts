/** Why our answers differ from those recorded of vLLM 0.32, where they do: what decided it. "page" is the specification of the inference interface. */

export interface Found {
  /** The exchange's name. */
  name: string;
  path: string;
  theirs: string;
  ours: string;
}

interface Rule {
  /** Names of exchanges; default all. */
  names?: RegExp;
  path: RegExp;
  theirs?: RegExp;
  ours?: RegExp;
  verdict: string;
}

const RULES: readonly Rule[] = [
  {
    names: /^(responses|anthropic messages|anthropic messages stream|load|render|embeddings)$/,
    path: /^status$/,
    ours: /^501 /,
    verdict: 'page 5: C, 501 `not_implemented` until then (0, point 14)',
  },
  {
    names: /^(tools empty|max_tokens 0)$/,
    path: /^status$/,
    ours: /^200/,
    verdict: 'page 0, point 5: `tools: []` means no tools',
  },
  { names: /^no content type$/, path: /^status$/, ours: /^200/, verdict: 'page 4: a missing Content-Type is accepted' },
  { names: /^content type text$/, path: /^status$/, ours: /^415/, verdict: 'page 4: 415' },
  { names: /^model by id$/, path: /^status$/, ours: /^200/, verdict: 'page 5: GET /v1/models/{id}' },
  {
    names: /^(max_tokens string|stream string)$/,
    path: /^status$/,
    ours: /^400 invalid_type/,
    verdict: 'page 1: strings are no numbers and no booleans',
  },
  {
    names: /^bad role$/,
    path: /^status$/,
    ours: /^400/,
    verdict: 'page 1a: unknown roles are refused (oracles: not to be copied)',
  },
  {
    names: /(out of vocabulary|out of range|stop_token_ids)/,
    path: /^status$/,
    ours: /^400 invalid_value/,
    verdict: 'page 1: ids outside the vocabulary are refused (oracles: not to be copied)',
  },
  {
    names: /^(priority|beam search|echo)$/,
    path: /^status$/,
    ours: /^400 unsupported_value/,
    verdict: 'page 1b: C, refused by name where it would change the answer',
  },
  {
    path: /^(error|detail|message|object|code|param|type)$/,
    names: /^(GET on chat|unknown path|model by wrong id|embeddings|options|load|render)$/,
    verdict: 'page 4: one envelope for every status and path',
  },
  { path: /^error\.code$/, verdict: 'page 4: codes are strings' },
  { path: /^error\.param$/, theirs: /^null$/, ours: /^string$/, verdict: 'page 4: `param` names the field' },
  {
    path: /^error\.param$/,
    theirs: /^string$/,
    ours: /^null$/,
    verdict: 'page 4: a body that is no JSON object has no field to name',
  },
  {
    path: /(^|\.)prompt_tokens_details$/,
    verdict: 'page 0, point 4: cached tokens are told while prefix caching is on',
  },
  { path: /(^|\.)completion_tokens_details$/, ours: /^absent$/, verdict: 'page 2: only with a reasoning format' },
  {
    path: /(^|\.)(service_tier|system_fingerprint|kv_transfer_params|ec_transfer_params|metrics|routed_experts)$/,
    ours: /^absent$/,
    verdict: 'page 2: omitted, the seed has none',
  },
  {
    path: /(^|\.)message\.(refusal|annotations|audio|function_call)$/,
    ours: /^absent$/,
    verdict: 'page 2: omitted, the seed has none',
  },
  {
    path: /(^|\.)message\.reasoning_content$/,
    theirs: /^absent$/,
    verdict: 'page 0: `reasoning_content` always, null if there is none',
  },
  {
    path: /(^|\.)(message|delta)\.reasoning$/,
    theirs: /^null$/,
    ours: /^absent$/,
    verdict: 'page 0, point 15: `reasoning` when it is not null',
  },
  {
    path: /(^|\.)message\.tool_calls$/,
    theirs: /^absent$/,
    ours: /^array$/,
    verdict: 'page 0: `tool_calls` always, `[]` if there are none',
  },
  {
    path: /(^|\.)(token_ids|prompt_token_ids|prompt_text)$/,
    theirs: /^null$/,
    ours: /^absent$/,
    verdict: 'page 0, point 15: token ids when asked for',
  },
  {
    path: /\.stop_reason$/,
    theirs: /^number$/,
    ours: /^null$/,
    verdict:
      'page 2: null at an end-of-sequence token; theirs counts the second one of generation_config.json as a stop token',
  },
  {
    names: /^stop_token_ids$/,
    path: /\.stop_reason$/,
    ours: /^number$/,
    verdict: 'the models: ours meets one of the ids',
  },
  {
    names: /^tools (required|named) stream$/,
    path: /^chunks\[\]\.choices\[\]\.delta\.content$/,
    verdict: 'page 3: a delta holds what is new; text and calls come in deltas of their own',
  },
  // Tokens that are ready together share a chunk: a short text may be one chunk, which then has the reason.
  {
    path: /^chunks\[\]\.choices\[\]\.finish_reason$/,
    theirs: /^null or string$/,
    ours: /^string$/,
    verdict: 'page 2: a chunk holds the tokens that are ready',
  },
  { path: /^data\[\]\.meta$/, verdict: 'page 0, point 19: `meta.default_sampling`' },
];

/** The first rule that fits, or undefined: then nobody has decided it. */
export function verdictOf({ name, path, theirs, ours }: Found): string | undefined {
  return RULES.find(
    (rule) =>
      (rule.names?.test(name) ?? true) &&
      rule.path.test(path) &&
      (rule.theirs?.test(theirs) ?? true) &&
      (rule.ours?.test(ours) ?? true),
  )?.verdict;
}
