import type { ModelInfo } from '../../ts';
import { formatBytes } from './bytes';

/** Returns the memory that a model needs and has, and what would fit instead. Undefined if it fits, or on a GPU. */
export function fitWarning({ repository, fit }: Pick<ModelInfo, 'repository' | 'fit'>): string | undefined {
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

/** Returns which files are downloaded without a check of their content. Undefined if all are checked. */
export function uncheckedWarning({ uncheckedFiles: files }: Pick<ModelInfo, 'uncheckedFiles'>): string | undefined {
  if (files.length === 0) return undefined;
  const shown = files.slice(0, MAX_SHOWN).join(', ') + (files.length > MAX_SHOWN ? ', …' : '');
  return `the mirror gives no hashes, so the content of these files is not checked, only their size: ${shown}`;
}

const MAX_SHOWN = 5;

function suggestionText(repository: string, suggestion: NonNullable<ModelInfo['fit']>['suggestion']): string {
  if (suggestion === null) return 'Lower --max-model-len, end other programs, or choose a smaller model';
  return 'variant' in suggestion
    ? `This would fit: ${repository}:${suggestion.variant}`
    : `This would fit: --quantization ${suggestion.quantization}`;
}
