import type { NativeActivation } from '../addon-types';
import { CapstanError } from '../errors';
import { activationOf } from './activations';
import { alternatingRopes, everyLayer } from './attention-layers';
import type { Family, FamilyDefaults, FamilyPooling, HeadLayer, SpecChanges } from './family';
import { type JsonReader } from './json-file';

/** A model whose tokens see each other, with embeddings of positions and norms after the sums. */
const BERT_NAMES = {
  layers: 'encoder.layer',
  embed_tokens: 'embeddings.word_embeddings',
  position_embeddings: 'embeddings.position_embeddings',
  token_type_embeddings: 'embeddings.token_type_embeddings',
  embed_norm: 'embeddings.LayerNorm',
  q_proj: 'attention.self.query',
  k_proj: 'attention.self.key',
  v_proj: 'attention.self.value',
  o_proj: 'attention.output.dense',
  attention_out_norm: 'attention.output.LayerNorm',
  up_proj: 'intermediate.dense',
  down_proj: 'output.dense',
  mlp_out_norm: 'output.LayerNorm',
};
const BERT_FEATURES = { qkvBias: true, outputBias: true, mlpBias: true, hasNormBias: true };

const DISTILBERT_NAMES = {
  layers: 'transformer.layer',
  q_proj: 'attention.q_lin',
  k_proj: 'attention.k_lin',
  v_proj: 'attention.v_lin',
  o_proj: 'attention.out_lin',
  attention_out_norm: 'sa_layer_norm',
  up_proj: 'ffn.lin1',
  down_proj: 'ffn.lin2',
  mlp_out_norm: 'output_layer_norm',
};
const MPNET_NAMES = {
  distance_biases: 'encoder.relative_attention_bias',
  q_proj: 'attention.attn.q',
  k_proj: 'attention.attn.k',
  v_proj: 'attention.attn.v',
  o_proj: 'attention.attn.o',
  attention_out_norm: 'attention.LayerNorm',
};
const DISTILBERT_KEYS = {
  hidden_size: 'dim',
  num_attention_heads: 'n_heads',
  num_hidden_layers: 'n_layers',
  intermediate_size: 'hidden_dim',
  hidden_act: 'activation',
};

const NOMIC_NAMES = {
  layers: 'encoder.layers',
  embed_tokens: 'embeddings.word_embeddings',
  token_type_embeddings: 'embeddings.token_type_embeddings',
  embed_norm: 'emb_ln',
  qkv_proj: 'attn.Wqkv',
  o_proj: 'attn.out_proj',
  attention_out_norm: 'norm1',
  up_proj: 'mlp.fc11',
  gate_proj: 'mlp.fc12',
  down_proj: 'mlp.fc2',
  mlp_out_norm: 'norm2',
};
const NOMIC_KEYS = {
  hidden_size: 'n_embd',
  num_attention_heads: 'n_head',
  num_hidden_layers: 'n_layer',
  intermediate_size: 'n_inner',
  max_position_embeddings: 'n_positions',
  layer_norm_eps: 'layer_norm_epsilon',
  rope_theta: 'rotary_emb_base',
  partial_rotary_factor: 'rotary_emb_fraction',
};
/** Settings of the code in its repository that only these values run with. */
const NOMIC_SETTINGS = {
  activation_function: 'swiglu',
  prenorm: false,
  parallel_block: false,
  use_rms_norm: false,
  causal: false,
  qkv_proj_bias: false,
  mlp_fc1_bias: false,
  mlp_fc2_bias: false,
  rotary_emb_interleaved: false,
  num_experts: 0,
};

const MODERNBERT_NAMES = {
  embed_tokens: 'embeddings.tok_embeddings',
  embed_norm: 'embeddings.norm',
  norm: 'final_norm',
  input_norm: 'attn_norm',
  qkv_proj: 'attn.Wqkv',
  o_proj: 'attn.Wo',
  gate_up_proj: 'mlp.Wi',
  mlp_norm: 'mlp_norm',
  down_proj: 'mlp.Wo',
};

/** Sentence-transformers takes the mean unless files beside the model say otherwise. */
export const MEAN: FamilyPooling = { task: 'embed', kind: () => 'mean', head: () => [] };

/** The classifier of decoders: one layer on the last token. */
export const LAST_CLASSIFIER: FamilyPooling = {
  task: 'score',
  kind: () => 'last',
  head: (config) => [
    { outputSize: readNumLabels(config), activation: 'identity', tensors: { name: 'score', hasBias: false } },
  ],
};

/** Two layers on the first token. */
function classifier(dense: string, out: string, activation: NativeActivation = 'tanh'): FamilyPooling {
  return {
    task: 'score',
    kind: () => 'first',
    head: (config, hiddenSize) => [
      { outputSize: hiddenSize, activation, tensors: { name: dense, hasBias: true } },
      { outputSize: readNumLabels(config), activation: 'identity', tensors: { name: out, hasBias: true } },
    ],
  };
}

function modernBertHead(config: JsonReader, hiddenSize: number): HeadLayer[] {
  const hasBias = config.boolean('classifier_bias', false);
  const norm = { name: 'head.norm', hasBias: config.boolean('norm_bias', false) };
  const activation = activationOf(config, 'classifier_activation', 'gelu');
  return [
    { outputSize: hiddenSize, activation, tensors: { name: 'head.dense', hasBias, norm } },
    { outputSize: readNumLabels(config), activation: 'identity', tensors: { name: 'classifier', hasBias: true } },
  ];
}

function modernBertKind(config: JsonReader): 'first' | 'mean' {
  const pooling = config.string('classifier_pooling', 'cls');
  if (pooling !== 'cls' && pooling !== 'mean') throw config.mismatch('classifier_pooling', 'cls or mean', pooling);
  return pooling === 'cls' ? 'first' : 'mean';
}

const ROBERTA_CLASSIFIER = classifier('classifier.dense', 'classifier.out_proj');

/** A score is one number, so other classifiers are refused. */
function readNumLabels(config: JsonReader): number {
  const labels = config.object('id2label');
  const count = labels === undefined ? config.positiveInt('num_labels', 2) : labels.keys().length;
  if (count !== 1)
    throw config.mismatch(
      'id2label',
      'a reranker, which has one label, because other classifiers give no score',
      count,
    );
  return count;
}

/** What differs between BERT and its relatives. */
interface BertRow {
  modelType: string;
  /** Of the model and of its classifier. */
  architectures: readonly [string, string];
  defaults: Partial<FamilyDefaults> & Pick<FamilyDefaults, 'vocabSize'>;
  /** The layers of the classifier. */
  classifier: FamilyPooling;
  /** The row of the first position. Default: 0. */
  positionOffset?(this: void, config: JsonReader): number;
  /** Default: true. */
  hasTokenTypes?: boolean;
  /** Rows of the table that attention adds to the scores. Default: none. */
  numDistances?(config: JsonReader): number;
  names?: Readonly<Record<string, string>>;
  keys?: Readonly<Record<string, string>>;
  check?(config: JsonReader): void;
}

function bert(row: BertRow): Family[] {
  return row.architectures.map((architecture, i) => ({
    modelType: row.modelType,
    architecture,
    defaults: {
      hiddenSize: 768,
      numLayers: 12,
      numHeads: 12,
      intermediateSize: 3072,
      maxPositionEmbeddings: 512,
      rmsNormEps: 1e-12,
      hiddenAct: 'gelu',
      eosTokenId: null,
      ...row.defaults,
    },
    isEncoder: true,
    features: () => BERT_FEATURES,
    attention: (_config, numLayers) => everyLayer(0, numLayers).map((layer) => ({ ...layer, rope: -1 })),
    hasRope: false,
    changes: (config) => bertSpec(config, row),
    pooling: i === 0 ? MEAN : row.classifier,
    names: { ...BERT_NAMES, ...row.names },
    ...(row.keys === undefined ? {} : { keys: row.keys }),
  }));
}

function bertSpec(config: JsonReader, row: BertRow): SpecChanges {
  row.check?.(config);
  const kind = config.string('position_embedding_type', 'absolute');
  if (kind !== 'absolute') throw config.mismatch('position_embedding_type', 'absolute', kind);
  if (config.boolean('is_decoder', false)) throw config.mismatch('is_decoder', 'false', true);
  const numPositions = config.positiveInt('max_position_embeddings', 512);
  const positionOffset = row.positionOffset?.(config) ?? 0;
  if (numPositions <= positionOffset)
    throw config.mismatch('max_position_embeddings', `more than ${positionOffset}, the first position`, numPositions);
  return {
    rmsNormEps: config.positiveNumber('layer_norm_eps', 1e-12),
    normKind: 'layer',
    norms: { input: false, attentionOut: true, mlp: false, mlpOut: true, isOfSum: true },
    hasFinalNorm: false,
    hasGatedMlp: false,
    isCausal: false,
    tieWordEmbeddings: true,
    maxPositionEmbeddings: numPositions - positionOffset,
    embedding: {
      numPositions,
      positionOffset,
      numTokenTypes: row.hasTokenTypes === false ? 0 : config.positiveInt('type_vocab_size', 2),
      hasNorm: true,
      numDistances: row.numDistances?.(config) ?? 0,
    },
  };
}

/** Positions begin after the padding token. */
function afterPadding(config: JsonReader): number {
  return config.nonNegativeInt('pad_token_id', 1) + 1;
}

/** Its class computes with 32 distances, and with the padding token 1. */
function mpnetDistances(config: JsonReader): number {
  const count = config.positiveInt('relative_attention_num_buckets', 32);
  if (count !== 32) throw config.mismatch('relative_attention_num_buckets', '32', count);
  return count;
}

function checkElectra(config: JsonReader): void {
  const hiddenSize = config.positiveInt('hidden_size', 256);
  const size = config.positiveInt('embedding_size', 128);
  if (size !== hiddenSize)
    throw CapstanError.mismatch(
      'unsupported_model',
      'config.json: embedding_size',
      `the hidden size (${hiddenSize})`,
      size,
    );
}

/** BERT with rotary positions and gates. */
function nomicBert(): Family {
  return {
    modelType: 'nomic_bert',
    architecture: 'NomicBertModel',
    defaults: {
      hiddenSize: 768,
      numLayers: 12,
      numHeads: 12,
      vocabSize: 30528,
      intermediateSize: 3072,
      maxPositionEmbeddings: 2048,
      ropeTheta: 1000,
      hiddenAct: 'silu',
      eosTokenId: null,
    },
    isEncoder: true,
    features: () => ({ qkvBias: false, outputBias: false, mlpBias: false, hasNormBias: true, isQkvFused: true }),
    attention: (_config, numLayers) => everyLayer(0, numLayers),
    changes: (config) => {
      for (const [key, value] of Object.entries(NOMIC_SETTINGS))
        if (config.raw(key) !== undefined && config.raw(key) !== value)
          throw CapstanError.mismatch('unsupported_model', `config.json: ${key}`, String(value), config.raw(key));
      return {
        rmsNormEps: config.positiveNumber('layer_norm_eps', 1e-12),
        normKind: 'layer',
        norms: { input: false, attentionOut: true, mlp: false, mlpOut: true, isOfSum: true },
        hasFinalNorm: false,
        isCausal: false,
        tieWordEmbeddings: true,
        embedding: {
          numPositions: 0,
          positionOffset: 0,
          numTokenTypes: config.positiveInt('type_vocab_size', 2),
          hasNorm: true,
          numDistances: 0,
        },
      };
    },
    pooling: MEAN,
    names: NOMIC_NAMES,
    keys: NOMIC_KEYS,
  };
}

/** Llama whose tokens see each other. */
function euroBert(): Family[] {
  const classify: FamilyPooling = {
    task: 'score',
    kind: (config) => {
      const pooling = config.string('classifier_pooling', 'late');
      if (pooling !== 'bos' && pooling !== 'mean')
        throw CapstanError.mismatch('unsupported_model', 'config.json: classifier_pooling', 'bos or mean', pooling);
      return pooling === 'bos' ? 'first' : 'mean';
    },
    head: (config, hiddenSize) => [
      { outputSize: hiddenSize, activation: 'gelu', tensors: { name: 'dense', hasBias: true } },
      { outputSize: readNumLabels(config), activation: 'identity', tensors: { name: 'classifier', hasBias: true } },
    ],
  };
  return (
    [
      ['EuroBertModel', MEAN],
      ['EuroBertForSequenceClassification', classify],
    ] as const
  ).map(([architecture, pooling]) => ({
    modelType: 'eurobert',
    architecture,
    defaults: {
      hiddenSize: 768,
      numLayers: 12,
      numHeads: 12,
      vocabSize: 128256,
      intermediateSize: 3072,
      rmsNormEps: 1e-5,
      maxPositionEmbeddings: 8192,
      eosTokenId: null,
    },
    isEncoder: true,
    features: (config) => {
      const hasBias = config.boolean('attention_bias', false);
      return { qkvBias: hasBias, outputBias: hasBias, mlpBias: config.boolean('mlp_bias', false) };
    },
    attention: (_config, numLayers) => everyLayer(0, numLayers),
    changes: () => ({ isCausal: false }),
    pooling,
  }));
}

function modernBert(architecture: string, pooling: FamilyPooling): Family {
  return {
    modelType: 'modernbert',
    architecture,
    defaults: {
      hiddenSize: 768,
      numLayers: 22,
      numHeads: 12,
      vocabSize: 50368,
      intermediateSize: 1152,
      maxPositionEmbeddings: 8192,
      ropeTheta: 160_000,
      hiddenAct: 'gelu',
      eosTokenId: null,
    },
    isEncoder: true,
    features: (config) => ({
      qkvBias: config.boolean('attention_bias', false),
      outputBias: config.boolean('attention_bias', false),
      mlpBias: config.boolean('mlp_bias', false),
      hasNormBias: config.boolean('norm_bias', false),
      isQkvFused: true,
      isGateUpFused: true,
    }),
    // The first layer of each period is full. Half of the window is on each side.
    attention: (config, numLayers) => {
      const period = config.positiveInt('global_attn_every_n_layers', 3);
      const window = Math.floor(config.positiveInt('local_attention', 128) / 2) + 1;
      return alternatingRopes(config, numLayers, (layer) => layer % period !== 0, window).map((layer, i) => ({
        ...layer,
        ...(i === 0 && { lacksInputNorm: true }),
      }));
    },
    slidingRopeTheta: 10_000,
    changes: (config) => ({
      rmsNormEps: config.positiveNumber('norm_eps', 1e-5),
      normKind: 'layer',
      isCausal: false,
      tieWordEmbeddings: true,
      embedding: { numPositions: 0, positionOffset: 0, numTokenTypes: 0, hasNorm: true, numDistances: 0 },
    }),
    pooling,
    names: MODERNBERT_NAMES,
  };
}

/** Models that turn texts into vectors, and rerankers. */
export const ENCODERS: readonly Family[] = [
  ...bert({
    modelType: 'bert',
    architectures: ['BertModel', 'BertForSequenceClassification'],
    defaults: { vocabSize: 30522 },
    classifier: classifier('pooler.dense', 'classifier'),
  }),
  ...bert({
    modelType: 'roberta',
    architectures: ['RobertaModel', 'RobertaForSequenceClassification'],
    defaults: { vocabSize: 50265 },
    classifier: ROBERTA_CLASSIFIER,
    positionOffset: afterPadding,
  }),
  ...bert({
    modelType: 'xlm-roberta',
    architectures: ['XLMRobertaModel', 'XLMRobertaForSequenceClassification'],
    defaults: { vocabSize: 30522 },
    classifier: ROBERTA_CLASSIFIER,
    positionOffset: afterPadding,
  }),
  ...bert({
    modelType: 'camembert',
    architectures: ['CamembertModel', 'CamembertForSequenceClassification'],
    defaults: { vocabSize: 30522 },
    classifier: ROBERTA_CLASSIFIER,
    positionOffset: afterPadding,
  }),
  ...bert({
    modelType: 'distilbert',
    architectures: ['DistilBertModel', 'DistilBertForSequenceClassification'],
    defaults: { vocabSize: 30522, numLayers: 6 },
    classifier: classifier('pre_classifier', 'classifier', 'relu'),
    hasTokenTypes: false,
    names: DISTILBERT_NAMES,
    keys: DISTILBERT_KEYS,
  }),
  ...bert({
    modelType: 'electra',
    architectures: ['ElectraModel', 'ElectraForSequenceClassification'],
    defaults: { vocabSize: 30522, hiddenSize: 256, numHeads: 4, intermediateSize: 1024 },
    classifier: classifier('classifier.dense', 'classifier.out_proj', 'gelu'),
    check: checkElectra,
  }),
  ...bert({
    modelType: 'mpnet',
    architectures: ['MPNetModel', 'MPNetForSequenceClassification'],
    defaults: { vocabSize: 30527 },
    classifier: ROBERTA_CLASSIFIER,
    positionOffset: () => 2,
    hasTokenTypes: false,
    numDistances: mpnetDistances,
    names: MPNET_NAMES,
  }),
  nomicBert(),
  ...euroBert(),
  modernBert('ModernBertModel', MEAN),
  modernBert('ModernBertForSequenceClassification', { task: 'score', kind: modernBertKind, head: modernBertHead }),
];
