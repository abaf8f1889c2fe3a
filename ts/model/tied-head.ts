/**
 * Folders of `capstan quantize` hold the embedding in 16 bits, because transformers reads no quantized one. What
 * Capstan uses in its place is the quantized head, if both are one matrix, or a file beside the weights.
 */
import type { Checkpoint } from './checkpoint';
import type { ModelConfig } from './config';
import type { JsonObject } from './json-file';

/** Key of config.json: the quantized head is the embedding too. */
export const TIED_HEAD = 'capstan_tied_head';

type Weights = { config: ModelConfig; checkpoint: Checkpoint };

/** Replaces the embedding by the quantized head if config.json says so. */
export function withTiedHead(weights: Weights, configJson: JsonObject): Weights {
  const { config, checkpoint } = weights;
  const head = checkpoint.tensors.find(({ name }) => name === 'lm_head.weight');
  if (configJson[TIED_HEAD] !== true || head?.groups === undefined) return weights;
  const [rows, cols] = head.shape;
  return {
    config: { ...config, spec: { ...config.spec, tieWordEmbeddings: true } },
    checkpoint: {
      ...checkpoint,
      tensors: checkpoint.tensors
        .filter((tensor) => tensor !== head)
        .map((tensor) => (tensor.name === 'embed_tokens.weight' ? { ...head, name: tensor.name } : tensor)),
      numParameters: checkpoint.numParameters - rows * cols,
    },
  };
}
