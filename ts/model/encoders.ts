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
function classifier(dense: string, out: string): FamilyPooling {
  return {
    task: 'score',
    kind: () => 'first',
    head: (config, hiddenSize) => [
      { outputSize: hiddenSize, activation: 'tanh', tensors: { name: dense, hasBias: true } },
      { outputSize: readNumLabels(config), activation: 'identity', tensors: { name: out, hasBias: true } },
    ],
  };
}

function modernBertHead(config: JsonReader, hiddenSize: number): HeadLayer[] {
  const hasBias = config.boolean('classifier_bias', false);
  const norm = { name: 'head.norm', hasBias: config.boolean('norm_bias', false) };
  const activation = config.string('classifier_activation', 'gelu');
  if (activation !== 'gelu') throw config.mismatch('classifier_activation', 'gelu', activation);
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

function bert(
  modelType: string,
  architecture: string,
  defaults: Pick<FamilyDefaults, 'vocabSize'>,
  pooling: FamilyPooling,
): Family {
  return {
    modelType,
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
      ...defaults,
    },
    isEncoder: true,
    features: () => BERT_FEATURES,
    attention: (_config, numLayers) => everyLayer(0, numLayers).map((layer) => ({ ...layer, rope: -1 })),
    hasRope: false,
    changes: bertSpec,
    pooling,
    names: BERT_NAMES,
  };
}

function bertSpec(config: JsonReader): SpecChanges {
  const kind = config.string('position_embedding_type', 'absolute');
  if (kind !== 'absolute') throw config.mismatch('position_embedding_type', 'absolute', kind);
  if (config.boolean('is_decoder', false)) throw config.mismatch('is_decoder', 'false', true);
  const isRoberta = config.string('model_type', '') !== 'bert';
  const numPositions = config.positiveInt('max_position_embeddings', 512);
  const positionOffset = isRoberta ? config.nonNegativeInt('pad_token_id', 1) + 1 : 0;
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
      numTokenTypes: config.positiveInt('type_vocab_size', 2),
      hasNorm: true,
    },
  };
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
      embedding: { numPositions: 0, positionOffset: 0, numTokenTypes: 0, hasNorm: true },
    }),
    pooling,
    names: MODERNBERT_NAMES,
  };
}

/** Models that turn texts into vectors, and rerankers. */
export const ENCODERS: readonly Family[] = [
  bert('bert', 'BertModel', { vocabSize: 30522 }, MEAN),
  bert('bert', 'BertForSequenceClassification', { vocabSize: 30522 }, classifier('pooler.dense', 'classifier')),
  bert('roberta', 'RobertaModel', { vocabSize: 50265 }, MEAN),
  bert(
    'roberta',
    'RobertaForSequenceClassification',
    { vocabSize: 50265 },
    classifier('classifier.dense', 'classifier.out_proj'),
  ),
  bert('xlm-roberta', 'XLMRobertaModel', { vocabSize: 30522 }, MEAN),
  bert(
    'xlm-roberta',
    'XLMRobertaForSequenceClassification',
    { vocabSize: 30522 },
    classifier('classifier.dense', 'classifier.out_proj'),
  ),
  modernBert('ModernBertModel', MEAN),
  modernBert('ModernBertForSequenceClassification', { task: 'score', kind: modernBertKind, head: modernBertHead }),
];
