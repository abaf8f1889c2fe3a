/** The request bodies as types, once they have met their schemas. */

export interface WireMessage {
  role: 'system' | 'developer' | 'user' | 'assistant' | 'tool' | 'function';
  content?: string | { type: string; text?: string }[];
  name?: string;
  tool_calls?: { id?: string; type?: string; function: WireFunctionCall }[];
  tool_call_id?: string;
  function_call?: WireFunctionCall;
  reasoning?: string;
  reasoning_content?: string;
}

export interface WireFunctionCall {
  name: string;
  arguments: string;
}

export interface WireFunction {
  name: string;
  description?: string;
  parameters?: Record<string, unknown>;
  strict?: boolean;
}

export interface WireTool {
  type: 'function';
  function: WireFunction;
}

export interface ConversationFields {
  messages: WireMessage[];
  tools?: WireTool[];
  chat_template_kwargs?: Record<string, unknown>;
  add_generation_prompt?: boolean;
  continue_final_message?: boolean;
}

export interface GenerationFields {
  model?: string;
  stream?: boolean;
  stream_options?: { include_usage?: boolean; continuous_usage_stats?: boolean };
  temperature?: number;
  top_p?: number;
  top_k?: number;
  min_p?: number;
  n?: number;
  best_of?: number;
  stop?: string | string[];
  stop_token_ids?: number[];
  seed?: number;
  presence_penalty?: number;
  frequency_penalty?: number;
  repetition_penalty?: number;
  repeat_penalty?: number;
  min_tokens?: number;
  ignore_eos?: boolean;
  include_stop_str_in_output?: boolean;
  skip_special_tokens?: boolean;
  spaces_between_special_tokens?: boolean;
  logit_bias?: Record<string, number>;
  allowed_token_ids?: number[];
  bad_words?: string[];
  truncate_prompt_tokens?: number;
  truncation_side?: 'left' | 'right';
  prompt_logprobs?: number;
  add_special_tokens?: boolean;
  return_token_ids?: boolean;
  return_tokens_as_token_ids?: boolean;
  response_format?: { type: string; json_schema?: Record<string, unknown>; schema?: unknown };
  structured_outputs?: Record<string, unknown>;
  guided_json?: unknown;
  guided_regex?: string;
  guided_choice?: string[];
  guided_grammar?: string;
  cache_salt?: string;
  request_id?: string;
}

export interface ChatCompletionRequest extends ConversationFields, GenerationFields {
  max_tokens?: number;
  max_completion_tokens?: number;
  logprobs?: boolean;
  top_logprobs?: number;
  tool_choice?: string | { type: string; function?: { name: string } };
  parallel_tool_calls?: boolean;
  functions?: WireFunction[];
  function_call?: string | { name: string };
  reasoning_effort?: string;
  thinking_token_budget?: number;
  include_reasoning?: boolean;
  separate_reasoning?: boolean;
  stream_reasoning?: boolean;
  reasoning_format?: 'auto' | 'none' | 'deepseek';
  return_prompt_text?: boolean;
}

export interface CompletionRequest extends GenerationFields {
  prompt: string | (string | number | number[])[];
  max_tokens?: number;
  echo?: boolean;
  logprobs?: number;
  suffix?: string;
}

export interface TokenizeRequest extends Partial<ConversationFields> {
  model?: string;
  prompt?: string;
  add_special_tokens?: boolean;
  return_token_strs?: boolean;
}

export interface DetokenizeRequest {
  model?: string;
  tokens: number[];
}
