import { stat } from 'node:fs/promises';
import { basename } from 'node:path';
import { type FitOptions, kvBytes, type Shape, weightsOf } from './hub/fit';
import type { ModelWeights } from './model/model';

/** Memory that a model takes on the CPU. Estimates. */
export interface ModelMemory {
  /** Of the weights. */
  weightBytes: number;
  /** Of the KV cache for one sequence. */
  sequenceBytes: number;
}

export async function memoryOf(
  { config, checkpoint }: ModelWeights,
  options: FitOptions,
  maxModelLen: number,
): Promise<ModelMemory> {
  const { spec, quantization } = config;
  const shape: Shape = { spec, stored: checkpoint.dtype, numWeights: checkpoint.numParameters, quantization };
  const sizes = await Promise.all(checkpoint.files.map(async (file) => (await stat(file)).size));
  const isGguf = /\.gguf$/i.test(checkpoint.files[0] ?? '');
  const input = {
    format: isGguf ? ('gguf' as const) : ('safetensors' as const),
    fileBytes: sizes.reduce((sum, size) => sum + size, 0),
    quantization: isGguf ? (/\bI?Q\d\w*/i.exec(basename(checkpoint.files[0]))?.[0] ?? null) : null,
    options,
  };
  return {
    weightBytes: weightsOf(input, shape, options.quantization ?? 'none'),
    sequenceBytes: kvBytes(shape, options, maxModelLen),
  };
}
