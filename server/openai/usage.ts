import type { Usage } from '../../ts';

export interface WireUsage {
  prompt_tokens: number;
  total_tokens: number;
  completion_tokens: number;
  prompt_tokens_details?: { cached_tokens: number } | null;
  completion_tokens_details?: { reasoning_tokens: number };
}

/** Of a whole answer. Without a prefix cache there is nothing to say of it; reasoning is counted where it is told apart. */
export function wireUsage(
  { promptTokens, completionTokens, cachedTokens, reasoningTokens }: Usage,
  hasPrefixCache: boolean,
): WireUsage {
  return {
    ...runningUsage(promptTokens, completionTokens),
    prompt_tokens_details: hasPrefixCache ? { cached_tokens: cachedTokens } : null,
    ...(reasoningTokens === undefined ? {} : { completion_tokens_details: { reasoning_tokens: reasoningTokens } }),
  };
}

/** Of a stream under way: how much of the prompt was cached is known at its end. */
export function runningUsage(promptTokens: number, completionTokens: number): WireUsage {
  return {
    prompt_tokens: promptTokens,
    total_tokens: promptTokens + completionTokens,
    completion_tokens: completionTokens,
  };
}

/** Of several prompts in one request. */
export function addUsages(usages: readonly Usage[]): Usage {
  return usages.reduce((sum, usage) => ({
    ...sum,
    promptTokens: sum.promptTokens + usage.promptTokens,
    completionTokens: sum.completionTokens + usage.completionTokens,
    totalTokens: sum.totalTokens + usage.totalTokens,
    cachedTokens: sum.cachedTokens + usage.cachedTokens,
  }));
}
