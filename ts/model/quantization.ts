import type { NativeCodeLayout } from '../addon-types';
import { CapstanError, showPlace } from '../errors';
import type { JsonReader } from './json-file';

/** One way in which a checkpoint stores the weights of a linear layer. */
export interface WeightScheme {
  layout: NativeCodeLayout;
  /** Of a code. */
  bits: number;
  /** Rows and columns that share a scale; Infinity = all. */
  groupRows: number;
  groupCols: number;
  /** The ends of the names of its tensors, after the layer's name. */
  names: TensorNames;
}

/** The names of scales are alternatives. */
export interface TensorNames {
  codes: string;
  scales: readonly string[];
  zeros?: string;
  /** Whether every layer has zero points. */
  needsZeros?: boolean;
  groupIndex?: string;
  /** What scales in e4m3 are multiplied by, or divided by. */
  factor?: string;
  divisor?: string;
  /** The values of codes, and the values and the factors of scales in bytes. */
  table?: string;
  scaleTable?: string;
  scaleFactors?: string;
  /** Tensors of layers that cannot be run. */
  refused?: readonly string[];
}

/** How a checkpoint is quantized. */
export interface Quantization {
  /** For people, such as `AWQ, 4 bits`. */
  title: string;
  /**
   * Alternatives. The shapes of a layer's tensors say which of them it uses, and whether it is quantized at all. So the
   * lists of layers in config.json are not needed.
   */
  schemes: WeightScheme[];
  /** Whether the weights are decoded to 16 bits while they load. */
  isDecoded: boolean;
}

interface Method {
  name: string;
  description: string;
  /** Returns undefined if the weights are not quantized. */
  read(config: JsonReader): Quantization | undefined;
}

const AUTO_NAMES: TensorNames = { codes: 'qweight', scales: ['scales'], zeros: 'qzeros', needsZeros: true };
const PACKED_NAMES: TensorNames = {
  codes: 'weight_packed',
  scales: ['weight_scale'],
  zeros: 'weight_zero_point',
  groupIndex: 'weight_g_idx',
};
const INT8_NAMES: TensorNames = { codes: 'weight', scales: ['weight_scale'], zeros: 'weight_zero_point' };
const FP8_NAMES: TensorNames = { codes: 'weight', scales: ['weight_scale_inv', 'weight_scale'] };
const NVFP4_NAMES: TensorNames = {
  codes: 'weight_packed',
  scales: ['weight_scale'],
  divisor: 'weight_global_scale',
  refused: ['weight_zero_point'],
};
const MODELOPT_NVFP4_NAMES: TensorNames = {
  codes: 'weight',
  scales: ['weight_scale'],
  factor: 'weight_scale_2',
  refused: ['pre_quant_scale', 'svdquant_lora_a'],
};
const TABLE_NAMES: TensorNames = {
  codes: 'weight',
  scales: ['weight.absmax'],
  table: 'weight.quant_map',
  scaleTable: 'weight.nested_quant_map',
  scaleFactors: 'weight.nested_absmax',
};
const INT8_MAX_NAMES: TensorNames = { codes: 'weight', scales: ['SCB'] };
const GPTQ_BITS = [2, 3, 4, 8];
const MXFP4_GROUP = 32;
const NVFP4_GROUP = 16;
const COMPRESSED_FORMATS =
  'pack-quantized, int-quantized, float-quantized, mxfp8-quantized, mxfp4-pack-quantized or nvfp4-pack-quantized';
/** The algorithms of ModelOpt with these weights. They differ in the activations. */
const NVFP4_ALGORITHMS = ['NVFP4', 'W4A16_NVFP4', 'NVFP4_AWQ', 'W4A8_NVFP4_FP8'];

/** The values of `quant_method`. */
export const QUANTIZATION_METHODS: readonly Method[] = [
  { name: 'awq', description: '4 bits, `version` gemm', read: readAwq },
  {
    name: 'gptq',
    description: '2, 3, 4 and 8 bits, with and without `desc_act`, formats gptq and gptq_v2',
    read: readGptq,
  },
  {
    name: 'compressed-tensors',
    description:
      'pack-quantized (2 to 8 bits), int-quantized (8 bits or less), float-quantized (FP8), mxfp8-quantized, ' +
      'mxfp4-pack-quantized, nvfp4-pack-quantized',
    read: readCompressedTensors,
  },
  { name: 'fp8', description: 'E4M3, with a scale for each block, row or tensor', read: readFp8 },
  { name: 'fbgemm_fp8', description: 'E4M3, with a scale for each row', read: readFp8 },
  {
    name: 'auto-round',
    description: '`packing_format` auto_round, auto_round:auto_gptq and auto_round:auto_awq',
    read: readAutoRound,
  },
  {
    name: 'intel/auto-round',
    description: 'the same, with `backend` in place of `packing_format`',
    read: readAutoRound,
  },
  {
    name: 'modelopt',
    description: `\`quant_algo\` FP8, ${NVFP4_ALGORITHMS.join(', ')}, and MIXED_PRECISION of these`,
    read: (config) => readModelOpt(config, 'FP8'),
  },
  { name: 'modelopt_fp4', description: 'the same', read: (config) => readModelOpt(config, 'NVFP4') },
  { name: 'mxfp4', description: 'E2M1, with a scale for each 32 columns', read: readMxfp4 },
  {
    name: 'bitsandbytes',
    description: '4 bits (nf4 and fp4, with and without double quantization), 8 bits',
    read: readBitsAndBytes,
  },
];

/**
 * Returns undefined for a checkpoint that is not quantized.
 * @throws CapstanError `unsupported_model` that names the method and the supported ones, or `invalid_model`.
 */
export function readQuantization(config: JsonReader): Quantization | undefined {
  const quantization =
    config.object('quantization_config') ?? config.object('compression_config') ?? quantizationOfMlx(config);
  if (quantization === undefined) return undefined;
  const name = quantization.string('quant_method', unnamedMethod(config, quantization));
  const method = QUANTIZATION_METHODS.find((row) => row.name === name);
  if (method !== undefined) return method.read(quantization);
  const expected = `one of ${QUANTIZATION_METHODS.map((row) => row.name).join(', ')}`;
  throw unsupported(quantization, 'quant_method', expected, name);
}

/** MLX writes another key, alone or besides `quantization_config`. */
function quantizationOfMlx(config: JsonReader): JsonReader | undefined {
  return typeof config.raw('quantization') === 'object' ? config.object('quantization') : undefined;
}

/** Returns the method of a checkpoint that names none. */
function unnamedMethod(config: JsonReader, quantization: JsonReader): string {
  // Checkpoints of 2023.
  if (quantization.has('load_in_8bit') || quantization.has('load_in_4bit')) return 'bitsandbytes';
  if (quantizationOfMlx(config) !== undefined) return 'MLX';
  return config.raw('quantization_config') === undefined ? 'compressed-tensors' : 'an unnamed method';
}

function readAwq(config: JsonReader): Quantization {
  const bits = config.positiveInt('bits', config.positiveInt('w_bit', 4));
  if (bits !== 4) throw unsupported(config, 'bits', '4', String(bits));
  const version = config.string('version', 'gemm').toLowerCase();
  if (version !== 'gemm') throw unsupported(config, 'version', 'gemm', version);
  const backend = config.string('backend', 'autoawq').toLowerCase();
  if (backend === 'llm-awq') throw unsupported(config, 'backend', 'autoawq', backend);
  const groupCols = readGroupSize(config, 'group_size', readGroupSize(config, 'q_group_size', 128));
  const scheme: WeightScheme = { layout: 'awq', bits, groupRows: 1, groupCols, names: AUTO_NAMES };
  return { title: 'AWQ, 4 bits', schemes: [scheme], isDecoded: false };
}

function readGptq(config: JsonReader): Quantization {
  // AutoGPTQ 0.7 and 0.8.
  const unnamed = config.boolean('is_marlin_format', false) ? 'marlin' : 'gptq';
  const format = config.string('checkpoint_format', config.string('format', unnamed));
  if (format !== 'gptq' && format !== 'gptq_v2')
    throw unsupported(config, 'checkpoint_format', 'gptq or gptq_v2', format);
  const packing = config.string('pack_dtype', 'int32');
  if (packing !== 'int32') throw unsupported(config, 'pack_dtype', 'int32', packing);
  const bits = readBits(config, 'bits', GPTQ_BITS);
  const groupCols = readGroupSize(config, 'group_size', 128);
  const names = { ...AUTO_NAMES, groupIndex: 'g_idx' };
  const scheme: WeightScheme = { layout: format, bits, groupRows: 1, groupCols, names };
  // GPTQModel: other settings for some layers, by a pattern of their names.
  const overrides = config.object('dynamic');
  const others = (overrides?.keys() ?? []).flatMap((pattern) => {
    const override = pattern.startsWith('-:') ? undefined : overrides?.object(pattern);
    if (override === undefined) return [];
    const size = readGroupSize(override, 'group_size', groupCols);
    return [{ ...scheme, bits: override.has('bits') ? readBits(override, 'bits', GPTQ_BITS) : bits, groupCols: size }];
  });
  return { title: `GPTQ, ${bits} bits`, schemes: [scheme, ...others], isDecoded: config.boolean('desc_act', false) };
}

/** In AutoRound's own packing, zero points are stored unchanged. */
const AUTO_ROUND_LAYOUTS: Readonly<Record<string, 'gptq' | 'gptq_v2' | 'awq'>> = {
  auto_round: 'gptq_v2',
  'auto_round:gptqmodel': 'gptq_v2',
  'auto_round:auto_gptq': 'gptq',
  'auto_round:gptq': 'gptq',
  'auto_round:auto_awq': 'awq',
  'auto_round:awq': 'awq',
  auto_gptq: 'gptq',
  gptq: 'gptq',
};

/** The packing is that of GPTQ or AWQ. Some layers have other settings, by their names. */
function readAutoRound(config: JsonReader): Quantization {
  // Up to version 0.4, the key is another, and the value ends with the name of a kernel.
  const backend = config.string('backend', 'auto');
  const packing = config.string('packing_format', backend === 'auto' ? 'auto_round:auto_gptq' : backend);
  const format = packing.replace(/:(exllamav2|tritonv2|cuda|gemm)$/, '');
  const layout = Object.hasOwn(AUTO_ROUND_LAYOUTS, format) ? AUTO_ROUND_LAYOUTS[format] : undefined;
  if (layout === undefined)
    throw unsupported(config, 'packing_format', Object.keys(AUTO_ROUND_LAYOUTS).join(', '), packing);
  const type = config.string('data_type', 'int');
  if (type !== 'int') throw unsupported(config, 'data_type', 'int', type);
  const supported = layout === 'awq' ? [4] : GPTQ_BITS;
  const bits = readBits(config, 'bits', supported);
  const groupCols = readGroupSize(config, 'group_size', 128);
  const names = layout === 'awq' ? AUTO_NAMES : { ...AUTO_NAMES, groupIndex: 'g_idx' };
  const scheme: WeightScheme = { layout, bits, groupRows: 1, groupCols, names };
  const layers = config.object('extra_config');
  const others = (layers?.keys() ?? []).flatMap((layer): WeightScheme[] => {
    const own = layers!.object(layer);
    const ownBits = own?.positiveInt('bits', bits) ?? bits;
    if (own === undefined || ownBits >= 16) return [];
    const size = readGroupSize(own, 'group_size', groupCols);
    return [{ ...scheme, bits: own.has('bits') ? readBits(own, 'bits', supported) : bits, groupCols: size }];
  });
  return { title: `AutoRound, ${bits} bits`, schemes: distinct([scheme, ...others]), isDecoded: false };
}

/** Layers share few schemes. */
function distinct(schemes: readonly WeightScheme[]): WeightScheme[] {
  return [...new Map(schemes.map((scheme) => [`${scheme.bits} ${scheme.groupCols}`, scheme])).values()];
}

function readModelOpt(config: JsonReader, fallback: string): Quantization {
  const algorithm = config.string('quant_algo', fallback).toUpperCase();
  if (algorithm !== 'MIXED_PRECISION') return readModelOptAlgorithm(config, algorithm);
  const layers = config.object('quantized_layers');
  const parts = (layers?.keys() ?? []).flatMap((name) => {
    const layer = layers!.object(name);
    return layer === undefined ? [] : [readModelOptAlgorithm(layer, layer.string('quant_algo').toUpperCase())];
  });
  if (parts.length === 0)
    throw config.mismatch('quantized_layers', 'at least one layer', config.raw('quantized_layers'));
  const titles = [...new Set(parts.map(({ title }) => title))];
  return {
    title: `ModelOpt, ${titles.join(' and ')}`,
    schemes: titles.flatMap((title) => parts.find((part) => part.title === title)!.schemes),
    isDecoded: parts.every(({ isDecoded }) => isDecoded),
  };
}

function readModelOptAlgorithm(config: JsonReader, algorithm: string): Quantization {
  if (algorithm === 'FP8') return readFp8(config);
  if (!NVFP4_ALGORITHMS.includes(algorithm))
    throw unsupported(config, 'quant_algo', ['FP8', ...NVFP4_ALGORITHMS].join(', '), algorithm);
  const groupSize = config.positiveInt('group_size', NVFP4_GROUP);
  if (groupSize !== NVFP4_GROUP) throw unsupported(config, 'group_size', String(NVFP4_GROUP), String(groupSize));
  return { title: 'NVFP4', schemes: [nvfp4Scheme(MODELOPT_NVFP4_NAMES)], isDecoded: false };
}

function nvfp4Scheme(names: TensorNames): WeightScheme {
  return { layout: 'fp4_e4m3', bits: 4, groupRows: 1, groupCols: NVFP4_GROUP, names };
}

function readCompressedTensors(config: JsonReader): Quantization | undefined {
  const sparsity = config.object('sparsity_config')?.string('format', 'dense') ?? 'dense';
  if (sparsity !== 'dense') throw unsupported(config, 'sparsity_config: format', 'dense', sparsity);
  const transforms = config.object('transform_config');
  const transformGroups = transforms?.object('config_groups')?.keys() ?? [];
  if (transformGroups.length > 0 || transforms?.keys().some((key) => key !== 'config_groups') === true)
    throw unsupported(config, 'transform_config', 'no transforms of activations', 'some');
  const groups = config.object('config_groups');
  const names = groups?.keys() ?? [];
  if (names.length === 0 && config.object('kv_cache_scheme') === undefined)
    throw config.mismatch('config_groups', 'at least one group', config.raw('config_groups'));
  const format = config.string('format', 'dense');
  const schemes = names.flatMap((name) => readConfigGroup(groups!.object(name), format, config));
  if (schemes.length === 0) return undefined;
  const titles: Partial<Record<NativeCodeLayout, string>> = { fp8: 'FP8', fp4_e4m3: 'NVFP4' };
  const bits = [...new Set(schemes.map((scheme) => titles[scheme.layout] ?? `${scheme.bits} bits`))];
  return {
    title: `compressed-tensors, ${bits.join(' and ')}`,
    schemes,
    isDecoded: schemes.every(({ layout }) => layout === 'fp8'),
  };
}

/** A group without weights quantizes activations or the KV cache only. */
function readConfigGroup(group: JsonReader | undefined, outerFormat: string, config: JsonReader): WeightScheme[] {
  const weights = group?.object('weights');
  if (group === undefined || weights === undefined) return [];
  const format = group.string('format', outerFormat);
  const isFloat = weights.string('type', 'int') === 'float';
  const bits = weights.positiveInt('num_bits', 8);
  if (format === 'nvfp4-pack-quantized') return [readNvfp4(weights)];
  const groups = readStrategy(weights);
  switch (format) {
    case 'pack-quantized':
      if (isFloat) throw unsupported(weights, 'type', `int for ${format}`, 'float');
      return [
        { layout: 'rows', bits: readBits(weights, 'num_bits', [2, 3, 4, 5, 6, 7, 8]), ...groups, names: PACKED_NAMES },
      ];
    case 'int-quantized':
    case 'float-quantized':
    case 'mxfp8-quantized':
    case 'naive-quantized':
      // Smaller integers are stored in bytes, too.
      if (isFloat ? bits !== 8 : bits > 8)
        throw unsupported(weights, 'num_bits', `${isFloat ? '8' : '8 or less'} for ${format}`, String(bits));
      return isFloat
        ? [{ layout: 'fp8', bits, ...groups, names: FP8_NAMES }]
        : [{ layout: 'int8', bits: 8, ...groups, names: INT8_NAMES }];
    case 'mxfp4-pack-quantized':
      return [
        { layout: 'fp4', bits: 4, groupRows: 1, groupCols: MXFP4_GROUP, names: { ...PACKED_NAMES, zeros: undefined } },
      ];
    default:
      throw unsupported(config, 'format', COMPRESSED_FORMATS, format);
  }
}

function readNvfp4(weights: JsonReader): WeightScheme {
  const groupSize = weights.positiveInt('group_size', NVFP4_GROUP);
  if (groupSize !== NVFP4_GROUP) throw unsupported(weights, 'group_size', String(NVFP4_GROUP), String(groupSize));
  return nvfp4Scheme(NVFP4_NAMES);
}

function readStrategy(weights: JsonReader): Pick<WeightScheme, 'groupRows' | 'groupCols'> {
  const size = readGroupSize(weights, 'group_size', Infinity);
  const blocks = weights.raw('block_structure');
  const strategy = weights.string('strategy', weights.has('group_size') ? 'group' : 'tensor');
  switch (strategy) {
    case 'tensor':
      return { groupRows: Infinity, groupCols: Infinity };
    case 'channel':
      return { groupRows: 1, groupCols: Infinity };
    case 'group':
      return { groupRows: 1, groupCols: size };
    case 'block':
      return readBlock(weights, 'block_structure', blocks);
    default:
      throw unsupported(weights, 'strategy', 'tensor, channel, group or block', strategy);
  }
}

function readFp8(config: JsonReader): Quantization {
  const format = config.string('fmt', 'e4m3');
  if (format !== 'e4m3') throw unsupported(config, 'fmt', 'e4m3', format);
  const block = config.raw('weight_block_size');
  const groups =
    block === undefined
      ? [Infinity, 1].map((groupRows) => ({ groupRows, groupCols: Infinity }))
      : [readBlock(config, 'weight_block_size', block)];
  const schemes = groups.map((group): WeightScheme => ({ layout: 'fp8', bits: 8, ...group, names: FP8_NAMES }));
  return { title: 'FP8', schemes, isDecoded: true };
}

function readMxfp4(): Quantization {
  const names: TensorNames = { codes: 'weight_blocks', scales: ['weight_scales'] };
  const scheme: WeightScheme = { layout: 'fp4', bits: 4, groupRows: 1, groupCols: MXFP4_GROUP, names };
  return { title: 'MXFP4', schemes: [scheme], isDecoded: false };
}

function readBitsAndBytes(config: JsonReader): Quantization {
  const has = (key: string): boolean => config.boolean(key, config.boolean(`_${key}`, false));
  if (has('load_in_8bit')) {
    const scheme: WeightScheme = {
      layout: 'int8_max',
      bits: 8,
      groupRows: 1,
      groupCols: Infinity,
      names: INT8_MAX_NAMES,
    };
    return { title: 'bitsandbytes, 8 bits', schemes: [scheme], isDecoded: false };
  }
  if (!has('load_in_4bit')) throw config.mismatch('load_in_4bit', 'true, or load_in_8bit true', false);
  const type = config.string('bnb_4bit_quant_type', 'fp4');
  // The state of each weight says how many columns share a scale.
  const scheme: WeightScheme = { layout: 'table4', bits: 4, groupRows: 1, groupCols: 64, names: TABLE_NAMES };
  return { title: `bitsandbytes, ${type.toUpperCase()}`, schemes: [scheme], isDecoded: true };
}

function readBits(config: JsonReader, key: string, supported: readonly number[]): number {
  const bits = config.positiveInt(key);
  if (!supported.includes(bits)) throw unsupported(config, key, supported.join(', '), String(bits));
  return bits;
}

/** -1 means all columns. */
function readGroupSize(config: JsonReader, key: string, fallback: number): number {
  if (config.raw(key) === -1) return Infinity;
  return config.raw(key) === undefined ? fallback : config.positiveInt(key);
}

function readBlock(config: JsonReader, key: string, block: unknown): Pick<WeightScheme, 'groupRows' | 'groupCols'> {
  const isSize = (size: unknown): boolean => Number.isSafeInteger(size) && (size as number) > 0;
  if (!Array.isArray(block) || block.length !== 2 || !block.every(isSize))
    throw config.mismatch(key, 'the rows and the columns of a block', block);
  const [groupRows, groupCols] = block as number[];
  return { groupRows, groupCols };
}

function unsupported(config: JsonReader, key: string, expected: string, received: string): CapstanError {
  return CapstanError.unexpected(
    'unsupported_model',
    `${showPlace(config.where)}: ${key}`,
    expected,
    `${showPlace(received)}. Choose another quantization of the model, such as a GGUF file, or its 16-bit files with ` +
      'the option quantization (--quantization)',
  );
}
