/** What the server's start decides about answers, for all requests. */
export interface ServerSettings {
  /** Most log-probabilities per token that a request may ask for; -1: the whole vocabulary. */
  maxLogprobs: number;
  /** `role` of answers. */
  responseRole: string;
  /** What the chat template is given unless the request's `chat_template_kwargs` say otherwise. */
  templateKwargs: Readonly<Record<string, unknown>>;
  /** Tokens in log-probabilities are named `token_id:N`, as if each request had asked for it. */
  tokensAsTokenIds: boolean;
  /** Streams end with a usage chunk, as if each request had asked for it. */
  forceIncludeUsage: boolean;
}

export const DEFAULT_SETTINGS: ServerSettings = {
  maxLogprobs: 20,
  responseRole: 'assistant',
  templateKwargs: {},
  tokensAsTokenIds: false,
  forceIncludeUsage: false,
};
