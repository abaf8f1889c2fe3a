/** Server options that affect the responses to all requests. */
export interface ServerSettings {
  /** Limit of alternatives per token that a request may ask for. -1 = the whole vocabulary. */
  maxLogprobs: number;
  /** The `role` of generated messages. */
  responseRole: string;
  /** Default variables of the chat template. A request's `chat_template_kwargs` override them. */
  templateKwargs: Readonly<Record<string, unknown>>;
  /** Default of `return_tokens_as_token_ids`: log-probabilities name tokens `token_id:N`. */
  tokensAsTokenIds: boolean;
  /** Streams end with a usage chunk even if the request does not ask for it. */
  forceIncludeUsage: boolean;
}

export const DEFAULT_SETTINGS: ServerSettings = {
  maxLogprobs: 20,
  responseRole: 'assistant',
  templateKwargs: {},
  tokensAsTokenIds: false,
  forceIncludeUsage: false,
};

/** Properties of the server and its model that requests are checked against. */
export interface ParseLimits {
  settings: ServerSettings;
  vocabSize: number;
  maxModelLen: number;
}
