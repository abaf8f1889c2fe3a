import { totalmem } from 'node:os';
import { estimateFit, type FitInput } from '../../../ts/hub/fit';

const CONFIG = {
  model_type: 'llama',
  architectures: ['LlamaForCausalLM'],
  hidden_size: 1024,
  intermediate_size: 4096,
  num_hidden_layers: 10,
  num_attention_heads: 16,
  num_key_value_heads: 4,
  vocab_size: 32000,
  max_position_embeddings: 8192,
  torch_dtype: 'bfloat16',
  tie_word_embeddings: false,
};
/** Keys and values of 10 layers with 4 heads of 64 in bf16. */
const KV_BYTES_PER_TOKEN = 2 * 10 * 4 * 64 * 2;

function estimate(changes: Partial<FitInput> = {}) {
  return estimateFit({
    config: JSON.stringify(CONFIG),
    fileBytes: 2e9,
    format: 'safetensors',
    quantizations: [],
    options: {},
    availableBytes: 10e9,
    ...changes,
  })!;
}

test('adds the weights and the KV cache of one sequence', () => {
  expect(estimate()).toMatchObject({
    weightBytes: 2e9,
    kvCacheBytes: 4096 * KV_BYTES_PER_TOKEN,
    contextLength: 4096,
    verdict: 'fits',
    suggestion: null,
  });
  expect(estimate({ options: { maxModelLen: 100 } })).toMatchObject({ kvCacheBytes: 100 * KV_BYTES_PER_TOKEN });
});

test('counts the weights of a draft model', () => {
  const options = { draftBytes: 1e9 };
  expect(estimate({ options })).toMatchObject({ weightBytes: 3e9, verdict: 'fits' });
  expect(estimate({ options, availableBytes: 2.5e9 })).toMatchObject({
    weightBytes: 3e9,
    verdict: 'tight',
    suggestion: { quantization: 'int8' },
  });
});

test('counts the window of layers that have one', () => {
  const config = JSON.stringify({
    ...CONFIG,
    model_type: 'mistral',
    architectures: ['MistralForCausalLM'],
    sliding_window: 1024,
  });
  expect(estimate({ config })).toMatchObject({ kvCacheBytes: 1024 * KV_BYTES_PER_TOKEN });
  expect(estimate({ config, options: { maxModelLen: 100 } })).toMatchObject({ kvCacheBytes: 100 * KV_BYTES_PER_TOKEN });
});

test.each<[FitInput['options'], number]>([
  [{ dtype: 'f32' }, 4e9],
  [{ quantization: 'int8' }, (1e9 * 8.125) / 8],
  // The embedding and the LM head keep 8 bits.
  [{ quantization: 'int4' }, Math.ceil((65_536_000 * 8.125 + (1e9 - 65_536_000) * 4.25) / 8)],
])('%j changes the weights to %d bytes', (options, weightBytes) => {
  expect(estimate({ options }).weightBytes).toBe(weightBytes);
});

const NUM_WEIGHTS = 2 * 32000 * 1024 + 21 * 1024 + 10 * (2 * 1024 * 1024 + 2 * 256 * 1024 + 3 * 4096 * 1024);
const AWQ = { quant_method: 'awq', bits: 4, group_size: 128 };

test.each([
  // 4 bits, f16 and a zero point for each 128 columns in the file, and for each 64 in memory.
  [AWQ, {}, Math.ceil((1e9 * (4 + 24 / 64)) / (4 + 20 / 128))],
  [{ quant_method: 'gptq', bits: 2, group_size: 64 }, {}, Math.ceil((1e9 * (4 + 24 / 64)) / (2 + 18 / 64))],
  [{ quant_method: 'mxfp4' }, {}, 1e9],
  [{ quant_method: 'modelopt', quant_algo: 'NVFP4' }, {}, 1e9],
  [{ quant_method: 'fp8', weight_block_size: [128, 128] }, {}, 2 * NUM_WEIGHTS],
  [{ quant_method: 'fp8', weight_block_size: [128, 128] }, { dtype: 'f32' as const }, 4 * NUM_WEIGHTS],
  [{ ...AWQ, quant_method: 'gptq', desc_act: true }, {}, 2 * NUM_WEIGHTS],
  [AWQ, { quantization: 'int8' as const }, Math.ceil((NUM_WEIGHTS * 8.125) / 8)],
])('the weights of a checkpoint with %j and %j', (quantization, options, weightBytes) => {
  const config = { ...CONFIG, torch_dtype: 'float16', quantization_config: quantization };
  const fit = estimate({ config: JSON.stringify(config), fileBytes: 1e9, options: { maxModelLen: 1, ...options } });
  expect(fit.weightBytes).toBe(weightBytes);
  expect(fit.kvCacheBytes).toBe(KV_BYTES_PER_TOKEN);
});

describe('FP8 beside weights in 4 bits', () => {
  const quantization = {
    quant_method: 'modelopt',
    quant_algo: 'MIXED_PRECISION',
    quantized_layers: { a: { quant_algo: 'FP8' }, b: { quant_algo: 'NVFP4' } },
  };
  const config = JSON.stringify({ ...CONFIG, quantization_config: quantization });
  const embedded = 2 * 32000 * 1024;
  const linear = NUM_WEIGHTS - embedded;
  const bytesOf = (fileBytes: number, options: FitInput['options'] = {}) =>
    estimate({ config, fileBytes, options }).weightBytes;

  test.each([0, 0.25, 1])('is decoded, and the size of the file says that its share is %d', (share) => {
    const bytes = (fp8: number): number => Math.ceil(2 * embedded + linear * (share * fp8 + ((1 - share) * 4.5) / 8));
    expect(bytesOf(bytes(1))).toBeCloseTo(bytes(2), -1);
    expect(bytesOf(bytes(1), { dtype: 'f32' })).toBeCloseTo(bytes(4), -1);
  });

  test('is none or all in a file of another size', () => {
    expect(bytesOf(1)).toBe(Math.ceil(2 * embedded + (linear * 4.5) / 8));
    expect(bytesOf(9e9)).toBe(2 * NUM_WEIGHTS);
  });

  test('is counted as all beside weights in 8 bits', () => {
    const weights = { strategy: 'channel', num_bits: 8 };
    const groups = {
      group_0: { weights: { ...weights, type: 'float' }, format: 'float-quantized' },
      group_1: { weights: { ...weights, type: 'int' }, format: 'int-quantized' },
    };
    const mixed = { ...CONFIG, quantization_config: { quant_method: 'compressed-tensors', config_groups: groups } };
    expect(estimate({ config: JSON.stringify(mixed), fileBytes: 1e8 }).weightBytes).toBe(2 * NUM_WEIGHTS);
  });
});

test.each([
  [{ torch_dtype: 'float16' }, {}, 2],
  [{ hidden_size: 256 }, {}, 2],
  [{}, { computeDtype: 'f32' as const }, 2],
  [{}, { kvCacheDtype: 'f32' as const }, 2],
  [{ torch_dtype: 'float16' }, { kvCacheDtype: 'bf16' as const }, 1],
  [{}, { kvCacheDtype: 'int8' as const }, (64 + 4) / (64 * 2)],
])('the KV cache with %j and %j has the type that the CPU computes in', (config, options, factor) => {
  const changed = { ...CONFIG, head_dim: 64, ...config };
  const { kvCacheBytes } = estimate({ config: JSON.stringify(changed), options: { maxModelLen: 1, ...options } });
  expect(kvCacheBytes).toBe(KV_BYTES_PER_TOKEN * factor);
});

test('suggests the most exact quantization at load that fits', () => {
  expect(estimate({ availableBytes: 1.5e9 })).toMatchObject({ verdict: 'tight', suggestion: { quantization: 'int8' } });
  expect(estimate({ availableBytes: 0.8e9 })).toMatchObject({ suggestion: { quantization: 'int4' } });
  expect(estimate({ availableBytes: 0.1e9 })).toMatchObject({ suggestion: null });
});

test('suggests the largest GGUF quantization that fits', () => {
  const quantizations = [
    { name: 'Q8_0', bytes: 4e9 },
    { name: 'Q4_K_M', bytes: 2e9 },
    { name: 'Q2_K', bytes: 1e9 },
  ];
  const fit = estimate({ format: 'gguf', config: undefined, fileBytes: 4e9, quantizations, availableBytes: 3e9 });
  expect(fit).toMatchObject({
    weightBytes: 4.12e9,
    kvCacheBytes: 0,
    verdict: 'tight',
    suggestion: { variant: 'Q4_K_M' },
  });
});

test.each([
  ['Q2_K', 1.95e9],
  ['UD-Q2_K_XL', 1.95e9],
  ['Q3_K_M', 1.33e9],
  ['Q4_K_M', 1.03e9],
  ['Q2_0', 1.03e9],
  [null, 1.03e9],
])('a GGUF file of 1 GB in %s takes %d bytes in memory', (quantization, weightBytes) => {
  expect(estimate({ format: 'gguf', fileBytes: 1e9, quantization }).weightBytes).toBe(weightBytes);
});

test.each([
  ['BF16', 'int4', 1e9 * (4.25 / 16)],
  ['FP16', 'int8', 1e9 * (8.125 / 16)],
  ['Q4_0', 'int8', 1e9 * (8.125 / 4.5)],
  ['UD-Q4_K_XL', 'int4', 1e9 * (4.25 / 4.5)],
  [null, 'int4', 1.03e9],
] as const)('a GGUF file of 1 GB in %s that is quantized to %s at load', (name, quantization, weightBytes) => {
  const input = { format: 'gguf' as const, config: undefined, fileBytes: 1e9, quantization: name };
  expect(estimate({ ...input, options: { quantization } }).weightBytes).toBe(Math.ceil(weightBytes));
});

test('suggests a GGUF quantization that fits with the quantization at load', () => {
  const quantizations = [
    { name: 'Q8_0', bytes: 2e9 },
    { name: 'Q4_0', bytes: 1e9 },
  ];
  const input = { format: 'gguf' as const, config: undefined, fileBytes: 2e9, quantization: 'Q8_0', quantizations };
  const options = { quantization: 'int8' as const };
  expect(estimate({ ...input, availableBytes: 1.9e9 }).suggestion).toEqual({ variant: 'Q4_0' });
  expect(estimate({ ...input, options, availableBytes: 1.85e9 }).suggestion).toEqual({ variant: 'Q4_0' });
  expect(estimate({ ...input, options, availableBytes: 1.7e9 }).suggestion).toBeNull();
});

test('does not suggest a quantization that is larger in memory than what is free', () => {
  const quantizations = [
    { name: 'Q3_K_S', bytes: 1.5e9 },
    { name: 'Q2_K', bytes: 1.1e9 },
    { name: 'NVFP4', bytes: 1e9 },
  ];
  const input = { format: 'gguf' as const, config: undefined, fileBytes: 1.5e9, quantization: 'Q3_K_S', quantizations };
  expect(estimate({ ...input, availableBytes: 1.6e9 }).suggestion).toEqual({ variant: 'NVFP4' });
  expect(estimate({ ...input, availableBytes: 2e9 }).verdict).toBe('fits');
});

test('does not suggest a quantization that cannot be loaded', () => {
  const names = ['IQ3_M', 'UD-IQ2_XXS', 'IQ1_S', 'TQ1_0', 'Q4_0_4_4', 'Q2_0'];
  const quantizations = [...names.map((name) => ({ name, bytes: 1e9 })), { name: 'IQ4_XS', bytes: 0.9e9 }];
  const input = { format: 'gguf' as const, fileBytes: 4e9, quantizations, availableBytes: 2e9 };
  expect(estimate(input).suggestion).toEqual({ variant: 'IQ4_XS' });
  expect(estimate({ ...input, quantizations: quantizations.slice(0, -1) }).suggestion).toBeNull();
});

test('a model that is larger than the memory of the machine is too large', () => {
  expect(estimate({ fileBytes: 2 * totalmem(), availableBytes: 1e9 }).verdict).toBe('too_large');
});

test('a context that is asked for must fit into a quarter of the memory, as in the engine', () => {
  const options = { maxModelLen: 8192 };
  const kvBytes = 8192 * KV_BYTES_PER_TOKEN;
  expect(estimate({ options, availableBytes: 2e9 + 4 * kvBytes }).verdict).toBe('fits');
  expect(estimate({ options, availableBytes: 2e9 + 3 * kvBytes }).verdict).toBe('tight');
  expect(estimate({ options: { ...options, kvCacheBytes: kvBytes }, availableBytes: 2e9 + 2 * kvBytes }).verdict).toBe(
    'fits',
  );
});

test('a GPU and an unknown model are not estimated further', () => {
  expect(estimateFit({ ...({} as FitInput), options: { device: 'cuda' } })).toBeUndefined();
  expect(estimate({ config: '{"model_type": "other"}' })).toMatchObject({ weightBytes: 2e9, kvCacheBytes: 0 });
});
