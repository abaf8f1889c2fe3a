import { JsonReader } from '../../../ts/model/json-file';
import { type QuantState, readQuantStates } from '../../../ts/model/bitsandbytes';
import { QUANTIZATION_METHODS, readQuantization, type WeightScheme } from '../../../ts/model/quantization';
import { type FoundTensor, resolveQuantized } from '../../../ts/model/quantized-tensor';

const read = (quantization: Record<string, unknown>) =>
  readQuantization(new JsonReader({ quantization_config: quantization }, 'config.json'));
const shapesOf = (schemes: readonly WeightScheme[] | undefined) =>
  schemes?.map(({ layout, bits, groupRows, groupCols }) => [layout, bits, groupRows, groupCols]);
const PACKED = { num_bits: 4, type: 'int', strategy: 'group', group_size: 128, symmetric: true };
const compressed = (format: string, ...weights: Record<string, unknown>[]) => ({
  quant_method: 'compressed-tensors',
  format,
  config_groups: Object.fromEntries(weights.map((row, i) => [`group_${i}`, { targets: ['Linear'], weights: row }])),
});
const INT8 = { num_bits: 8, type: 'int', strategy: 'channel' };
const FP8 = { ...INT8, type: 'float' };
const NVFP4 = { num_bits: 4, type: 'float', strategy: 'tensor_group', group_size: 16, symmetric: true };
const BITS4 = { quant_method: 'bitsandbytes', load_in_4bit: true, bnb_4bit_quant_type: 'nf4' };

test('a config without quantization_config is not quantized', () => {
  expect(readQuantization(new JsonReader({}, 'config.json'))).toBeUndefined();
  expect(readQuantization(new JsonReader({ quantization_config: null }, 'config.json'))).toBeUndefined();
});

test('a checkpoint that quantizes the KV cache only has weights in 16 bits', () => {
  const kvOnly = { quant_method: 'compressed-tensors', format: 'dense', kv_cache_scheme: FP8 };
  expect(read({ ...kvOnly, config_groups: {} })).toBeUndefined();
  expect(read({ ...kvOnly, config_groups: { group_0: { targets: ['Linear'], weights: null } } })).toBeUndefined();
});

test.each<[string, Record<string, unknown>, string, unknown[][], boolean]>([
  [
    'int-quantized codes of 4 bits, which are stored in bytes',
    compressed('int-quantized', { ...INT8, num_bits: 4 }),
    'compressed-tensors, 8 bits',
    [['int8', 8, 1, Infinity]],
    false,
  ],
  ['awq', { quant_method: 'awq', bits: 4, group_size: 64 }, 'AWQ, 4 bits', [['awq', 4, 1, 64]], false],
  [
    'awq with other keys',
    { quant_method: 'awq', w_bit: 4, q_group_size: -1, version: 'GEMM' },
    'AWQ, 4 bits',
    [['awq', 4, 1, Infinity]],
    false,
  ],
  ['gptq', { quant_method: 'gptq', bits: 8, group_size: 128 }, 'GPTQ, 8 bits', [['gptq', 8, 1, 128]], false],
  [
    'gptq_v2',
    { quant_method: 'gptq', bits: 4, group_size: -1, desc_act: true, checkpoint_format: 'gptq_v2' },
    'GPTQ, 4 bits',
    [['gptq_v2', 4, 1, Infinity]],
    true,
  ],
  [
    'gptq with other bits for some layers',
    {
      quant_method: 'gptq',
      bits: 4,
      group_size: 128,
      dynamic: { '-:lm_head': {}, '+:.*down.*': { bits: 8, group_size: 32 } },
    },
    'GPTQ, 4 bits',
    [
      ['gptq', 4, 1, 128],
      ['gptq', 8, 1, 32],
    ],
    false,
  ],
  ['pack-quantized', compressed('pack-quantized', PACKED), 'compressed-tensors, 4 bits', [['rows', 4, 1, 128]], false],
  [
    'two groups',
    compressed('pack-quantized', PACKED, { ...INT8, strategy: 'tensor' }),
    'compressed-tensors, 4 bits and 8 bits',
    [
      ['rows', 4, 1, 128],
      ['rows', 8, Infinity, Infinity],
    ],
    false,
  ],
  ['int-quantized', compressed('int-quantized', INT8), 'compressed-tensors, 8 bits', [['int8', 8, 1, Infinity]], false],
  [
    'float-quantized',
    compressed('float-quantized', { ...FP8, strategy: 'block', block_structure: [128, 64] }),
    'compressed-tensors, FP8',
    [['fp8', 8, 128, 64]],
    true,
  ],
  ['naive-quantized', compressed('naive-quantized', FP8), 'compressed-tensors, FP8', [['fp8', 8, 1, Infinity]], true],
  [
    'mxfp8-quantized',
    compressed('mxfp8-quantized', { ...FP8, strategy: 'group', group_size: 32 }),
    'compressed-tensors, FP8',
    [['fp8', 8, 1, 32]],
    true,
  ],
  [
    'mxfp4-pack-quantized',
    compressed('mxfp4-pack-quantized', { ...PACKED, type: 'float', group_size: 32 }),
    'compressed-tensors, 4 bits',
    [['fp4', 4, 1, 32]],
    false,
  ],
  [
    'a format for each group',
    {
      ...compressed('mixed-precision'),
      config_groups: {
        a: { format: 'int-quantized', weights: INT8 },
        b: { format: 'pack-quantized', weights: PACKED },
        c: { targets: ['Attention'] },
      },
    },
    'compressed-tensors, 8 bits and 4 bits',
    [
      ['int8', 8, 1, Infinity],
      ['rows', 4, 1, 128],
    ],
    false,
  ],
  [
    'nvfp4-pack-quantized',
    compressed('nvfp4-pack-quantized', NVFP4),
    'compressed-tensors, NVFP4',
    [['fp4_e4m3', 4, 1, 16]],
    false,
  ],
  [
    'NVFP4 beside FP8',
    {
      ...compressed('mixed-precision'),
      config_groups: {
        a: { format: 'float-quantized', weights: FP8 },
        b: { format: 'nvfp4-pack-quantized', weights: NVFP4 },
      },
    },
    'compressed-tensors, FP8 and NVFP4',
    [
      ['fp8', 8, 1, Infinity],
      ['fp4_e4m3', 4, 1, 16],
    ],
    false,
  ],
  [
    "ModelOpt's NVFP4",
    { quant_method: 'modelopt', quant_algo: 'NVFP4', config_groups: {}, group_size: 16, ignore: ['lm_head'] },
    'NVFP4',
    [['fp4_e4m3', 4, 1, 16]],
    false,
  ],
  ...['W4A16_NVFP4', 'nvfp4_awq', 'W4A8_NVFP4_FP8'].map(
    (algorithm): [string, Record<string, unknown>, string, unknown[][], boolean] => [
      algorithm,
      { quant_method: 'modelopt', quant_algo: algorithm },
      'NVFP4',
      [['fp4_e4m3', 4, 1, 16]],
      false,
    ],
  ),
  ['modelopt_fp4', { quant_method: 'modelopt_fp4' }, 'NVFP4', [['fp4_e4m3', 4, 1, 16]], false],
  [
    'ModelOpt with several algorithms',
    {
      quant_method: 'modelopt',
      quant_algo: 'MIXED_PRECISION',
      quantized_layers: {
        'model.layers.0.self_attn.q_proj': { quant_algo: 'FP8' },
        'model.layers.0.mlp.up_proj': { quant_algo: 'NVFP4', group_size: 16 },
        'model.layers.1.mlp.up_proj': { quant_algo: 'W4A16_NVFP4', group_size: 16 },
      },
    },
    'ModelOpt, FP8 and NVFP4',
    [
      ['fp8', 8, Infinity, Infinity],
      ['fp8', 8, 1, Infinity],
      ['fp4_e4m3', 4, 1, 16],
    ],
    false,
  ],
  ['fp8 blocks', { quant_method: 'fp8', weight_block_size: [128, 128] }, 'FP8', [['fp8', 8, 128, 128]], true],
  [
    'fp8',
    { quant_method: 'fp8' },
    'FP8',
    [
      ['fp8', 8, Infinity, Infinity],
      ['fp8', 8, 1, Infinity],
    ],
    true,
  ],
  [
    "ModelOpt's FP8",
    { quant_method: 'modelopt', quant_algo: 'FP8', kv_cache_scheme: { num_bits: 8 } },
    'FP8',
    [
      ['fp8', 8, Infinity, Infinity],
      ['fp8', 8, 1, Infinity],
    ],
    true,
  ],
  [
    'AutoRound, with other bits for some layers',
    {
      quant_method: 'auto-round',
      bits: 4,
      group_size: 128,
      packing_format: 'auto_round:auto_gptq',
      extra_config: {
        'model.layers.0.mlp.gate': { bits: 16, data_type: 'float' },
        'model.layers.0.mlp.down_proj': { bits: 8, group_size: -1 },
        'model.layers.1.mlp.down_proj': { bits: 8, group_size: -1 },
      },
    },
    'AutoRound, 4 bits',
    [
      ['gptq', 4, 1, 128],
      ['gptq', 8, 1, Infinity],
    ],
    false,
  ],
  [
    'AutoRound packed as AWQ',
    { quant_method: 'auto-round', bits: 4, group_size: 32, packing_format: 'auto_round:auto_awq' },
    'AutoRound, 4 bits',
    [['awq', 4, 1, 32]],
    false,
  ],
  [
    'AutoRound, whose zero points are stored as they are',
    { quant_method: 'auto-round', bits: 2, group_size: 32, packing_format: 'auto_round' },
    'AutoRound, 2 bits',
    [['gptq_v2', 2, 1, 32]],
    false,
  ],
  ...(
    [
      ['auto_round:gptq:exllamav2', 'gptq'],
      ['gptq:cuda', 'gptq'],
      ['auto_gptq:tritonv2', 'gptq'],
      ['auto_round:exllamav2', 'gptq_v2'],
      ['auto_round:auto_awq:gemm', 'awq'],
      ['auto', 'gptq'],
    ] as const
  ).map(([backend, layout]): [string, Record<string, unknown>, string, unknown[][], boolean] => [
    `AutoRound up to 0.4, with the backend ${backend}`,
    { quant_method: 'intel/auto-round', bits: 4, group_size: 128, backend },
    'AutoRound, 4 bits',
    [[layout, 4, 1, 128]],
    false,
  ]),
  ['mxfp4', { quant_method: 'mxfp4' }, 'MXFP4', [['fp4', 4, 1, 32]], false],
  ['bitsandbytes in 4 bits', BITS4, 'bitsandbytes, NF4', [['table4', 4, 1, 64]], true],
  [
    'bitsandbytes of 2023, which names no method',
    { load_in_8bit: true, llm_int8_threshold: 6 },
    'bitsandbytes, 8 bits',
    [['int8_max', 8, 1, Infinity]],
    false,
  ],
  [
    'bitsandbytes in 8 bits',
    { quant_method: 'bitsandbytes', load_in_8bit: true, llm_int8_threshold: 6 },
    'bitsandbytes, 8 bits',
    [['int8_max', 8, 1, Infinity]],
    false,
  ],
])('reads %s', (_name, config, title, shapes, isDecoded) => {
  const quantization = read(config);
  expect(quantization).toMatchObject({ title, isDecoded });
  expect(shapesOf(quantization?.schemes)).toEqual(shapes);
});

test.each(['hqq', 'aqlm', 'exl2', 'torchao', 'quanto'])(
  '%s is refused with the methods that work and what to do',
  (name) => {
    const methods = QUANTIZATION_METHODS.map((method) => method.name).join(', ');
    const message =
      `config.json: quantization_config: quant_method: expected one of ${methods}, got ${name}. Choose another ` +
      'quantization of the model, such as a GGUF file, or its 16-bit files with the option quantization (--quantization)';
    expect(() => read({ quant_method: name })).toThrow(expect.objectContaining({ code: 'unsupported_model', message }));
  },
);

test.each<[string, Record<string, unknown>, RegExp]>([
  ['no method', { bits: 4 }, /quant_method: expected one of .* got an unnamed method/],
  ['AWQ in 8 bits', { quant_method: 'awq', bits: 8 }, /bits: expected 4, got 8/],
  ['AWQ for GEMV', { quant_method: 'awq', bits: 4, version: 'gemv' }, /version: expected gemm, got gemv/],
  ['llm-awq', { quant_method: 'awq', bits: 4, backend: 'llm-awq' }, /backend: expected autoawq, got llm-awq/],
  ['GPTQ in 5 bits', { quant_method: 'gptq', bits: 5 }, /bits: expected 2, 3, 4, 8, got 5/],
  [
    'Marlin of AutoGPTQ',
    { quant_method: 'gptq', bits: 4, is_marlin_format: true },
    /checkpoint_format: expected gptq or gptq_v2, got marlin/,
  ],
  [
    'Marlin',
    { quant_method: 'gptq', bits: 4, checkpoint_format: 'marlin' },
    /checkpoint_format: expected gptq or gptq_v2, got marlin/,
  ],
  [
    'another word size',
    { quant_method: 'gptq', bits: 4, pack_dtype: 'int16' },
    /pack_dtype: expected int32, got int16/,
  ],
  [
    'NVFP4 in other groups',
    compressed('nvfp4-pack-quantized', { ...NVFP4, group_size: 32 }),
    /group_size: expected 16, got 32/,
  ],
  ['another NVFP4', { quant_method: 'nvfp4' }, /quant_method: expected one of awq, .* got nvfp4/],
  [
    "ModelOpt's NVFP4 with low-rank residuals",
    { quant_method: 'modelopt', quant_algo: 'NVFP4_SVD' },
    /quant_algo: expected FP8, NVFP4, W4A16_NVFP4, NVFP4_AWQ, W4A8_NVFP4_FP8, got NVFP4_SVD/,
  ],
  [
    "ModelOpt's NVFP4 in other groups",
    { quant_method: 'modelopt', quant_algo: 'NVFP4', group_size: 32 },
    /group_size: expected 16, got 32/,
  ],
  [
    'an algorithm of one layer',
    {
      quant_method: 'modelopt',
      quant_algo: 'MIXED_PRECISION',
      quantized_layers: { a: { quant_algo: 'FP8' }, b: { quant_algo: 'W4A16_AWQ' } },
    },
    /quantized_layers: b: quant_algo: expected FP8, .* got W4A16_AWQ/,
  ],
  [
    'a packing of AutoRound',
    { quant_method: 'auto-round', bits: 4, packing_format: 'auto_round:llm_compressor' },
    /packing_format: expected auto_round, .* got auto_round:llm_compressor/,
  ],
  [
    'AutoRound in floats',
    { quant_method: 'auto-round', bits: 4, data_type: 'mx_fp' },
    /data_type: expected int, got mx_fp/,
  ],
  [
    '2:4 sparsity',
    { ...compressed('pack-quantized', PACKED), sparsity_config: { format: 'sparse-24-bitmask' } },
    /sparsity_config: format: expected dense/,
  ],
  [
    'transforms',
    { ...compressed('pack-quantized', PACKED), transform_config: { config_groups: { group_0: {} } } },
    /transform_config: expected no transforms/,
  ],
  [
    '4-bit floats',
    compressed('float-quantized', { ...FP8, num_bits: 4 }),
    /num_bits: expected 8 for float-quantized, got 4/,
  ],
  ['FP8 in e5m2', { quant_method: 'fp8', fmt: 'e5m2' }, /fmt: expected e4m3, got e5m2/],
])('%s is unsupported', (_name, config, message) => {
  expect(() => read(config)).toThrow(
    expect.objectContaining({ code: 'unsupported_model', message: expect.stringMatching(message) }),
  );
});

test('compressed-tensors without transforms may say so', () => {
  const config = compressed('pack-quantized', PACKED);
  for (const transform_config of [null, {}, { config_groups: {} }])
    expect(read({ ...config, transform_config })).toEqual(read(config));
});

test.each<[Record<string, unknown>, RegExp]>([
  [{ quant_method: 'awq', bits: '4' }, /bits: expected an integer/],
  [{ quant_method: 'awq', group_size: 0 }, /group_size: expected an integer from 1/],
  [{ quant_method: 'gptq' }, /bits: expected an integer.* missing/],
  [{ quant_method: 'fp8', weight_block_size: [128] }, /weight_block_size: expected the rows and the columns/],
  [{ quant_method: 'fp8', weight_block_size: [0, 128] }, /weight_block_size: expected the rows and the columns/],
  [{ quant_method: 'compressed-tensors' }, /config_groups: expected at least one group/],
  [{ quant_method: 'compressed-tensors', config_groups: { W8A8: ['Linear'] } }, /W8A8: expected an object/],
  [{ quant_method: 'bitsandbytes' }, /load_in_4bit: expected true, or load_in_8bit true, got false/],
  [{ quant_method: 7 }, /quant_method: expected a string/],
  [{ quant_method: 'modelopt', quant_algo: 'MIXED_PRECISION' }, /quantized_layers: expected at least one layer/],
  [
    { quant_method: 'modelopt', quant_algo: 'MIXED_PRECISION', quantized_layers: { a: {} } },
    /quantized_layers: a: quant_algo: expected a string/,
  ],
])('%j is invalid', (config, message) => {
  expect(() => read(config)).toThrow(
    expect.objectContaining({ code: 'invalid_model', message: expect.stringMatching(message) }),
  );
});

test.each([
  { quantization: { group_size: 64, bits: 4 } },
  { quantization: { group_size: 64, bits: 4 }, quantization_config: { group_size: 64, bits: 4 } },
])('a checkpoint of MLX is refused by name: %j', (config) => {
  expect(() => readQuantization(new JsonReader(config, 'config.json'))).toThrow(
    expect.objectContaining({
      code: 'unsupported_model',
      message: expect.stringMatching(/quant_method: expected one of .* got MLX\. Choose another quantization/),
    }),
  );
});

test.each(['none', false, null])('a config whose field `quantization` is %j is not quantized', (quantization) => {
  expect(readQuantization(new JsonReader({ quantization }, 'config.json'))).toBeUndefined();
});

const LAYER = 'model.layers.0.mlp.up_proj';

/** Returns a layer of 48 rows and 160 columns as `resolveQuantized` finds it. */
function resolve(
  config: Record<string, unknown>,
  tensors: Record<string, [dtype: string, ...shape: number[]]>,
  state?: QuantState,
) {
  const found = new Map<string, FoundTensor>();
  for (const [i, [name, [dtype, ...shape]]] of Object.entries(tensors).entries())
    found.set(`${LAYER}.${name}`, { dtype, shape, offset: 100 * (i + 1), numBytes: 1, file: i % 2, state });
  const required = { name: 'layers.0.up_proj.weight', checkpointName: `${LAYER}.weight`, shape: [48, 160] };
  return resolveQuantized(required, read(config)!.schemes, found, ['/model/a.safetensors', '/model/b.safetensors']);
}

const AWQ = { quant_method: 'awq', bits: 4, group_size: 64 };
const AWQ_TENSORS: Parameters<typeof resolve>[1] = {
  qweight: ['I32', 160, 6],
  qzeros: ['I32', 3, 6],
  scales: ['F16', 3, 48],
};

test('finds codes, scales and zero points in several files', () => {
  expect(resolve(AWQ, AWQ_TENSORS)).toEqual({
    name: 'layers.0.up_proj.weight',
    file: 0,
    offset: 100,
    dtype: 'awq',
    shape: [48, 160],
    groups: {
      bits: 4,
      groupRows: 1,
      groupCols: 64,
      scales: { file: 0, offset: 300, dtype: 'f16' },
      zeros: { file: 1, offset: 200, dtype: 'i32' },
    },
  });
});

test('a layer in 16 bits is not quantized, whatever the lists of config.json say', () => {
  expect(resolve(AWQ, { weight: ['F16', 48, 160] })).toBeUndefined();
  expect(resolve({ quant_method: 'fp8' }, { weight: ['BF16', 48, 160] })).toBeUndefined();
});

test('the shapes of a layer choose among the groups of config.json', () => {
  const config = compressed('pack-quantized', PACKED, INT8, { ...PACKED, group_size: 32 });
  const groupsOf = (words: number, groups: number) =>
    resolve(config, { weight_packed: ['I32', 48, words], weight_scale: ['BF16', 48, groups] })?.groups;
  expect(groupsOf(20, 2)).toMatchObject({ bits: 4, groupCols: 128 });
  expect(groupsOf(20, 5)).toMatchObject({ bits: 4, groupCols: 32 });
  expect(groupsOf(40, 1)).toMatchObject({ bits: 8, groupCols: 160 });
  expect(() => groupsOf(40, 5)).toThrow(
    /weight_packed: expected I32 \[48, 20\] as config.json says, got I32 \[48, 40\]/,
  );
});

test('a scale for the tensor or for each row is found by its shape', () => {
  const groupsOf = (...shape: number[]) =>
    resolve({ quant_method: 'fp8' }, { weight: ['F8_E4M3', 48, 160], weight_scale: ['F32', ...shape] })?.groups;
  for (const shape of [[], [1], [1, 1]]) expect(groupsOf(...shape)).toMatchObject({ groupRows: 48, groupCols: 160 });
  for (const shape of [[48], [48, 1]]) expect(groupsOf(...shape)).toMatchObject({ groupRows: 1, groupCols: 160 });
});

test.each(['F8_E8M0', 'U8'])('scales of FP8 may be powers of two in %s, those of int8 may not', (dtype) => {
  const groupsOf = (config: Record<string, unknown>, codes: string) =>
    resolve(config, { weight: [codes, 48, 160], weight_scale: [dtype, 48, 1] })?.groups;
  expect(groupsOf({ quant_method: 'fp8' }, 'F8_E4M3')?.scales.dtype).toBe('e8m0');
  expect(() => groupsOf(compressed('int-quantized', INT8), 'I8')).toThrow(
    /weight_scale: expected F32 or F16 or BF16 \[/,
  );
});

test('FP8 scales of all experts in one tensor, as transformers writes them', () => {
  const experts = 'model.layers.0.mlp.experts';
  const scalesOf = (expert: number, part: string) => {
    const shape = part === 'down' ? [160, 48] : [48, 160];
    const checkpointName = `${experts}.${expert}.${part}_proj.weight`;
    const found = new Map<string, FoundTensor>([
      [checkpointName, { dtype: 'F8_E4M3', shape, offset: 0, numBytes: 7680, file: 0 }],
      // Blocks of 16 x 32: 3 rows and 5 columns of blocks for a gate or an up, 10 and 2 for a down.
      [`${experts}.gate_up_proj_scale_inv`, { dtype: 'F32', shape: [4, 6, 5], offset: 1000, numBytes: 480, file: 0 }],
      [`${experts}.down_proj_scale_inv`, { dtype: 'F32', shape: [4, 10, 2], offset: 2000, numBytes: 320, file: 0 }],
    ]);
    const { schemes } = read({ quant_method: 'fp8', weight_block_size: [16, 32] })!;
    return resolveQuantized({ name: 'w', checkpointName, shape }, schemes, found, ['/model/a.safetensors'])?.groups;
  };
  expect(scalesOf(0, 'gate')?.scales).toEqual({ file: 0, offset: 1000, dtype: 'f32' });
  expect(scalesOf(0, 'up')?.scales.offset).toBe(1000 + 60);
  expect(scalesOf(3, 'gate')?.scales.offset).toBe(1000 + 6 * 60);
  expect(scalesOf(3, 'down')?.scales.offset).toBe(2000 + 3 * 80);
  expect(() => scalesOf(4, 'down')).toThrow(/experts\.4\.down_proj\.weight_scale_inv: expected a tensor F32/);
});

const NF4_TENSORS: Parameters<typeof resolve>[1] = { weight: ['U8', 3840, 1], 'weight.quant_map': ['F32', 16] };
const DOUBLE: Parameters<typeof resolve>[1] = {
  ...NF4_TENSORS,
  'weight.absmax': ['U8', 240],
  'weight.nested_quant_map': ['F32', 256],
  'weight.nested_absmax': ['F32', 1],
};

test('weights of bitsandbytes in 4 bits have a table, and a scale for each block of their state', () => {
  const state = { blockSize: 32, shape: [48, 160] };
  const plain = resolve(BITS4, { ...NF4_TENSORS, 'weight.absmax': ['F32', 240] }, state);
  expect(plain).toMatchObject({ dtype: 'table4', offset: 100 });
  expect(plain?.groups).toEqual({
    bits: 4,
    groupRows: 1,
    groupCols: 32,
    table: { file: 1, offset: 200, dtype: 'f32' },
    scales: { file: 0, offset: 300, dtype: 'f32' },
  });
  const double = resolve(BITS4, DOUBLE, { ...state, nested: { blockSize: 256, offset: 0.05 } });
  expect(double?.groups).toMatchObject({ groupCols: 32, scales: { offset: 300, dtype: 'u8' } });
  expect(double?.groups?.scaleCodes).toEqual({
    table: { file: 1, offset: 400, dtype: 'f32' },
    factors: { file: 0, offset: 500, dtype: 'f32' },
    run: 256,
    offset: 0.05,
  });
});

test.each<[string, QuantState | undefined, RegExp]>([
  ['no state', undefined, /up_proj\.weight: expected a tensor .*up_proj\.weight\.quant_state\.\*/],
  [
    'another shape',
    { blockSize: 32, shape: [160, 48] },
    /quant_state: expected shape \[48, 160\] as config\.json says/,
  ],
  ['blocks that cross rows', { blockSize: 64, shape: [48, 160] }, /expected a multiple of 64 columns, got 160/],
  [
    'factors of other blocks',
    { blockSize: 32, shape: [48, 160], nested: { blockSize: 64, offset: 0 } },
    /nested_absmax: expected F32 \[4\] as config\.json says, got F32 \[1\]/,
  ],
])('a weight of bitsandbytes with %s is refused', (_name, state, message) => {
  expect(() => resolve(BITS4, DOUBLE, state)).toThrow(message);
});

test('a state of bitsandbytes that is too large is not read', async () => {
  const tensor = { dtype: 'U8', shape: [1 << 20], offset: 0, numBytes: 1 << 20, file: 0 };
  const found = new Map([['w.quant_state.bitsandbytes__nf4', tensor]]);
  await expect(readQuantStates([__filename], found)).rejects.toThrow(/expected at most 65536 bytes, got 1048576/);
});

test('weights of bitsandbytes in 8 bits have the largest value of each row', () => {
  const config = { quant_method: 'bitsandbytes', load_in_8bit: true };
  const tensors: Parameters<typeof resolve>[1] = { weight: ['I8', 48, 160], SCB: ['F32', 48], weight_format: ['U8'] };
  expect(resolve(config, tensors)).toMatchObject({
    dtype: 'int8_max',
    groups: { bits: 8, groupRows: 1, groupCols: 160, scales: { offset: 200, dtype: 'f32' } },
  });
});

const MODELOPT = { quant_method: 'modelopt', quant_algo: 'NVFP4' };
const MODELOPT_TENSORS: Parameters<typeof resolve>[1] = {
  weight: ['U8', 48, 80],
  weight_scale: ['F8_E4M3', 48, 10],
  weight_scale_2: ['F32'],
  input_scale: ['F32'],
};
const NVFP4_TENSORS: Parameters<typeof resolve>[1] = {
  weight_packed: ['U8', 48, 80],
  weight_scale: ['F8_E4M3', 48, 10],
  weight_global_scale: ['F32', 1],
};

test('the scales of NVFP4 have a factor or a divisor', () => {
  const { groups, ...tensor } = resolve(MODELOPT, MODELOPT_TENSORS)!;
  expect(tensor).toEqual({
    name: 'layers.0.up_proj.weight',
    file: 0,
    offset: 100,
    dtype: 'fp4_e4m3',
    shape: [48, 160],
    scaleFactor: { file: 0, offset: 300, dtype: 'f32' },
  });
  expect(groups).toMatchObject({ groupRows: 1, groupCols: 16, scales: { offset: 200, dtype: 'e4m3' } });
  const divided = resolve(compressed('nvfp4-pack-quantized', NVFP4), NVFP4_TENSORS);
  expect(divided).toMatchObject({ dtype: 'fp4_e4m3', scaleDivisor: { file: 0, offset: 300, dtype: 'f32' } });
  expect(divided).not.toHaveProperty('scaleFactor');
});

test('experts of NVFP4 in one tensor have a factor each', () => {
  const found = new Map<string, FoundTensor>();
  const add = (name: string, dtype: string, numBytes: number, ...shape: number[]) =>
    found.set(`experts.up_proj${name}`, { dtype, shape, offset: 1000 * found.size, numBytes, file: 0 });
  add('', 'U8', 4 * 3840, 4, 48, 80);
  add('_scale', 'F8_E4M3', 4 * 480, 4, 48, 10);
  add('_scale_2', 'F32', 16, 4);
  const required = { name: 'w', checkpointName: 'experts.up_proj', shape: [48, 160], stacked: { count: 4, index: 3 } };
  expect(resolveQuantized(required, read(MODELOPT)!.schemes, found, ['/model/a.safetensors'])).toMatchObject({
    offset: 3 * 3840,
    groups: { scales: { offset: 1000 + 3 * 480 } },
    scaleFactor: { offset: 2000 + 3 * 4 },
  });
});

test.each<[string, Parameters<typeof resolve>[1], string, RegExp]>([
  ['a factor', { weight_scale_2: undefined as never }, 'invalid_model', /weight_scale_2: expected a tensor F32 \[\]/],
  ['one factor', { weight_scale_2: ['F32', 2] }, 'invalid_model', /weight_scale_2: expected F32 \[\].* got F32 \[2\]/],
  [
    'scales',
    { weight_scale: undefined as never },
    'invalid_model',
    /weight_scale: expected a tensor F8_E4M3 \[48, 10\]/,
  ],
  [
    'scales of 16 columns',
    { weight_scale: ['F8_E4M3', 48, 5] },
    'invalid_model',
    /weight_scale: .* F8_E4M3 \[48, 10\]/,
  ],
  ['scales in e4m3', { weight_scale: ['U8', 48, 10] }, 'invalid_model', /weight_scale: .* got U8 \[48, 10\]/],
  ['codes of all columns', { weight: ['U8', 48, 160] }, 'invalid_model', /weight: expected U8 \[48, 80\]/],
  [
    'activations as they are',
    { pre_quant_scale: ['BF16', 160] },
    'unsupported_model',
    /up_proj\.pre_quant_scale: expected a layer without this tensor, got one/,
  ],
])('NVFP4 needs %s', (_name, change, code, message) => {
  const config = {
    quant_method: 'modelopt',
    quant_algo: 'MIXED_PRECISION',
    quantized_layers: { a: { quant_algo: 'FP8' }, b: { quant_algo: 'NVFP4' } },
  };
  const tensors = Object.fromEntries(
    Object.entries({ ...MODELOPT_TENSORS, ...change }).filter(([, value]) => value !== undefined),
  );
  for (const quantization of [MODELOPT, config])
    expect(() => resolve(quantization, tensors)).toThrow(
      expect.objectContaining({ code, message: expect.stringMatching(message) }),
    );
});

test('zero points of NVFP4 are refused', () => {
  const tensors: typeof NVFP4_TENSORS = { ...NVFP4_TENSORS, weight_zero_point: ['F8_E4M3', 48, 10] };
  expect(() => resolve(compressed('nvfp4-pack-quantized', NVFP4), tensors)).toThrow(
    expect.objectContaining({ code: 'unsupported_model', message: expect.stringMatching(/weight_zero_point/) }),
  );
});

test('zero points in words, in bytes, and none', () => {
  const zerosOf = (zeros: Record<string, [string, ...number[]]>) =>
    resolve(compressed('pack-quantized', PACKED), {
      weight_packed: ['I32', 48, 20],
      weight_scale: ['F32', 48, 2],
      ...zeros,
    })?.groups?.zeros?.dtype;
  expect(zerosOf({ weight_zero_point: ['I32', 6, 2] })).toBe('i32');
  expect(zerosOf({ weight_zero_point: ['I8', 48, 2] })).toBe('i8');
  expect(zerosOf({})).toBeUndefined();
  expect(() => zerosOf({ weight_zero_point: ['I32', 48, 2] })).toThrow(
    /weight_zero_point: expected I32 \[6, 2\] or I8 \[48, 2\]/,
  );
});

test.each<[string, Parameters<typeof resolve>[1], RegExp]>([
  [
    'without scales',
    { scales: undefined as never },
    /up_proj\.scales: expected a tensor F32 or F16 or BF16 \[3, 48\].* none/,
  ],
  ['without zero points', { qzeros: undefined as never }, /up_proj\.qzeros: expected a tensor I32 \[3, 6\]/],
  ['with scales of integers', { scales: ['I32', 3, 48] }, /a\.safetensors: .*scales: expected .* got I32 \[3, 48\]/],
  [
    'with another group size',
    { scales: ['F16', 2, 48] },
    /scales: expected F32 or F16 or BF16 \[3, 48\].* got F16 \[2, 48\]/,
  ],
  [
    'with codes of another layout',
    { qweight: ['I32', 20, 48] },
    /qweight: expected I32 \[160, 6\].* got I32 \[20, 48\]/,
  ],
  ['with codes in bytes', { qweight: ['U8', 160, 6] }, /qweight: expected I32 \[160, 6\].* got U8/],
])('an AWQ layer %s is invalid', (_name, change, message) => {
  const tensors = Object.fromEntries(
    Object.entries({ ...AWQ_TENSORS, ...change }).filter(([, value]) => value !== undefined),
  );
  expect(() => resolve(AWQ, tensors)).toThrow(
    expect.objectContaining({ code: 'invalid_model', message: expect.stringMatching(message) }),
  );
});
