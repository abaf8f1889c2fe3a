import type { LayerAttention } from './family';
import type { JsonReader } from './json-file';

/** Returns the same for every layer. */
export function everyLayer(window: number, numLayers: number): LayerAttention[] {
  return Array.from({ length: numLayers }, () => ({ window, rope: 0 }));
}

/** null means no window. */
export function readWindow(config: JsonReader, fallback = 4096): number {
  return config.isNull('sliding_window') ? 0 : config.nonNegativeInt('sliding_window', fallback);
}

/** Returns for each layer whether its type is `sliding_attention`: as `layer_types` says, or by default `isSliding`. */
function readSlidingLayers(config: JsonReader, numLayers: number, isSliding: (layer: number) => boolean): boolean[] {
  const layerTypes = config.raw('layer_types');
  if (layerTypes === undefined) return Array.from({ length: numLayers }, (_, layer) => isSliding(layer));
  if (!Array.isArray(layerTypes) || layerTypes.length !== numLayers)
    throw config.mismatch('layer_types', `a list of ${numLayers} layer types`, layerTypes);
  return layerTypes.map((type: unknown) => {
    if (type !== 'sliding_attention' && type !== 'full_attention')
      throw config.mismatch('layer_types', 'sliding_attention or full_attention', type);
    return type === 'sliding_attention';
  });
}

/** Every `period`-th layer is full, the others have the window. */
export function alternating(config: JsonReader, numLayers: number, period: number, window?: number): LayerAttention[] {
  const size = readWindow(config, window);
  return readSlidingLayers(config, numLayers, (layer) => (layer + 1) % period !== 0).map((isSliding) => ({
    window: isSliding ? size : 0,
    rope: 0,
  }));
}

/** The chosen layers have the window of the config, by default `size`. */
export function windowsFrom(
  config: JsonReader,
  numLayers: number,
  isSliding: (layer: number) => boolean,
  size: number,
): LayerAttention[] {
  const window = readWindow(config, size);
  return readSlidingLayers(config, numLayers, isSliding).map((sliding) => ({ window: sliding ? window : 0, rope: 0 }));
}

/** Layers with a window of `size` have another rotation. */
export function alternatingRopes(
  config: JsonReader,
  numLayers: number,
  isSliding: (layer: number) => boolean,
  size: number,
): LayerAttention[] {
  return readSlidingLayers(config, numLayers, isSliding).map((isSliding) => ({
    window: isSliding ? size : 0,
    rope: isSliding ? 1 : 0,
  }));
}

/** Qwen: the layers from `max_window_layers` on have the window if `use_sliding_window` is true. */
export function qwenAttention(config: JsonReader, numLayers: number): LayerAttention[] {
  const window = config.boolean('use_sliding_window', false) ? readWindow(config) : 0;
  const firstWindowed = config.nonNegativeInt('max_window_layers', 28);
  return readSlidingLayers(config, numLayers, (layer) => layer >= firstWindowed).map((isSliding) => ({
    window: isSliding ? window : 0,
    rope: 0,
  }));
}

/** Qwen2-MoE: every second of the first `max_window_layers` layers has the window. */
export function qwen2MoeAttention(config: JsonReader, numLayers: number): LayerAttention[] {
  const window = config.boolean('use_sliding_window', false) ? readWindow(config) : 0;
  const numWindowed = config.nonNegativeInt('max_window_layers', 28);
  return readSlidingLayers(config, numLayers, (layer) => layer % 2 === 0 && layer < numWindowed).map((isSliding) => ({
    window: isSliding ? window : 0,
    rope: 0,
  }));
}

/** SmolLM3: `no_rope_layers` holds 1 for layers with a rotation; by default every fourth has none. */
export function smollm3Attention(config: JsonReader, numLayers: number): LayerAttention[] {
  const interval = config.positiveInt('no_rope_layer_interval', 4);
  const flags =
    config.raw('no_rope_layers') ?? Array.from({ length: numLayers }, (_, i) => Number((i + 1) % interval !== 0));
  if (!Array.isArray(flags) || flags.length !== numLayers || !flags.every((flag) => flag === 0 || flag === 1))
    throw config.mismatch('no_rope_layers', `a list of ${numLayers} zeros and ones`, flags);
  const window = config.boolean('use_sliding_window', false) ? readWindow(config, 0) : 0;
  return readSlidingLayers(config, numLayers, (layer) => flags[layer] === 0).map((isSliding, layer) => ({
    window: isSliding ? window : 0,
    rope: flags[layer] === 1 ? 0 : -1,
  }));
}

/** EXAONE 4: full layers have no rotation if other layers have a window. */
export function exaone4Attention(config: JsonReader, numLayers: number): LayerAttention[] {
  const window = readWindow(config);
  const pattern = config.raw('sliding_window_pattern') ?? 4;
  const isPattern = typeof pattern === 'string' ? /^[LG]+$/.test(pattern) : Number.isInteger(pattern) && pattern !== 0;
  if (window > 0 && !isPattern)
    throw config.mismatch('sliding_window_pattern', 'a period, or letters L and G', pattern);
  const isSliding = (layer: number) => {
    if (window === 0) return false;
    if (typeof pattern === 'string') return pattern[layer % pattern.length] === 'L' && layer !== numLayers - 1;
    return typeof pattern === 'number' && (layer + 1) % pattern !== 0;
  };
  return readSlidingLayers(config, numLayers, isSliding).map((sliding) => ({
    window: sliding ? window : 0,
    rope: window > 0 && !sliding ? -1 : 0,
  }));
}

/** Cohere 2: layers with a window have a rotation, and every `sliding_window_pattern`-th layer has neither. */
export function cohere2Attention(config: JsonReader, numLayers: number): LayerAttention[] {
  const period = config.positiveInt('sliding_window_pattern', 4);
  const window = readWindow(config);
  return readSlidingLayers(config, numLayers, (layer) => (layer + 1) % period !== 0).map((isSliding) => ({
    window: isSliding ? window : 0,
    rope: isSliding && window > 0 ? 0 : -1,
  }));
}
