import type { NativeLayer } from '../addon-types';
import { alternatingRopes, readWindow } from './attention-layers';
import type { ExpertTensors, LayerAttention, SpecChanges } from './family';
import type { JsonReader } from './json-file';

export const GEMMA4_EXPERTS: ExpertTensors = {
  router: 'router.proj',
  scales: 'router.per_expert_scale',
  norms: {
    router: 'router.scale',
    experts: 'pre_feedforward_layernorm_2.weight',
    expertsOut: 'post_feedforward_layernorm_2.weight',
    sharedOut: 'post_feedforward_layernorm_1.weight',
  },
  stacked: { gateUp: 'experts.gate_up_proj', down: 'experts.down_proj' },
  shared: { gate: 'mlp.gate_proj', up: 'mlp.up_proj', down: 'mlp.down_proj' },
};

/** The last layer always sees all positions. */
export function gemma4Attention(config: JsonReader, numLayers: number): LayerAttention[] {
  const layers = alternatingRopes(config, numLayers, (layer) => (layer + 1) % 6 !== 0, readWindow(config, 512));
  layers[numLayers - 1] = { window: 0, rope: 0 };
  return layers;
}

/** Full layers have larger heads, and perhaps fewer of keys and values. */
function readFullSizes(config: JsonReader, layers: readonly NativeLayer[], hasEqualValues: boolean) {
  const first = layers.findIndex(({ window }) => window === 0);
  // transformers 5.23 writes the sizes of each layer; configs on the hub hold those of all full layers.
  const layerConfigs = config.object('per_layer_config');
  const perLayer = layerConfigs?.object(String(first));
  const sharedHeadDim = config.positiveInt('head_dim', 256);
  // It leaves out a layer whose sizes are those of all layers.
  if (layerConfigs !== undefined && perLayer === undefined) return { headDim: sharedHeadDim };
  const headDim = perLayer?.positiveInt('head_dim', sharedHeadDim) ?? config.positiveInt('global_head_dim', 512);
  const inConfig = perLayer ?? (hasEqualValues ? config : undefined);
  const key = perLayer === undefined ? 'num_global_key_value_heads' : 'num_key_value_heads';
  const numKvHeads =
    inConfig === undefined || inConfig.raw(key) === undefined || inConfig.isNull(key)
      ? undefined
      : inConfig.positiveInt(key);
  if (headDim % 2 !== 0) throw config.mismatch('global_head_dim', 'an even number of dimensions', headDim);
  return { headDim, ...(numKvHeads === undefined ? {} : { numKvHeads }) };
}

/** The last `num_kv_shared_layers` layers read the keys and values of the last earlier layer of their type. */
export function gemma4Layers(
  config: JsonReader,
  layers: readonly NativeLayer[],
  { intermediateSize }: { intermediateSize: number },
): NativeLayer[] {
  const full = readFullSizes(config, layers, hasEqualKeysAndValues(config));
  const numShared = config.nonNegativeInt('num_kv_shared_layers', 0);
  if (numShared >= layers.length)
    throw config.mismatch('num_kv_shared_layers', `fewer than the ${layers.length} layers`, numShared);
  const firstShared = layers.length - numShared;
  const isWide = config.boolean('use_double_wide_mlp', false);
  if (isWide && numShared > 0 && config.boolean('enable_moe_block', false))
    throw config.mismatch('use_double_wide_mlp', 'false in a model with experts', true);
  const source = (layer: NativeLayer) =>
    layers.findLastIndex((other, i) => i < firstShared && (other.window === 0) === (layer.window === 0));
  return layers.map((layer, i) => {
    const sizes = layer.window === 0 ? full : {};
    if (i < firstShared) return { ...layer, ...sizes };
    const kvSource = source(layer);
    if (kvSource === -1)
      throw config.mismatch('num_kv_shared_layers', 'a layer of each type among the layers before', numShared);
    return { ...layer, ...sizes, kvSource, ...(isWide ? { intermediateSize: 2 * intermediateSize } : {}) };
  });
}

/** Full layers have no projection of values: their values are the keys before norm and rotation. */
export function hasEqualKeysAndValues(config: JsonReader): boolean {
  return config.boolean('attention_k_eq_v', false);
}

export function gemma4(config: JsonReader, hiddenSize: number, logitSoftCap: number): SpecChanges {
  const perLayerInputSize = config.isNull('hidden_size_per_layer_input')
    ? 0
    : config.nonNegativeInt('hidden_size_per_layer_input', 256);
  return {
    embeddingScale: Math.sqrt(hiddenSize),
    attentionScale: 1,
    qkNorm: 'head',
    hasVNorm: true,
    logitSoftCap,
    perLayerInputSize,
    hasLayerScales: true,
  };
}
