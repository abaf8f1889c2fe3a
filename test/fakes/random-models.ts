/** Small encoders with random weights, for the real engine. Texts with the same bytes have similar embeddings. */
import { safetensors, type TinyFiles, tinyModel, type TinyTensor, tinyTokenizer } from './tiny-model';

const HIDDEN = 64;
const INTERMEDIATE = 128;
const VOCAB = 272;
const MAX_LENGTH = 512;
/** Small weights, so that the embeddings of the tokens decide. */
const SCALE = 0.05;

const CONFIG = {
  model_type: 'bert',
  hidden_size: HIDDEN,
  num_hidden_layers: 2,
  num_attention_heads: 4,
  intermediate_size: INTERMEDIATE,
  vocab_size: VOCAB,
  max_position_embeddings: MAX_LENGTH,
  type_vocab_size: 2,
  hidden_act: 'gelu',
  layer_norm_eps: 1e-12,
  position_embedding_type: 'absolute',
  torch_dtype: 'float32',
  pad_token_id: 0,
};

/** Creates the directory of an embedding model with the prompts `query` and `document`. */
export function randomEmbedder(): string {
  return tinyModel({
    ...encoderFiles('BertModel', encoderTensors('')),
    'modules.json': JSON.stringify([
      { idx: 0, name: '0', path: '', type: 'sentence_transformers.models.Transformer' },
      { idx: 1, name: '1', path: '1_Pooling', type: 'sentence_transformers.models.Pooling' },
      { idx: 2, name: '2', path: '2_Normalize', type: 'sentence_transformers.models.Normalize' },
    ]),
    '1_Pooling/config.json': { word_embedding_dimension: HIDDEN, pooling_mode_mean_tokens: true },
    'config_sentence_transformers.json': { prompts: { query: 'query: ', document: '' }, default_prompt_name: null },
  });
}

/** Creates the directory of a reranker. */
export function randomReranker(): string {
  const config = { id2label: { 0: 'LABEL_0' } };
  return tinyModel(
    encoderFiles(
      'BertForSequenceClassification',
      {
        ...encoderTensors('bert.'),
        'bert.pooler.dense.weight': random(91, 1, HIDDEN, HIDDEN),
        'bert.pooler.dense.bias': random(92, 1, HIDDEN),
        'classifier.weight': random(93, 1, 1, HIDDEN),
        'classifier.bias': random(94, 1, 1),
      },
      config,
    ),
  );
}

function encoderFiles(architecture: string, tensors: Record<string, TinyTensor>, more: object = {}): TinyFiles {
  return {
    'config.json': { ...CONFIG, architectures: [architecture], ...more },
    'generation_config.json': null,
    'tokenizer.json': tinyTokenizer(),
    'tokenizer_config.json': {},
    'model.safetensors': safetensors(tensors),
  };
}

function encoderTensors(prefix: string): Record<string, TinyTensor> {
  let seed = 1;
  const tensors: Record<string, TinyTensor> = {};
  const add = (name: string, scale: number, ...shape: number[]): void => {
    tensors[prefix + name] = random(seed++, scale, ...shape);
  };
  const linear = (name: string, outputs: number, inputs: number): void => {
    add(`${name}.weight`, SCALE, outputs, inputs);
    add(`${name}.bias`, SCALE, outputs);
  };
  const norm = (name: string): void => {
    tensors[`${prefix}${name}.weight`] = ones(HIDDEN);
    add(`${name}.bias`, SCALE, HIDDEN);
  };
  add('embeddings.word_embeddings.weight', 1, VOCAB, HIDDEN);
  add('embeddings.position_embeddings.weight', SCALE, MAX_LENGTH, HIDDEN);
  add('embeddings.token_type_embeddings.weight', SCALE, 2, HIDDEN);
  norm('embeddings.LayerNorm');
  for (let layer = 0; layer < CONFIG.num_hidden_layers; layer++) {
    const at = (name: string) => `encoder.layer.${layer}.${name}`;
    for (const name of ['query', 'key', 'value']) linear(at(`attention.self.${name}`), HIDDEN, HIDDEN);
    linear(at('attention.output.dense'), HIDDEN, HIDDEN);
    norm(at('attention.output.LayerNorm'));
    linear(at('intermediate.dense'), INTERMEDIATE, HIDDEN);
    linear(at('output.dense'), HIDDEN, INTERMEDIATE);
    norm(at('output.LayerNorm'));
  }
  return tensors;
}

/** Numbers from -scale to scale, by a linear congruential generator. */
function random(seed: number, scale: number, ...shape: number[]): TinyTensor {
  const values = new Float32Array(shape.reduce((product, size) => product * size, 1));
  let state = (seed * 2654435761) >>> 0;
  for (let i = 0; i < values.length; i++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    values[i] = ((state / 2 ** 32) * 2 - 1) * scale;
  }
  return { dtype: 'F32', shape, bytes: new Uint8Array(values.buffer) };
}

function ones(size: number): TinyTensor {
  return { dtype: 'F32', shape: [size], bytes: new Uint8Array(new Float32Array(size).fill(1).buffer) };
}
