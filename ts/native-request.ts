import type { NativeGrammar, NativeRequest, NativeThinkingBudget } from './addon-types';
import type { CallContext } from './call-context';
import { checkNumber } from './checks';
import type { ChoiceReaderOptions } from './choice-reader';
import { CapstanError } from './errors';
import type { GrammarPlan } from './grammar-cache';
import { resolveSampling, type SamplingDefaults, type SamplingParams, truncatePrompt } from './sampling';
import type { TokenTable } from './text/token-table';

/** A call that can be submitted. */
export interface PreparedCall {
  promptTokenIds: Int32Array;
  sampling: SamplingParams;
  readerOptions: ChoiceReaderOptions;
  grammar: NativeGrammar | null;
  badWords: Int32Array[];
  thinkingBudget: NativeThinkingBudget | null;
}

/** Lowers `maxTokens` to what `onPrompt` returns. */
export function limitOutput(
  { promptTokenIds, numChoices, sampling }: Pick<NativeRequest, 'promptTokenIds' | 'numChoices' | 'sampling'>,
  onPrompt: NonNullable<CallContext['onPrompt']>,
): void {
  const { maxTokens } = sampling;
  const limit = onPrompt({ promptTokens: promptTokenIds.length, numChoices, maxTokens });
  if (limit === undefined || limit >= maxTokens) return;
  sampling.maxTokens = checkNumber('onPrompt', limit, { min: 1, max: maxTokens, isInteger: true });
  sampling.minTokens = Math.min(sampling.minTokens, limit);
}

/** A call whose grammar, bad words and reasoning markers are not compiled or tokenized yet. */
export interface UnfinishedCall {
  sampling: SamplingParams;
  readerOptions: ChoiceReaderOptions;
  plan: GrammarPlan | undefined;
  thinkingBudget: Pick<NativeThinkingBudget, 'budget' | 'isInside'> | undefined;
}

/** @throws CapstanError `invalid_argument` or `context_length_exceeded`. */
export function toNativeRequest(
  { promptTokenIds: ids, sampling: params, grammar, badWords, thinkingBudget }: PreparedCall,
  { cacheSalt, priority }: { cacheSalt: string; priority: number },
  {
    vocabSize,
    maxModelLen,
    samplingDefaults,
  }: { vocabSize: number; maxModelLen: number; samplingDefaults: SamplingDefaults },
  tokens: TokenTable,
): Omit<NativeRequest, 'adapterId'> {
  const promptTokenIds = truncatePrompt(ids, params, maxModelLen);
  if (promptTokenIds.length === 0) throw CapstanError.argument('prompt', 'at least one token', 0);
  const limits = { vocabSize, maxModelLen, numPromptTokens: promptTokenIds.length };
  const { sampling, numChoices } = resolveSampling(params, samplingDefaults, limits);
  return {
    promptTokenIds,
    numChoices,
    sampling: { ...sampling, badWords, thinkingBudget },
    cacheSalt,
    priority,
    stripLeadingSpace: tokens.startsText(promptTokenIds, sampling.skipSpecialTokens),
    grammar,
  };
}
