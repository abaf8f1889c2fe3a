import type { PoolingUsage, Usage } from '../../../ts';

export interface WireUsage {
  prompt_tokens: number;
  total_tokens: number;
  completion_tokens: number;
  prompt_tokens_details?: { cached_tokens: number } | null;
  completion_tokens_details?: { reasoning_tokens: number };
}

/** The tokens of a request that generates no text, as those of one that does. */
export type PromptUsage = Pick<Usage, 'promptTokens' | 'completionTokens' | 'totalTokens' | 'cachedTokens'>;

export function poolingUsage({ promptTokens, cachedTokens }: PoolingUsage): PromptUsage {
  return { promptTokens, completionTokens: 0, totalTokens: promptTokens, cachedTokens };
}

/**
 * Returns the usage of a finished request. Cached tokens are null without a prefix cache. Reasoning tokens are present
 * only if the model marks its reasoning.
 */
export function wireUsage(
  { promptTokens, completionTokens, cachedTokens, reasoningTokens }: PromptUsage & Pick<Usage, 'reasoningTokens'>,
  hasPrefixCache: boolean,
): WireUsage {
  return {
    ...runningUsage(promptTokens, completionTokens),
    prompt_tokens_details: hasPrefixCache ? { cached_tokens: cachedTokens } : null,
    ...(reasoningTokens === undefined ? {} : { completion_tokens_details: { reasoning_tokens: reasoningTokens } }),
  };
}

/** Returns the usage of a stream in progress. The number of cached tokens is known only at the end. */
export function runningUsage(promptTokens: number, completionTokens: number): WireUsage {
  return {
    prompt_tokens: promptTokens,
    total_tokens: promptTokens + completionTokens,
    completion_tokens: completionTokens,
  };
}

/** Adds up the usage of several prompts in one request. */
export function addUsages(usages: readonly Usage[]): Usage {
  return usages.reduce((sum, usage) => ({
    ...sum,
    promptTokens: sum.promptTokens + usage.promptTokens,
    completionTokens: sum.completionTokens + usage.completionTokens,
    totalTokens: sum.totalTokens + usage.totalTokens,
    cachedTokens: sum.cachedTokens + usage.cachedTokens,
  }));
}
