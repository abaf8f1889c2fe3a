import { JsonReader } from '../json-file';
import type { GgufHeader } from './header';
import { findArchitecture } from './spec';
import { nativeTensorType } from './tensor-types';

/**
 * Returns the types of the tensors in a file that cannot be loaded, such as `IQ3_S`.
 * @param metadata Of the first part of the model.
 * @throws CapstanError `unsupported_model` for an architecture that is not known.
 */
export function unloadableTypes({ tensors }: GgufHeader, metadata: GgufHeader['metadata'], name: string): string[] {
  const reader = new JsonReader(metadata, name);
  const { architecture } = findArchitecture(reader);
  const count = (key: string): number => reader.nonNegativeInt(`${architecture.name}.${key}`, 0);
  // Layers for the prediction of several tokens come last, and need not be loaded.
  const numPredicting = count('nextn_predict_layers');
  const firstOptional = numPredicting === 0 ? Infinity : count('block_count') - numPredicting;
  const types = [...tensors].flatMap(([tensor, { dtype }]) => {
    const layer = Number(/^blk\.(\d+)\./.exec(tensor)?.[1] ?? -1);
    return layer >= firstOptional || nativeTensorType(dtype) !== undefined ? [] : [dtype];
  });
  return [...new Set(types)];
}
