import type { Checkpoint } from './checkpoint';
import type { ModelConfig } from './config';
import type { JsonObject } from './json-file';
import { TIED_HEAD } from './kept-embedding';

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
