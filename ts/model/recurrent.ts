import type { NativeLayer, NativeRecurrent } from '../addon-types';
import { CapstanError } from '../errors';
import type { JsonReader } from './json-file';

/** The recurrent layers of a model. */
export interface RecurrentLayers {
  mixer: Exclude<NativeLayer['mixer'], 'attention'>;
  sizes: NativeRecurrent;
  /** By layer. */
  isRecurrent: boolean[];
}

/** Names of layer types in config.json, before and since transformers 5. */
const RECURRENT_TYPES = ['linear_attention', 'conv', 'mamba'];
const ATTENTION_TYPES = ['full_attention', 'attention'];

/** Returns for each layer whether it is recurrent: as `layer_types` says, or by default `isRecurrent`. */
function readRecurrentLayers(
  config: JsonReader,
  numLayers: number,
  isRecurrent: (layer: number) => boolean,
): boolean[] {
  const layerTypes = config.raw('layer_types') ?? config.raw('layers_block_type');
  if (layerTypes === undefined) return Array.from({ length: numLayers }, (_, layer) => isRecurrent(layer));
  if (!Array.isArray(layerTypes) || layerTypes.length !== numLayers)
    throw config.mismatch('layer_types', `a list of ${numLayers} layer types`, layerTypes);
  return layerTypes.map((type: unknown) => {
    if (!RECURRENT_TYPES.includes(type as string) && !ATTENTION_TYPES.includes(type as string))
      throw config.mismatch('layer_types', `one of ${[...RECURRENT_TYPES, ...ATTENTION_TYPES].join(', ')}`, type);
    return RECURRENT_TYPES.includes(type as string);
  });
}

/** Gated delta net of Qwen3-Next and Qwen3.5: by default every fourth layer is attention. */
export function qwenDeltaNet(config: JsonReader, numLayers: number): RecurrentLayers {
  const interval = config.positiveInt('full_attention_interval', 4);
  const numHeads = config.positiveInt('linear_num_value_heads', 32);
  const numGroups = config.positiveInt('linear_num_key_heads', 16);
  if (numHeads % numGroups !== 0)
    throw config.mismatch('linear_num_value_heads', `a multiple of linear_num_key_heads (${numGroups})`, numHeads);
  const headDim = config.positiveInt('linear_value_head_dim', 128);
  const stateSize = config.positiveInt('linear_key_head_dim', 128);
  return {
    mixer: 'delta_net',
    sizes: {
      numHeads,
      numGroups,
      headDim,
      stateSize,
      convTaps: config.positiveInt('linear_conv_kernel_dim', 4),
      convChannels: numHeads * headDim + 2 * numGroups * stateSize,
    },
    isRecurrent: readRecurrentLayers(config, numLayers, (layer) => (layer + 1) % interval !== 0),
  };
}

/** Gated short convolutions of LFM2: by default all layers are attention. */
export function lfm2ShortConv(config: JsonReader, numLayers: number, hiddenSize: number): RecurrentLayers {
  const attention = config.raw('full_attn_idxs');
  if (attention !== undefined && !Array.isArray(attention))
    throw config.mismatch('full_attn_idxs', 'a list of layers', attention);
  return {
    mixer: 'short_conv',
    sizes: {
      numHeads: 0,
      numGroups: 0,
      headDim: 0,
      stateSize: 0,
      convTaps: config.positiveInt('conv_L_cache', 3),
      convChannels: hiddenSize,
    },
    isRecurrent: readRecurrentLayers(config, numLayers, (layer) => attention?.includes(layer) === false),
  };
}

/** Mamba 2 of Granite 4. */
export function graniteMamba(config: JsonReader, numLayers: number, hiddenSize: number): RecurrentLayers {
  refuseTimeStepLimit(config);
  const numHeads = config.positiveInt('mamba_n_heads', 128);
  const numGroups = config.positiveInt('mamba_n_groups', 1);
  if (numHeads % numGroups !== 0)
    throw config.mismatch('mamba_n_heads', `a multiple of mamba_n_groups (${numGroups})`, numHeads);
  const inner = config.positiveInt('mamba_expand', 2) * hiddenSize;
  const isAuto = config.raw('mamba_d_head') === undefined || config.raw('mamba_d_head') === 'auto';
  const headDim = isAuto ? inner / numHeads : config.positiveInt('mamba_d_head');
  if (headDim * numHeads !== inner || !Number.isInteger(headDim))
    throw config.mismatch('mamba_d_head', `mamba_expand * hidden_size (${inner}) / mamba_n_heads`, headDim);
  const stateSize = config.positiveInt('mamba_d_state', 256);
  return {
    mixer: 'mamba2',
    sizes: {
      numHeads,
      numGroups,
      headDim,
      stateSize,
      convTaps: config.positiveInt('mamba_d_conv', 4),
      convChannels: inner + 2 * numGroups * stateSize,
    },
    isRecurrent: readRecurrentLayers(config, numLayers, () => true),
  };
}

/** transformers applies a limit to prompts, but not to single tokens. */
function refuseTimeStepLimit(config: JsonReader): void {
  const limit = config.raw('time_step_limit');
  if (limit === undefined) return;
  // transformers 5 writes { "__float__": "Infinity" }.
  const [low, high] = Array.isArray(limit) ? (limit as unknown[]) : [];
  const isInfinite = high === 'Infinity' || (high as { __float__?: unknown } | null)?.__float__ === 'Infinity';
  if (low !== 0 || !isInfinite)
    throw CapstanError.mismatch('unsupported_model', 'config.json: time_step_limit', '[0, Infinity]', limit);
}
