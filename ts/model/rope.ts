import type { NativeRope } from '../addon-types';
import { CapstanError } from '../errors';
import { type FamilyDefaults, SHARED_DEFAULTS } from './family';
import { JsonReader } from './json-file';

/** `proportional` becomes `linear` with divisors. */
const ROPE_TYPES = ['default', 'linear', 'dynamic', 'llama3', 'yarn', 'longrope', 'proportional'] as const;

/** What the class of a model says about its rotations. */
export type RopeDefaults = Pick<FamilyDefaults, 'ropeTheta' | 'ropeParameters' | 'partialRotaryFactor'>;

/**
 * Reads the rotary position parameters of config.json in either spelling: `rope_theta` with `rope_scaling`, or
 * `rope_parameters` (transformers 5). Defaults are those of `modeling_rope_utils.py` in transformers.
 */
export function readRope(
  config: JsonReader,
  headDim: number,
  maxPositionEmbeddings: number,
  defaults: RopeDefaults = {},
): NativeRope {
  const { ropeParameters } = defaults;
  const parameters =
    config.object('rope_scaling') ??
    config.object('rope_parameters') ??
    (ropeParameters && new JsonReader(ropeParameters, `${config.where}: rope_parameters`));
  return ropeOf(config, parameters, headDim, maxPositionEmbeddings, defaults);
}

/**
 * Reads the rotations of full and of sliding layers. Before transformers 5, `rope_theta` and `rope_scaling` were those
 * of full layers.
 */
export function readRopePerLayerType(
  config: JsonReader,
  headDim: { full: number; sliding: number },
  maxPositionEmbeddings: number,
  defaults: RopeDefaults & { slidingRopeTheta: number },
): NativeRope[] {
  const ofSliding = { ...defaults, ropeTheta: defaults.slidingRopeTheta };
  const parameters = config.object('rope_parameters');
  if (parameters?.has('full_attention') || parameters?.has('sliding_attention'))
    return [
      ropeOf(config, parameters.object('full_attention'), headDim.full, maxPositionEmbeddings, defaults),
      ropeOf(config, parameters.object('sliding_attention'), headDim.sliding, maxPositionEmbeddings, ofSliding),
    ];
  // ModernBERT has other names.
  const ropeTheta = config.positiveNumber('global_rope_theta', defaults.ropeTheta ?? SHARED_DEFAULTS.ropeTheta);
  const full = readRope(config, headDim.full, maxPositionEmbeddings, { ...defaults, ropeTheta });
  const slidingDim = headDim.full === headDim.sliding ? full.rotaryDim : headDim.sliding;
  const local = config.positiveNumber('local_rope_theta', defaults.slidingRopeTheta);
  const theta = config.positiveNumber('rope_local_base_freq', local);
  if (config.string('model_type', '') === 'modernbert') return [full, { ...full, theta }];
  return [full, { ...plainRope(slidingDim, maxPositionEmbeddings), theta }];
}

/** A rotation without scaling. */
export function plainRope(rotaryDim: number, maxPositionEmbeddings: number): NativeRope {
  return {
    type: 'default',
    theta: SHARED_DEFAULTS.ropeTheta,
    rotaryDim,
    factor: 1,
    originalMaxPositions: maxPositionEmbeddings,
    lowFreqFactor: 1,
    highFreqFactor: 1,
    betaFast: 32,
    betaSlow: 1,
    truncate: true,
    attentionFactor: 1,
    queryScaleGrowth: 0,
  };
}

/** A part of the dimensions is turned, with the frequencies of a rotation of the complete head. */
function proportionalRope(
  parameters: JsonReader,
  headDim: number,
  share: number,
  maxPositionEmbeddings: number,
): NativeRope {
  const numTurned = Math.trunc((share * headDim) / 2);
  const divisors = Float32Array.from({ length: headDim / 2 }, (_, i) => (i < numTurned ? 1 : Infinity));
  return {
    ...plainRope(headDim, maxPositionEmbeddings),
    type: 'linear',
    factor: parameters.positiveNumber('factor', 1),
    frequencyDivisors: divisors,
  };
}

function ropeOf(
  config: JsonReader,
  parameters: JsonReader | undefined,
  headDim: number,
  maxPositionEmbeddings: number,
  defaults: RopeDefaults,
): NativeRope {
  const type = readRopeType(parameters, config.string('model_type', ''));
  const partial = parameters?.raw('partial_rotary_factor') === undefined ? config : parameters;
  // MiniMax M2 states the dimensions themselves.
  const turned = config.raw('rotary_dim') === undefined ? undefined : config.positiveInt('rotary_dim') / headDim;
  const share = partial.positiveNumber('partial_rotary_factor', turned ?? defaults.partialRotaryFactor ?? 1);
  const rope =
    type === 'proportional'
      ? proportionalRope(parameters!, headDim, share, maxPositionEmbeddings)
      : { ...plainRope(Math.trunc(headDim * share), maxPositionEmbeddings), type };
  rope.theta = (parameters?.has('rope_theta') ? parameters : config).positiveNumber(
    'rope_theta',
    defaults.ropeTheta ?? SHARED_DEFAULTS.ropeTheta,
  );
  if (rope.rotaryDim < 2 || rope.rotaryDim > headDim || rope.rotaryDim % 2 !== 0) {
    throw config.mismatch(
      'partial_rotary_factor',
      `an even number of rotated dimensions from 2 to ${headDim}`,
      rope.rotaryDim,
    );
  }
  if (parameters !== undefined && type !== 'default' && type !== 'proportional')
    readScaling(rope, parameters, config, maxPositionEmbeddings);
  return rope;
}

function readRopeType(parameters: JsonReader | undefined, modelType: string): (typeof ROPE_TYPES)[number] {
  if (parameters === undefined) return 'default';
  const perLayer = ['full_attention', 'sliding_attention'].find((key) => parameters.has(key));
  if (perLayer !== undefined) {
    const where = 'config.json: rotary parameters per layer type are not supported for this architecture';
    const expected = 'one set of parameters';
    throw new CapstanError('unsupported_model', where, { param: 'rope_parameters', expected, received: perLayer });
  }
  const name = parameters.string('rope_type', parameters.string('type', 'default'));
  // Earlier configs of Phi-3 call LongRoPE so.
  if (modelType === 'phi3' && (name === 'su' || name === 'yarn')) return 'longrope';
  // Positions in images have several dimensions. Those of texts are the same in each.
  if (name === 'mrope') return 'default';
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
  if (rope.type === 'dynamic' && parameters.raw('alpha') !== undefined) {
    // Hunyuan: a base that is stretched once, whatever the length.
    rope.type = 'default';
    rope.theta *= parameters.positiveNumber('alpha') ** (rope.rotaryDim / (rope.rotaryDim - 2));
    return;
  }
  if (rope.type === 'longrope') {
    readLongRope(rope, parameters, config, maxPositionEmbeddings);
    return;
  }
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
    if (parameters.raw('llama_4_scaling_beta') !== undefined)
      rope.queryScaleGrowth = parameters.positiveNumber('llama_4_scaling_beta');
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

/** LongRoPE (arXiv 2402.13753): divisors of the frequencies for contexts up to the trained length, and above. */
function readLongRope(
  rope: NativeRope,
  parameters: JsonReader,
  config: JsonReader,
  maxPositionEmbeddings: number,
): void {
  const original = config.has('original_max_position_embeddings') ? config : parameters;
  rope.originalMaxPositions = original.positiveInt('original_max_position_embeddings', maxPositionEmbeddings);
  const count = rope.rotaryDim / 2;
  const divisors = (key: string) => {
    const values = parameters.raw(key);
    if (
      !Array.isArray(values) ||
      values.length !== count ||
      !values.every((value) => Number.isFinite(value) && value > 0)
    )
      throw parameters.mismatch(key, `a list of ${count} numbers above 0`, values);
    return Float32Array.from(values as number[]);
  };
  rope.frequencyDivisors = divisors('short_factor');
  rope.longFrequencyDivisors = divisors('long_factor');
  const factor = parameters.positiveNumber('factor', maxPositionEmbeddings / rope.originalMaxPositions);
  const growth = factor <= 1 ? 1 : Math.sqrt(1 + Math.log(factor) / Math.log(rope.originalMaxPositions));
  rope.attentionFactor = parameters.positiveNumber('attention_factor', growth);
}
