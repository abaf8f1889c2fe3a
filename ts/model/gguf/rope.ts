import type { NativeRope } from '../../addon-types';
import type { JsonReader } from '../json-file';
import { plainRope } from '../rope';
import type { GgufArchitecture } from './architectures';
import { unsupported } from './unsupported';

const ROPE_TYPES = ['none', 'linear', 'yarn', 'longrope'];
/** Default of llama.cpp. */
const DEFAULT_ROPE_THETA = 10_000;

type Key = (name: string) => string;

/** Returns the number of rotated dimensions of a head. */
export function readRotaryDim(metadata: JsonReader, { name: arch }: GgufArchitecture, headDim: number): number {
  const key = `${arch}.rope.dimension_count`;
  const rotaryDim = metadata.positiveInt(key, headDim);
  if (rotaryDim > headDim || rotaryDim % 2 !== 0)
    throw metadata.mismatch(key, `an even number of at most ${headDim}`, rotaryDim);
  return rotaryDim;
}

/**
 * Reads the rotation of the layers, and that of sliding layers if it differs.
 * The divisors of the frequencies are tensors, so they are not in the result.
 * @param sizes `slidingRopeTheta` is the default base of sliding layers; undefined: all layers have one rotation.
 * @param isLongRope Whether the file has the tensors of LongRoPE.
 */
export function readGgufRopes(
  metadata: JsonReader,
  architecture: GgufArchitecture,
  sizes: { rotaryDim: number; maxPositionEmbeddings: number; slidingRopeTheta: number | undefined },
  isLongRope: boolean,
): NativeRope[] {
  const rope = readGgufRope(metadata, architecture, sizes, isLongRope);
  if (sizes.slidingRopeTheta === undefined) return [rope];
  const theta = metadata.positiveNumber(`${architecture.name}.rope.freq_base_swa`, sizes.slidingRopeTheta);
  const rotaryDim = metadata.positiveInt(`${architecture.name}.rope.dimension_count_swa`, sizes.rotaryDim);
  return [rope, { ...plainRope(rotaryDim, sizes.maxPositionEmbeddings), theta }];
}

function readGgufRope(
  metadata: JsonReader,
  { name: arch, truncatesYarn = true }: GgufArchitecture,
  { rotaryDim, maxPositionEmbeddings }: { rotaryDim: number; maxPositionEmbeddings: number },
  isLongRope: boolean,
): NativeRope {
  const key = (name: string) => `${arch}.rope.${name}`;
  const factor = readRopeFactor(metadata, key);
  const type = metadata.string(key('scaling.type'), factor === undefined ? 'none' : 'linear');
  if (!ROPE_TYPES.includes(type))
    throw unsupported(metadata, key('scaling.type'), `one of ${ROPE_TYPES.join(', ')}`, type);
  const rope: NativeRope = {
    ...plainRope(rotaryDim, maxPositionEmbeddings),
    theta: metadata.positiveNumber(key('freq_base'), DEFAULT_ROPE_THETA),
    queryScaleGrowth: readGrowth(metadata, arch),
  };
  if (isLongRope) return { ...rope, ...longRope(metadata, key, maxPositionEmbeddings) };
  if (type === 'longrope')
    throw unsupported(metadata, key('scaling.type'), 'the tensors of LongRoPE in the file', 'longrope without them');
  if (type === 'none' || factor === undefined || factor === 1) return rope;
  if (type === 'linear') return { ...rope, type, factor };
  return {
    ...rope,
    type: 'yarn',
    factor,
    originalMaxPositions: originalLength(metadata, key, maxPositionEmbeddings),
    betaFast: metadata.positiveNumber(key('scaling.yarn_beta_fast'), 32),
    betaSlow: metadata.positiveNumber(key('scaling.yarn_beta_slow'), 1),
    truncate: truncatesYarn,
    attentionFactor: yarnAttentionFactor(metadata, key, factor),
  };
}

/** Ministral 3 scales q by the position in units of the trained length. */
function readGrowth(metadata: JsonReader, arch: string): number {
  const key = `${arch}.attention.temperature_scale`;
  return (metadata.raw(key) ?? 0) === 0 ? 0 : metadata.positiveNumber(key);
}

/** LongRoPE: the key `attn_factor` holds the temperature. */
function longRope(metadata: JsonReader, key: Key, maxPositionEmbeddings: number): Partial<NativeRope> {
  const originalMaxPositions = originalLength(metadata, key, maxPositionEmbeddings);
  const factor = maxPositionEmbeddings / originalMaxPositions;
  const growth = factor <= 1 ? 1 : Math.sqrt(1 + Math.log(factor) / Math.log(originalMaxPositions));
  return {
    type: 'longrope',
    originalMaxPositions,
    attentionFactor: metadata.positiveNumber(key('scaling.attn_factor'), growth),
  };
}

function originalLength(metadata: JsonReader, key: Key, maxPositionEmbeddings: number): number {
  return metadata.positiveInt(key('scaling.original_context_length'), maxPositionEmbeddings);
}

/** Old files have `rope.scale_linear`. */
function readRopeFactor(metadata: JsonReader, key: Key): number | undefined {
  const name = [key('scaling.factor'), key('scale_linear')].find((candidate) => metadata.has(candidate));
  return name === undefined || metadata.raw(name) === 0 ? undefined : metadata.positiveNumber(name);
}

/**
 * The temperature of YaRN: 0.1·ln(s)+1 unless the file has another one, times `attn_factor`. `yarn_log_multiplier` is
 * `mscale_all_dim` of DeepSeek.
 */
function yarnAttentionFactor(metadata: JsonReader, key: Key, factor: number): number {
  const extrapolation = metadata.raw(key('scaling.yarn_ext_factor')) ?? 1;
  if (extrapolation !== 1) throw unsupported(metadata, key('scaling.yarn_ext_factor'), '1', extrapolation);
  const scale = (weight: number) => (factor <= 1 ? 1 : 0.1 * weight * Math.log(factor) + 1);
  const multiplier = metadata.raw(key('scaling.yarn_log_multiplier')) ?? 0;
  const usual = multiplier === 0 ? scale(1) : scale(1) / scale(Number(multiplier));
  return (
    metadata.positiveNumber(key('scaling.attn_factor'), 1) *
    metadata.positiveNumber(key('scaling.yarn_attn_factor'), usual)
  );
}
