import type { NativeRope } from '../addon-types';
import { CapstanError } from '../errors';
import type { JsonReader } from './json-file';

const ROPE_TYPES = ['default', 'linear', 'dynamic', 'llama3', 'yarn'] as const;

/**
 * Reads the rotary position parameters of config.json in either spelling: `rope_theta` with `rope_scaling`, or
 * `rope_parameters` (transformers 5). Defaults are those of `modeling_rope_utils.py` in transformers.
 */
export function readRope(config: JsonReader, headDim: number, maxPositionEmbeddings: number): NativeRope {
  const parameters = config.object('rope_scaling') ?? config.object('rope_parameters');
  const type = readRopeType(parameters);
  const partial = parameters?.raw('partial_rotary_factor') === undefined ? config : parameters;
  const rope: NativeRope = {
    type,
    theta: (parameters?.has('rope_theta') ? parameters : config).positiveNumber('rope_theta', 10000),
    rotaryDim: Math.trunc(headDim * partial.positiveNumber('partial_rotary_factor', 1)),
    factor: 1,
    originalMaxPositions: maxPositionEmbeddings,
    lowFreqFactor: 1,
    highFreqFactor: 1,
    betaFast: 32,
    betaSlow: 1,
    truncate: true,
    attentionFactor: 1,
  };
  if (rope.rotaryDim < 2 || rope.rotaryDim > headDim || rope.rotaryDim % 2 !== 0) {
    throw config.mismatch(
      'partial_rotary_factor',
      `an even number of rotated dimensions from 2 to ${headDim}`,
      rope.rotaryDim,
    );
  }
  if (parameters !== undefined && type !== 'default') readScaling(rope, parameters, config, maxPositionEmbeddings);
  return rope;
}

function readRopeType(parameters: JsonReader | undefined): NativeRope['type'] {
  if (parameters === undefined) return 'default';
  const perLayer = ['full_attention', 'sliding_attention'].find((key) => parameters.has(key));
  if (perLayer !== undefined) {
    throw new CapstanError('unsupported_model', 'config.json: rotary parameters per layer type are not supported', {
      param: 'rope_parameters',
      expected: 'one set of parameters',
      received: perLayer,
    });
  }
  const name = parameters.string('rope_type', parameters.string('type', 'default'));
  const type = ROPE_TYPES.find((candidate) => candidate === name);
  if (type === undefined)
    throw CapstanError.mismatch('unsupported_model', 'config.json: rope_type', `one of ${ROPE_TYPES.join(', ')}`, name);
  return type;
}

function readScaling(
  rope: NativeRope,
  parameters: JsonReader,
  config: JsonReader,
  maxPositionEmbeddings: number,
): void {
  if (rope.type === 'llama3' || rope.type === 'yarn') {
    // A value at the top level takes precedence, as in the configs of Phi-3.
    const original = config.has('original_max_position_embeddings') ? config : parameters;
    rope.originalMaxPositions = original.positiveInt('original_max_position_embeddings', maxPositionEmbeddings);
  }
  rope.factor = parameters.positiveNumber(
    'factor',
    rope.type === 'yarn' ? maxPositionEmbeddings / rope.originalMaxPositions : undefined,
  );
  if (rope.type === 'llama3') {
    rope.lowFreqFactor = parameters.positiveNumber('low_freq_factor');
    rope.highFreqFactor = parameters.positiveNumber('high_freq_factor');
    if (rope.highFreqFactor <= rope.lowFreqFactor)
      throw parameters.mismatch(
        'high_freq_factor',
        `a number above low_freq_factor (${rope.lowFreqFactor})`,
        rope.highFreqFactor,
      );
  }
  if (rope.type === 'yarn') {
    rope.betaFast = parameters.positiveNumber('beta_fast', 32);
    rope.betaSlow = parameters.positiveNumber('beta_slow', 1);
    rope.truncate = parameters.boolean('truncate', true);
    rope.attentionFactor = parameters.positiveNumber('attention_factor', yarnAttentionFactor(rope.factor, parameters));
  }
}

/**
 * Returns the temperature of YaRN, 0.1·ln(s)+1 (arXiv 2309.00071, section 3.4), or the ratio of two that DeepSeek uses.
 */
function yarnAttentionFactor(factor: number, parameters: JsonReader): number {
  const scale = (weight: number) => (factor <= 1 ? 1 : 0.1 * weight * Math.log(factor) + 1);
  const mscale = parameters.raw('mscale');
  const mscaleAllDim = parameters.raw('mscale_all_dim');
  if (!mscale || !mscaleAllDim) return scale(1);
  return scale(parameters.positiveNumber('mscale')) / scale(parameters.positiveNumber('mscale_all_dim'));
}
