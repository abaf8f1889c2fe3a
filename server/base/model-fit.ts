import type { ModelInfo } from '../../ts';
import { formatBytes } from './bytes';

/** Returns the memory that a model needs and has, and what would fit instead. Undefined if it fits, or on a GPU. */
export function fitWarning({ repository, fit }: ModelInfo): string | undefined {
  if (fit === null || fit.verdict === 'fits') return undefined;
  const { verdict, weightBytes, kvCacheBytes, contextLength, availableBytes, machineBytes, suggestion } = fit;
  const needs = `${repository} needs about ${formatBytes(weightBytes)} of memory for the weights`;
  const cache = kvCacheBytes > 0 ? ` and ${formatBytes(kvCacheBytes)} for the KV cache of ${contextLength} tokens` : '';
  const has =
    verdict === 'too_large'
      ? `This machine has ${formatBytes(machineBytes)}`
      : `${formatBytes(availableBytes)} of ${formatBytes(machineBytes)} are free`;
  return `${needs}${cache}. ${has}. ${suggestionText(repository, suggestion)}`;
}

function suggestionText(repository: string, suggestion: NonNullable<ModelInfo['fit']>['suggestion']): string {
  if (suggestion === null) return 'Lower --max-model-len, end other programs, or choose a smaller model';
  return 'variant' in suggestion
    ? `This would fit: ${repository}:${suggestion.variant}`
    : `This would fit: --quantization ${suggestion.quantization}`;
}
