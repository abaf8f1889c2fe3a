import type { NativeLayer, NativeModelSpec, NativeRecurrent } from '../../addon-types';
import type { CapstanError } from '../../errors';
import { ACTIVATIONS } from '../activations';
import { MAX_LAYERS, PLAIN_DECODER } from '../config';
import { familyOf } from '../find-family';
import type { Family } from '../family';
import { JsonReader } from '../json-file';
import { ARCHITECTURES, type GgufArchitecture, type GgufLayers, type GgufSizes, ROPE_DIVISORS } from './architectures';
import { GgufConfig } from './config';
import { expertSizes, hasExperts, lacksValues } from './features';
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
  const family = familyOf((variant ?? architecture).modelType, architecture.className);
  return { architecture, family };
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
  const { numLayers, hiddenSize } = sizes;
  const stated = readStatedLayers(metadata, key, { sizes, tensors });
  const config = new GgufConfig(metadata, architecture, { sizes, layers: stated });
  const alike = readLayers(config, family, sizes, { tensors });
  const moe = readMoe(config, family, { layers: alike, hiddenSize, architecture }, { tensors });
  const intermediateSize =
    stated.mlpSizes.at(0) ?? metadata.positiveInt(key('feed_forward_length'), moe?.intermediateSize);
  const layers = family.layers?.(config, alike, { intermediateSize }) ?? alike;
  const numKvHeads = stated.kvHeads.find((count) => count > 0) ?? sizes.numHeads;
  checkStatedLayers(metadata, key, stated, { layers, numKvHeads, intermediateSize });
  const maxPositionEmbeddings = metadata.positiveInt(key('context_length'));
  const rotaryDim = readRotaryDim(metadata, architecture, sizes.fullHeadDim);
  const ropeSizes = { rotaryDim, maxPositionEmbeddings, slidingRopeTheta: family.slidingRopeTheta };
  const recurrent = family.recurrent?.(config, numLayers, hiddenSize);
  return {
    ...PLAIN_DECODER,
    vocabSize: tensors.get('token_embd.weight')?.shape[0] ?? metadata.positiveInt(key('vocab_size')),
    hiddenSize,
    intermediateSize,
    numHeads: sizes.numHeads,
    numKvHeads,
    headDim: sizes.headDim,
    rmsNormEps: metadata.positiveNumber(key(architecture.normEpsKey ?? 'attention.layer_norm_rms_epsilon')),
    hiddenAct: 'silu',
    attentionScale: 1 / Math.sqrt(sizes.headDim),
    layers,
    ropes:
      family.hasRope === false ? [] : readGgufRopes(metadata, architecture, ropeSizes, tensors.has(ROPE_DIVISORS.long)),
    maxPositionEmbeddings,
    ...family.changes?.(config, sizes),
    ...architecture.changes,
    ...readActivation(metadata, key('hidden_activation')),
    tieWordEmbeddings: !tensors.has('output.weight'),
    ...(recurrent?.isRecurrent.includes(true) ? { recurrent: recurrentSizes(recurrent.sizes, architecture) } : {}),
    ...(moe === undefined ? {} : { moe }),
  };
}

/** Most architectures have one activation, which no key states. */
function readActivation(metadata: JsonReader, key: string): Pick<Partial<NativeModelSpec>, 'hiddenAct'> {
  if (!metadata.has(key)) return {};
  const name = metadata.string(key);
  if (Object.hasOwn(ACTIVATIONS, name)) return { hiddenAct: ACTIVATIONS[name] };
  throw unsupported(metadata, key, `one of ${Object.keys(ACTIVATIONS).join(', ')}`, name);
}

function recurrentSizes(sizes: NativeRecurrent, { headsAlternate = false }: GgufArchitecture): NativeRecurrent {
  return headsAlternate && sizes.numHeads > sizes.numGroups ? { ...sizes, headsAlternate } : sizes;
}

/** Layers with a window may have smaller heads. */
function readSizes(metadata: JsonReader, key: (name: string) => string): GgufSizes & { fullHeadDim: number } {
  const hiddenSize = metadata.positiveInt(key('embedding_length'));
  const numBlocks = metadata.positiveInt(key('block_count'), undefined, MAX_LAYERS);
  // Layers for the prediction of several tokens are the last ones.
  const numLayers = numBlocks - metadata.nonNegativeInt(key('nextn_predict_layers'), 0);
  if (numLayers < 1)
    throw metadata.mismatch(key('nextn_predict_layers'), `a number below ${numBlocks}`, numBlocks - numLayers);
  const heads = new Set(perLayer(metadata, key('attention.head_count'), { numLayers, numBlocks }));
  const [numHeads] = heads;
  if (heads.size !== 1) throw notAlike(metadata, key('attention.head_count'));
  const fullHeadDim = readHeadDim(metadata, key, '', hiddenSize / numHeads);
  const headDim = readHeadDim(metadata, key, '_swa', fullHeadDim);
  return { hiddenSize, numLayers, numBlocks, numHeads, headDim, fullHeadDim };
}

function readHeadDim(metadata: JsonReader, key: (name: string) => string, ending: string, fallback: number): number {
  const name = key(`attention.key_length${ending}`);
  const headDim = metadata.positiveInt(name, fallback);
  if (headDim % 2 !== 0) throw metadata.mismatch(name, 'an even number of dimensions', headDim);
  const valueDim = metadata.positiveInt(key(`attention.value_length${ending}`), headDim);
  if (valueDim !== headDim)
    throw unsupported(metadata, key(`attention.value_length${ending}`), `${headDim}, as for keys`, valueDim);
  return headDim;
}

function readStatedLayers(
  metadata: JsonReader,
  key: (name: string) => string,
  { sizes, tensors }: { sizes: GgufSizes } & Tensors,
): GgufLayers {
  const { numLayers, numHeads } = sizes;
  const kvHeads = perLayer(metadata, key('attention.head_count_kv'), sizes, numHeads);
  const wrong = kvHeads.find((count) => count > 0 && numHeads % count !== 0);
  if (wrong !== undefined)
    throw metadata.mismatch(key('attention.head_count_kv'), `a divisor of the ${numHeads} heads`, wrong);
  const hasMlpSizes = metadata.has(key('feed_forward_length'));
  return {
    kvHeads,
    mlpSizes: hasMlpSizes ? perLayer(metadata, key('feed_forward_length'), sizes) : [],
    numExperts: metadata.nonNegativeInt(key('expert_count'), 0),
    lacksValues: lacksValues({ tensors }, numLayers),
    hasQkNorm: tensors.has('blk.0.attn_q_norm.weight'),
  };
}

/** @throws CapstanError `unsupported_model` unless the sizes in the file are those of the family's layers. */
function checkStatedLayers(
  metadata: JsonReader,
  key: (name: string) => string,
  { kvHeads, mlpSizes }: GgufLayers,
  spec: Pick<NativeModelSpec, 'layers' | 'numKvHeads' | 'intermediateSize'>,
): void {
  // Some files have the number of the layers of attention for recurrent layers too.
  const isKvHeads = ({ mixer, numKvHeads = spec.numKvHeads }: NativeLayer, i: number) =>
    kvHeads[i] === numKvHeads || (mixer !== 'attention' && kvHeads[i] === 0);
  if (!spec.layers.every(isKvHeads)) throw notAlike(metadata, key('attention.head_count_kv'));
  const isMlpSize = ({ intermediateSize = spec.intermediateSize }: NativeLayer, i: number) =>
    mlpSizes.length === 0 || mlpSizes[i] === intermediateSize;
  if (!spec.layers.every(isMlpSize)) throw notAlike(metadata, key('feed_forward_length'));
}

function notAlike(metadata: JsonReader, key: string): CapstanError {
  return unsupported(metadata, key, 'the same number for all layers', metadata.raw(key));
}

/** The windows follow the pattern of the file, if it has one, in any family. */
function readLayers(
  config: GgufConfig,
  family: Family,
  { numLayers, hiddenSize }: GgufSizes,
  files: Tensors,
): NativeLayer[] {
  const window = config.isNull('sliding_window') ? 0 : config.nonNegativeInt('sliding_window', 0);
  const recurrent = family.recurrent?.(config, numLayers, hiddenSize);
  return family.attention(config, numLayers).map((layer, i): NativeLayer => {
    const isMoe = family.moe !== undefined && hasExperts(files, i);
    if (recurrent?.isRecurrent[i]) return { mixer: recurrent.mixer, window: 0, rope: -1, isMoe };
    return {
      mixer: 'attention',
      ...layer,
      ...(config.isSliding === undefined ? {} : { window: config.isSliding[i] ? window : 0 }),
      isMoe,
    };
  });
}

/** The sizes of experts are those of the first layer that has some: not all files state them. */
function readMoe(
  config: GgufConfig,
  family: Family,
  { layers, hiddenSize, architecture }: { layers: NativeLayer[]; hiddenSize: number; architecture: GgufArchitecture },
  files: Tensors,
): NativeModelSpec['moe'] {
  const first = layers.findIndex(({ isMoe }) => isMoe);
  if (first === -1) return undefined;
  config.positiveInt('num_experts', undefined, MAX_EXPERTS);
  config.positiveInt('num_experts_per_tok', undefined, MAX_EXPERTS);
  const { layers: _layers, ...moe } = family.moe!(config, hiddenSize);
  const { expert = moe.intermediateSize, shared } = expertSizes(files, first, architecture);
  return { ...moe, intermediateSize: expert, sharedIntermediateSize: shared };
}

/** Some files give one number for each layer. */
function perLayer(
  metadata: JsonReader,
  key: string,
  { numLayers, numBlocks }: Pick<GgufSizes, 'numLayers' | 'numBlocks'>,
  fallback?: number,
): number[] {
  const value = metadata.raw(key);
  if (!ArrayBuffer.isView(value)) return new Array<number>(numLayers).fill(metadata.positiveInt(key, fallback));
  const numbers = Array.from(value as Int32Array, Number);
  if (numbers.length !== numBlocks) throw metadata.mismatch(key, `${numBlocks} numbers`, value);
  // 0 stands for "none".
  return numbers
    .slice(0, numLayers)
    .map((number) =>
      new JsonReader({ [key]: number }, metadata.where)[number === 0 ? 'nonNegativeInt' : 'positiveInt'](key),
    );
}
