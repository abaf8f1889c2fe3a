import type { NativeTensor } from '../../addon-types';

/** A type of tensor elements: `size` elements are one block of `bytes` bytes. */
interface TensorType {
  id: number;
  name: string;
  size: number;
  bytes: number;
  /** The addon's name; undefined if the addon cannot load the type. */
  native?: NativeTensor['dtype'];
}

/** The types of `enum ggml_type` (ggml.h). */
const TENSOR_TYPES: readonly TensorType[] = [
  { id: 0, name: 'F32', size: 1, bytes: 4, native: 'f32' },
  { id: 1, name: 'F16', size: 1, bytes: 2, native: 'f16' },
  { id: 2, name: 'Q4_0', size: 32, bytes: 18, native: 'q4_0' },
  { id: 3, name: 'Q4_1', size: 32, bytes: 20, native: 'q4_1' },
  { id: 6, name: 'Q5_0', size: 32, bytes: 22, native: 'q5_0' },
  { id: 7, name: 'Q5_1', size: 32, bytes: 24, native: 'q5_1' },
  { id: 8, name: 'Q8_0', size: 32, bytes: 34, native: 'q8_0' },
  { id: 9, name: 'Q8_1', size: 32, bytes: 36 },
  { id: 10, name: 'Q2_K', size: 256, bytes: 84, native: 'q2_k' },
  { id: 11, name: 'Q3_K', size: 256, bytes: 110, native: 'q3_k' },
  { id: 12, name: 'Q4_K', size: 256, bytes: 144, native: 'q4_k' },
  { id: 13, name: 'Q5_K', size: 256, bytes: 176, native: 'q5_k' },
  { id: 14, name: 'Q6_K', size: 256, bytes: 210, native: 'q6_k' },
  { id: 15, name: 'Q8_K', size: 256, bytes: 292 },
  { id: 16, name: 'IQ2_XXS', size: 256, bytes: 66 },
  { id: 17, name: 'IQ2_XS', size: 256, bytes: 74 },
  { id: 18, name: 'IQ3_XXS', size: 256, bytes: 98 },
  { id: 19, name: 'IQ1_S', size: 256, bytes: 50 },
  { id: 20, name: 'IQ4_NL', size: 32, bytes: 18, native: 'iq4_nl' },
  { id: 21, name: 'IQ3_S', size: 256, bytes: 110 },
  { id: 22, name: 'IQ2_S', size: 256, bytes: 82 },
  { id: 23, name: 'IQ4_XS', size: 256, bytes: 136, native: 'iq4_xs' },
  { id: 24, name: 'I8', size: 1, bytes: 1 },
  { id: 25, name: 'I16', size: 1, bytes: 2 },
  { id: 26, name: 'I32', size: 1, bytes: 4 },
  { id: 27, name: 'I64', size: 1, bytes: 8 },
  { id: 28, name: 'F64', size: 1, bytes: 8 },
  { id: 29, name: 'IQ1_M', size: 256, bytes: 56 },
  { id: 30, name: 'BF16', size: 1, bytes: 2, native: 'bf16' },
  { id: 34, name: 'TQ1_0', size: 256, bytes: 54 },
  { id: 35, name: 'TQ2_0', size: 256, bytes: 66 },
  { id: 39, name: 'MXFP4', size: 32, bytes: 17, native: 'mxfp4' },
  { id: 40, name: 'NVFP4', size: 64, bytes: 36, native: 'nvfp4' },
  { id: 41, name: 'Q1_0', size: 128, bytes: 18 },
  { id: 42, name: 'Q2_0', size: 64, bytes: 18 },
];

/** Types that ggml has removed, by their number. */
export const REMOVED_TYPES: Readonly<Record<number, string>> = {
  4: 'Q4_2',
  5: 'Q4_3',
  31: 'Q4_0_4_4',
  32: 'Q4_0_4_8',
  33: 'Q4_0_8_8',
  36: 'IQ4_NL_4_4',
  37: 'IQ4_NL_4_8',
  38: 'IQ4_NL_8_8',
};

const BY_ID = new Map(TENSOR_TYPES.map((type) => [type.id, type]));
const BY_NAME = new Map(TENSOR_TYPES.map((type) => [type.name, type]));

/** Returns undefined for an unknown number. */
export function tensorType(id: number): TensorType | undefined {
  return BY_ID.get(id);
}

/** Returns the addon's name of a type, or undefined if the addon cannot load it. */
export function nativeTensorType(name: string): NativeTensor['dtype'] | undefined {
  return BY_NAME.get(name)?.native;
}

/** The types that can be loaded. */
export const SUPPORTED_TENSOR_TYPES = TENSOR_TYPES.filter(({ native }) => native !== undefined);

/** Names of quantizations whose files have tensors of other types. */
const REFUSED_QUANTIZATIONS = /^(?:UD-)?(?:IQ[1-3]_|TQ[12]_0|Q[12]_0|IQ4_NL_[48]_|Q4_0_[48]_)/i;

/** Returns whether the files of a quantization, such as `Q4_K_M`, can be loaded. The name alone decides. */
export function canLoadQuantization(name: string): boolean {
  return !REFUSED_QUANTIZATIONS.test(name);
}
