import type { NativeModelSpec } from '../addon-types';
import { CapstanError } from '../errors';
import type { JsonReader } from './json-file';

/** Values that transformers uses if config.json does not set them. */
interface FamilyDefaults {
  vocabSize: number;
  intermediateSize: number;
  /** undefined: the number of query heads. */
  numKvHeads?: number;
  /** undefined: hidden size divided by the number of heads. */
  headDim?: number;
  maxPositionEmbeddings: number;
  /** null: the class has no default. */
  eosTokenId: number | null;
}

/** The optional tensors of a model. */
export interface ModelFeatures {
  qkvBias: boolean;
  outputBias: boolean;
  mlpBias: boolean;
  qkNorm: boolean;
}

/** One architecture: how its config.json maps to a spec. To add a dense family, add a row to `FAMILIES`. */
export interface Family {
  modelType: string;
  architecture: string;
  defaults: FamilyDefaults;
  features(config: JsonReader): ModelFeatures;
  /** Returns the attention window of each layer: how many of the newest positions a query attends to; 0 = all. */
  windows(config: JsonReader, numLayers: number): number[];
}

/** Defaults that all present families share. */
export const SHARED_DEFAULTS = { hiddenSize: 4096, numLayers: 32, numHeads: 32, rmsNormEps: 1e-6 } as const;

export const FAMILIES: readonly Family[] = [
  {
    modelType: 'llama',
    architecture: 'LlamaForCausalLM',
    defaults: { vocabSize: 32000, intermediateSize: 11008, maxPositionEmbeddings: 2048, eosTokenId: 2 },
    features: (config) =>
      biases(
        config.boolean('attention_bias', false),
        config.boolean('attention_bias', false),
        config.boolean('mlp_bias', false),
      ),
    windows: (_config, numLayers) => repeat(0, numLayers),
  },
  {
    modelType: 'mistral',
    architecture: 'MistralForCausalLM',
    defaults: {
      vocabSize: 32000,
      intermediateSize: 14336,
      numKvHeads: 8,
      maxPositionEmbeddings: 131072,
      eosTokenId: 2,
    },
    features: () => biases(false, false, false),
    windows: (config, numLayers) => repeat(readWindow(config), numLayers),
  },
  {
    modelType: 'qwen2',
    architecture: 'Qwen2ForCausalLM',
    defaults: {
      vocabSize: 151936,
      intermediateSize: 22016,
      numKvHeads: 32,
      maxPositionEmbeddings: 32768,
      eosTokenId: null,
    },
    features: () => biases(true, false, false),
    windows: qwenWindows,
  },
  {
    modelType: 'qwen3',
    architecture: 'Qwen3ForCausalLM',
    defaults: {
      vocabSize: 151936,
      intermediateSize: 22016,
      numKvHeads: 32,
      headDim: 128,
      maxPositionEmbeddings: 32768,
      eosTokenId: null,
    },
    features: (config) => ({
      ...biases(config.boolean('attention_bias', false), config.boolean('attention_bias', false), false),
      qkNorm: true,
    }),
    windows: qwenWindows,
  },
];

/** Families that are not supported yet, by the start of their model type. */
const LATER_FAMILIES: readonly [prefix: string, description: string][] = [
  ['qwen2_moe', 'mixture of experts'],
  ['qwen3_moe', 'mixture of experts'],
  ['qwen3_next', 'mixture of experts'],
  ['mixtral', 'mixture of experts'],
  ['deepseek', 'mixture of experts'],
  ['gpt_oss', 'mixture of experts'],
  ['olmoe', 'mixture of experts'],
  ['gemma', 'Gemma'],
  ['phi', 'Phi'],
];

/** @throws CapstanError `unsupported_model` that names the architecture and the supported ones. */
export function findFamily(config: JsonReader): Family {
  const modelType = config.string('model_type', '');
  const architectures = config.raw('architectures');
  const architecture = Array.isArray(architectures) && architectures.length > 0 ? String(architectures[0]) : undefined;
  const family = FAMILIES.find((row) =>
    modelType === '' ? row.architecture === architecture : row.modelType === modelType,
  );
  const name = architecture ?? (modelType === '' ? 'a model without model_type and architectures' : modelType);
  if (family === undefined) {
    const later = LATER_FAMILIES.find(([prefix]) => modelType.startsWith(prefix));
    throw unsupported(later === undefined ? name : `${name} (${later[1]}, not supported yet)`);
  }
  // Refuse other heads (classification, reward): only language model heads are loaded.
  if (architecture !== undefined && architecture !== family.architecture && !architecture.endsWith('Model'))
    throw unsupported(name);
  return family;
}

/** Returns the family of a model type that is in the table. */
export function familyOf(modelType: string): Family {
  return FAMILIES.find((row) => row.modelType === modelType)!;
}

function unsupported(received: string): CapstanError {
  const expected = FAMILIES.map((row) => row.architecture).join(', ');
  return new CapstanError(
    'unsupported_model',
    `config.json: expected one of the architectures ${expected}, got ${received}`,
    { param: 'architectures', expected, received },
  );
}

function biases(qkvBias: boolean, outputBias: boolean, mlpBias: boolean): ModelFeatures {
  return { qkvBias, outputBias, mlpBias, qkNorm: false };
}

/** The classes of transformers default to 4,096 if the key is absent; null means no window. */
function readWindow(config: JsonReader): number {
  return config.isNull('sliding_window') ? 0 : config.positiveInt('sliding_window', 4096);
}

function repeat(window: number, numLayers: number): number[] {
  return Array.from({ length: numLayers }, () => window);
}

function qwenWindows(config: JsonReader, numLayers: number): number[] {
  const window = config.boolean('use_sliding_window', false) ? readWindow(config) : 0;
  const layerTypes = config.raw('layer_types');
  if (layerTypes === undefined) {
    const firstWindowed = config.nonNegativeInt('max_window_layers', 28);
    return Array.from({ length: numLayers }, (_, layer) => (layer >= firstWindowed ? window : 0));
  }
  if (!Array.isArray(layerTypes) || layerTypes.length !== numLayers)
    throw config.mismatch('layer_types', `a list of ${numLayers} layer types`, layerTypes);
  return Array.from(layerTypes, (type: unknown) => {
    if (type !== 'sliding_attention' && type !== 'full_attention')
      throw config.mismatch('layer_types', 'sliding_attention or full_attention', type);
    return type === 'sliding_attention' ? window : 0;
  });
}

/** A tensor that the spec needs. */
export interface RequiredTensor {
  /** Canonical name. */
  name: string;
  /** Name in the checkpoint, without the prefix `model.`. */
  checkpointName: string;
  shape: number[];
}

/** Returns the tensors of a model under the names of Hugging Face, which all present families share. */
export function requiredTensors(spec: NativeModelSpec, features: ModelFeatures): RequiredTensor[] {
  const { hiddenSize: hidden, intermediateSize: inner, headDim, vocabSize } = spec;
  const queries = spec.numHeads * headDim;
  const keys = spec.numKvHeads * headDim;
  const wanted: RequiredTensor[] = [
    { name: 'embed_tokens.weight', checkpointName: 'embed_tokens.weight', shape: [vocabSize, hidden] },
    { name: 'norm.weight', checkpointName: 'norm.weight', shape: [hidden] },
  ];
  if (!spec.tieWordEmbeddings)
    wanted.push({ name: 'lm_head.weight', checkpointName: 'lm_head.weight', shape: [vocabSize, hidden] });
  const add = (layer: number, name: string, checkpointName: string, shape: number[], hasBias = false) => {
    for (const kind of hasBias ? ['weight', 'bias'] : ['weight']) {
      wanted.push({
        name: `layers.${layer}.${name}.${kind}`,
        checkpointName: `layers.${layer}.${checkpointName}.${kind}`,
        shape: kind === 'bias' ? [shape[0]] : shape,
      });
    }
  };
  for (let layer = 0; layer < spec.layers.length; layer++) {
    add(layer, 'input_norm', 'input_layernorm', [hidden]);
    add(layer, 'post_attention_norm', 'post_attention_layernorm', [hidden]);
    add(layer, 'q_proj', 'self_attn.q_proj', [queries, hidden], features.qkvBias);
    add(layer, 'k_proj', 'self_attn.k_proj', [keys, hidden], features.qkvBias);
    add(layer, 'v_proj', 'self_attn.v_proj', [keys, hidden], features.qkvBias);
    add(layer, 'o_proj', 'self_attn.o_proj', [hidden, queries], features.outputBias);
    if (features.qkNorm) {
      add(layer, 'q_norm', 'self_attn.q_norm', [headDim]);
      add(layer, 'k_norm', 'self_attn.k_norm', [headDim]);
    }
    add(layer, 'gate_proj', 'mlp.gate_proj', [inner, hidden], features.mlpBias);
    add(layer, 'up_proj', 'mlp.up_proj', [inner, hidden], features.mlpBias);
    add(layer, 'down_proj', 'mlp.down_proj', [hidden, inner], features.mlpBias);
  }
  return wanted;
}
