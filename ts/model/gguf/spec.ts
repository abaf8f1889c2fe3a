import type { NativeLayer, NativeModelSpec } from '../../addon-types';
import { MAX_LAYERS, PLAIN_DECODER } from '../config';
import { familyOf } from '../find-family';
import type { Family } from '../family';
import { JsonReader } from '../json-file';
import { ARCHITECTURES, type GgufArchitecture, type GgufSizes, ROPE_DIVISORS } from './architectures';
import { GgufConfig } from './config';
import { expertSizes, hasExperts } from './features';
import type { GgufFiles } from './files';
import { refuseUnknownMath } from './math';
import { readGgufRopes, readRotaryDim } from './rope';
import { unsupported } from './unsupported';

type Tensors = Pick<GgufFiles, 'tensors'>;

const MAX_EXPERTS = 4096;

/** @throws CapstanError `unsupported_model` that names the architecture and the supported ones. */
export function findArchitecture(metadata: JsonReader): { architecture: GgufArchitecture; family: Family } {
  const type = metadata.string('general.type', 'model');
  if (type !== 'model') throw unsupported(metadata, 'general.type', 'model', type);
  const name = metadata.string('general.architecture');
  const architecture = ARCHITECTURES.find((row) => row.name === name);
  if (architecture === undefined) {
    const supported = ARCHITECTURES.map((row) => row.name).join(', ');
    throw unsupported(metadata, 'general.architecture', `one of the architectures ${supported}`, name);
  }
  const variant = architecture.variants?.find(({ key }) => metadata.nonNegativeInt(`${name}.${key}`, 0) > 0);
  return { architecture, family: familyOf((variant ?? architecture).modelType) };
}

/** Reads the spec, without the divisors of rotary frequencies. What no key states is seen from the tensors. */
export function readGgufSpec(
  metadata: JsonReader,
  architecture: GgufArchitecture,
  family: Family,
  { tensors }: Tensors,
): NativeModelSpec {
  const key = (name: string) => `${architecture.name}.${name}`;
  refuseUnknownMath(metadata, architecture, family);
  const sizes = readSizes(metadata, key);
  const config = new GgufConfig(metadata, architecture, sizes);
  const layers = readLayers(config, family, sizes.numLayers, { tensors });
  const moe = readMoe(config, family, { layers, hiddenSize: sizes.hiddenSize }, { tensors });
  const maxPositionEmbeddings = metadata.positiveInt(key('context_length'));
  const rotaryDim = readRotaryDim(metadata, architecture, sizes.headDim);
  const ropeSizes = { rotaryDim, maxPositionEmbeddings, slidingRopeTheta: family.slidingRopeTheta };
  return {
    ...PLAIN_DECODER,
    vocabSize: tensors.get('token_embd.weight')?.shape[0] ?? metadata.positiveInt(key('vocab_size')),
    hiddenSize: sizes.hiddenSize,
    intermediateSize: perLayerInt(metadata, key('feed_forward_length'), moe?.intermediateSize),
    numHeads: sizes.numHeads,
    numKvHeads: sizes.numKvHeads,
    headDim: sizes.headDim,
    rmsNormEps: metadata.positiveNumber(key('attention.layer_norm_rms_epsilon')),
    hiddenAct: 'silu',
    tieWordEmbeddings: !tensors.has('output.weight'),
    attentionScale: 1 / Math.sqrt(sizes.headDim),
    layers,
    ropes: readGgufRopes(metadata, architecture, ropeSizes, tensors.has(ROPE_DIVISORS.long)),
    maxPositionEmbeddings,
    ...family.changes?.(config, sizes),
    ...architecture.changes,
    ...(moe === undefined ? {} : { moe }),
  };
}

function readSizes(metadata: JsonReader, key: (name: string) => string): GgufSizes & { numKvHeads: number } {
  const hiddenSize = metadata.positiveInt(key('embedding_length'));
  const numLayers = metadata.positiveInt(key('block_count'), undefined, MAX_LAYERS);
  const numHeads = perLayerInt(metadata, key('attention.head_count'));
  const numKvHeads = perLayerInt(metadata, key('attention.head_count_kv'), numHeads);
  if (numHeads % numKvHeads !== 0)
    throw metadata.mismatch(key('attention.head_count_kv'), `a divisor of the ${numHeads} heads`, numKvHeads);
  const headDim = metadata.positiveInt(key('attention.key_length'), hiddenSize / numHeads);
  if (headDim % 2 !== 0) throw metadata.mismatch(key('attention.key_length'), 'an even number of dimensions', headDim);
  const valueDim = metadata.positiveInt(key('attention.value_length'), headDim);
  if (valueDim !== headDim)
    throw unsupported(metadata, key('attention.value_length'), `${headDim}, as for keys`, valueDim);
  return { hiddenSize, numLayers, numHeads, numKvHeads, headDim };
}

/** The windows follow the pattern of the file, if it has one, in any family. */
function readLayers(config: GgufConfig, family: Family, numLayers: number, files: Tensors): NativeLayer[] {
  const window = config.isNull('sliding_window') ? 0 : config.nonNegativeInt('sliding_window', 0);
  return family.attention(config, numLayers).map((layer, i) => ({
    mixer: 'attention',
    ...layer,
    ...(config.isSliding === undefined ? {} : { window: config.isSliding[i] ? window : 0 }),
    isMoe: family.moe !== undefined && hasExperts(files, i),
  }));
}

/** The sizes of experts are those of the first layer that has some: not all files state them. */
function readMoe(
  config: GgufConfig,
  family: Family,
  { layers, hiddenSize }: { layers: NativeLayer[]; hiddenSize: number },
  files: Tensors,
): NativeModelSpec['moe'] {
  const first = layers.findIndex(({ isMoe }) => isMoe);
  if (first === -1) return undefined;
  config.positiveInt('num_experts', undefined, MAX_EXPERTS);
  config.positiveInt('num_experts_per_tok', undefined, MAX_EXPERTS);
  const { layers: _layers, ...moe } = family.moe!(config, hiddenSize);
  const { expert = moe.intermediateSize, shared } = expertSizes(files, first);
  return { ...moe, intermediateSize: expert, sharedIntermediateSize: shared };
}

/** Some files give one number per layer. Only equal ones are supported. */
function perLayerInt(metadata: JsonReader, key: string, fallback?: number): number {
  const value = metadata.raw(key);
  if (!ArrayBuffer.isView(value)) return metadata.positiveInt(key, fallback);
  const numbers = new Set(Array.from(value as Int32Array, Number));
  const [first] = numbers;
  if (numbers.size !== 1) throw unsupported(metadata, key, 'the same number for all layers', value);
  return new JsonReader({ [key]: first }, metadata.where).positiveInt(key);
}
