import type { NativeActivation, NativeLayer, NativeModelSpec, NativeMoe, NativePooling } from '../addon-types';
import type { JsonObject, JsonReader } from './json-file';
import type { RecurrentLayers } from './recurrent';

/** Values that transformers uses if config.json does not set them. */
export interface FamilyDefaults {
  hiddenSize?: number;
  numLayers?: number;
  numHeads?: number;
  vocabSize: number;
  intermediateSize: number;
  /** undefined: the number of query heads. */
  numKvHeads?: number;
  /** undefined: hidden size divided by the number of heads. */
  headDim?: number;
  rmsNormEps?: number;
  hiddenAct?: string;
  maxPositionEmbeddings: number;
  ropeTheta?: number;
  /** `rope_parameters`. */
  ropeParameters?: JsonObject;
  /** The part of a head that is rotated. */
  partialRotaryFactor?: number;
  isTied?: boolean;
  /** null: the class has no default. */
  eosTokenId: number | readonly number[] | null;
}

/** Defaults of most classes. */
export const SHARED_DEFAULTS = {
  hiddenSize: 4096,
  numLayers: 32,
  numHeads: 32,
  rmsNormEps: 1e-6,
  ropeTheta: 10_000,
  hiddenAct: 'silu',
} as const;

/** The optional tensors of a model. */
export interface ModelFeatures {
  qkvBias: boolean;
  outputBias: boolean;
  mlpBias: boolean;
  hasNormBias?: boolean;
  /** Where the checkpoint keeps the projections of attention and of a dense MLP. */
  isQkvFused?: boolean;
  isGateUpFused?: boolean;
  /** Full layers have no projection of values: their values are the keys before norm and rotation. */
  hasEqualKeysAndValues?: boolean;
  /** Rotary positions turn neighbouring dimensions of a head instead of its halves. */
  isRopeInterleaved?: boolean;
  /** The rows of layers without rotary positions are stored so, too. Adapters have them in order. */
  interleavesAllLayers?: boolean;
  /** How the checkpoint stores the experts. */
  experts?: ExpertTensors;
  /** Recurrent layers: whether their projections and their convolution have biases. */
  recurrentBias?: boolean;
  convBias?: boolean;
}

/** Names and layout of the tensors of a mixture of experts, relative to the layer. */
export interface ExpertTensors {
  router: string;
  /** The modules in transformers 5, if their names differ from those of the tensors. */
  inTransformers?: { router: string; experts: string };
  hasRouterBias?: boolean;
  /** A bias that only chooses the experts. */
  selectionBias?: string;
  /** The projections of one expert; `*` stands for its number. `isStacked`: a tensor holds those of all experts. */
  each?: { gate: string; up: string; down: string; hasBias?: boolean; isStacked?: boolean };
  /** Where a checkpoint without those has them: (experts, gates then ups, inputs) and (experts, outputs, inputs). */
  eachIn?: { gateUp: string; down: string };
  /** Tensors that hold all experts, and gate and up as one projection. */
  stacked?: {
    gateUp: string;
    down: string;
    /** (experts, features) */
    gateUpBias?: string;
    downBias?: string;
    /** A gate, then its up, then the next gate. */
    isInterleaved?: boolean;
    /** (experts, inputs, features) instead of (experts, features, inputs). */
    isTransposed?: boolean;
  };
  shared?: { gate?: string; up?: string; gateUp?: string; down: string };
  sharedGate?: string;
  /** Factors of the weights of a token's experts. */
  scales?: string;
  /** Of `NativeMoe.hasSeparateNorms`. */
  norms?: { router: string; experts: string; expertsOut: string; sharedOut: string };
}

/** What a layer does with positions. */
export type LayerAttention = Pick<NativeLayer, 'window' | 'rope' | 'lacksInputNorm'>;

/** A layer of a pooling head, and where the checkpoint has it. */
export interface HeadLayer {
  outputSize: number;
  activation: NativeActivation;
  tensors: HeadTensors;
}

/** Names in the checkpoint, without `.weight`. */
export interface HeadTensors {
  name: string;
  hasBias: boolean;
  norm?: { name: string; hasBias: boolean };
  /** A folder whose file holds them. Default: the checkpoint. */
  folder?: string;
}

/** What a model returns in place of text. */
export interface FamilyPooling {
  task: 'embed' | 'score';
  /** Unless the files of sentence-transformers say otherwise. */
  kind(config: JsonReader): NativePooling['kind'];
  head(config: JsonReader, hiddenSize: number): HeadLayer[];
  /** The head gives the logits of yes and no, in the prompt of Qwen3-Reranker. */
  isYesNo?: boolean;
}

/** What a family changes in a spec like that of Llama. */
export type SpecChanges = Partial<
  Omit<NativeModelSpec, 'layers' | 'ropes' | 'moe' | 'recurrent' | 'vocabSize' | 'hiddenSize' | 'numHeads' | 'pooling'>
>;

/** One architecture: how its config.json maps to a spec. To add a family, add a row to `FAMILIES`. */
export interface Family {
  modelType: string;
  architecture: string;
  defaults: FamilyDefaults;
  features(config: JsonReader): ModelFeatures;
  /** Returns the window and the rotation of each layer; rotation 1 is that of `sliding_attention` layers. */
  attention(config: JsonReader, numLayers: number): LayerAttention[];
  /** The default base of the rotation of sliding layers. undefined: all layers have one rotation. */
  slidingRopeTheta?: number;
  /** false: no layer has a rotation. */
  hasRope?: boolean;
  /** Its tokens see those after them. */
  isEncoder?: boolean;
  /** Chooses the row among others of the same model type, whatever the architecture. */
  isFor?(config: JsonReader): boolean;
  /** Absent: the model generates text. */
  pooling?: FamilyPooling;
  changes?(config: JsonReader, sizes: { hiddenSize: number; headDim: number }): SpecChanges;
  /** Changes layers that differ from the model. */
  layers?(config: JsonReader, layers: NativeLayer[], sizes: { intermediateSize: number }): NativeLayer[];
  /** The layers that replace attention. */
  recurrent?(config: JsonReader, numLayers: number, hiddenSize: number): RecurrentLayers;
  moe?(config: JsonReader, hiddenSize: number): NativeMoe & { layers: (layer: number) => boolean };
  /** Checkpoints can hold an MTP head: a layer of attention that proposes tokens. */
  hasMtpHead?: boolean;
  /** Keys of config.json that differ from those of Llama, by the usual key. */
  keys?: Readonly<Record<string, string>>;
  /** Names in the checkpoint that differ from those of Llama, by canonical name. */
  names?: Readonly<Record<string, string>>;
}
