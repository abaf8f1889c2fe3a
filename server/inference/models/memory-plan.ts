import { CapstanError, type EngineOptions, type ModelDescription } from '../../../ts';
import { formatBytes } from '../../base/bytes';
import { show } from '../../base/json/validate';

/** What one of several models takes of the memory for all. */
export interface MemoryPlan {
  /** Undefined: the engine chooses. */
  kvCacheBytes: number | undefined;
  neededBytes: number;
}

/** A model takes at most this part of what its weights leave of the memory for its KV cache, unless its size is set. */
const KV_CACHE_SHARE = 1 / 4;
/** Sequences that an engine on the CPU runs, unless their number is set. */
const DEFAULT_NUM_SEQS = 64;
/** An encoder has a KV cache for the tokens of about this many sequences. */
const ENCODER_SEQUENCES = 4;

/**
 * Plans the memory of a model on the CPU. A model on a GPU takes none of it.
 * @throws CapstanError `out_of_memory` if the model alone needs more than `memoryBytes`.
 */
export function planMemory(
  { modelName, weightBytes, sequenceBytes, isCausal }: Omit<ModelDescription, 'availableBytes'>,
  { device = 'auto', kvCacheBytes, maxNumSeqs = DEFAULT_NUM_SEQS, maxModelLen }: EngineOptions,
  memoryBytes: number,
): MemoryPlan {
  if (device.startsWith('cuda')) return { kvCacheBytes, neededBytes: 0 };
  const chosen = kvCacheBytes ?? (isCausal ? defaultBytes() : undefined);
  const neededBytes = Math.ceil(weightBytes + (chosen ?? ENCODER_SEQUENCES * sequenceBytes));
  if (weightBytes < memoryBytes && neededBytes <= memoryBytes) return { kvCacheBytes: chosen, neededBytes };
  throw new CapstanError(
    'out_of_memory',
    `The model ${show(modelName)} needs about ${formatBytes(Math.ceil(weightBytes))} for its weights and ${formatBytes(neededBytes - Math.ceil(weightBytes))} for its KV cache, and --models-memory allows ${formatBytes(memoryBytes)}. Raise it, quantize the model, or lower its max-model-len or kv-cache-memory`,
  );

  function defaultBytes(): number {
    const most = Math.max(0, memoryBytes - weightBytes);
    // A requested context length takes precedence. Blocks are not always full.
    const least = maxModelLen === undefined ? 0 : 2 * sequenceBytes;
    return Math.max(1, Math.ceil(Math.max(least, Math.min(sequenceBytes * maxNumSeqs, most * KV_CACHE_SHARE))));
  }
}
