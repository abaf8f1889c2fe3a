import type { NativeMoe } from '../addon-types';
import type { JsonReader } from './json-file';

type Moe = NativeMoe & { layers: (layer: number) => boolean };

/** The engine's limit. */
const MAX_EXPERTS = 4096;

const PLAIN = { weightScale: 1, logitScale: 1, sharedIntermediateSize: 0, hasSeparateNorms: false } as const;
const SOFTMAX = { ...PLAIN, score: 'softmax' } as const;
const SIGMOID = { ...PLAIN, score: 'sigmoid' } as const;

function everyLayer(): boolean {
  return true;
}

/** The classes of Qwen: `decoder_sparse_step` and `mlp_only_layers` say which layers are dense. */
export function qwenMoe(
  config: JsonReader,
  defaults: {
    experts: number;
    topK: number;
    intermediateSize: number;
    sharedIntermediateSize: number;
    normalizesWeights?: boolean;
  },
): Moe {
  const step = config.positiveInt('decoder_sparse_step', 1);
  const dense = config.raw('mlp_only_layers') ?? [];
  if (!Array.isArray(dense)) throw config.mismatch('mlp_only_layers', 'a list of layers', dense);
  return {
    ...SOFTMAX,
    numExperts: config.positiveInt(
      config.has('num_local_experts') ? 'num_local_experts' : 'num_experts',
      defaults.experts,
      MAX_EXPERTS,
    ),
    topK: config.positiveInt('num_experts_per_tok', defaults.topK),
    intermediateSize: config.positiveInt('moe_intermediate_size', defaults.intermediateSize),
    sharedIntermediateSize: config.nonNegativeInt('shared_expert_intermediate_size', defaults.sharedIntermediateSize),
    normalizesWeights: config.boolean('norm_topk_prob', defaults.normalizesWeights ?? false),
    layers: (layer) => !dense.includes(layer) && (layer + 1) % step === 0,
  };
}

/** The weights are the softmax over the chosen experts. */
export function mixtralMoe(config: JsonReader, intermediateSize: number): Moe {
  return {
    ...SOFTMAX,
    numExperts: config.positiveInt('num_local_experts', 8, MAX_EXPERTS),
    topK: config.positiveInt('num_experts_per_tok', 2),
    intermediateSize: config.positiveInt('intermediate_size', intermediateSize),
    normalizesWeights: true,
    layers: everyLayer,
  };
}

export function olmoeMoe(config: JsonReader): Moe {
  return {
    ...SOFTMAX,
    numExperts: config.positiveInt('num_experts', 64, MAX_EXPERTS),
    topK: config.positiveInt('num_experts_per_tok', 8),
    intermediateSize: config.positiveInt('intermediate_size', 2048),
    normalizesWeights: config.boolean('norm_topk_prob', false),
    layers: everyLayer,
  };
}

/** Granite 4: models without experts have the shared expert alone, as a dense MLP. */
export function graniteHybridMoe(config: JsonReader): Moe {
  const numExperts = config.nonNegativeInt('num_local_experts', 8);
  return {
    ...SOFTMAX,
    numExperts,
    topK: numExperts === 0 ? 0 : config.positiveInt('num_experts_per_tok', 2),
    intermediateSize: config.positiveInt('intermediate_size', 11008),
    sharedIntermediateSize: config.positiveInt('shared_intermediate_size', 1024),
    normalizesWeights: true,
    layers: () => numExperts > 0,
  };
}

export function gptOssMoe(config: JsonReader, intermediateSize: number): Moe {
  return {
    ...SOFTMAX,
    numExperts: config.positiveInt('num_local_experts', 128, MAX_EXPERTS),
    topK: config.positiveInt(config.has('num_experts_per_tok') ? 'num_experts_per_tok' : 'experts_per_token', 4),
    intermediateSize: config.positiveInt('intermediate_size', intermediateSize),
    normalizesWeights: true,
    layers: everyLayer,
  };
}

/** A token's experts are of its best groups, as DeepSeek-V3 routes. */
function expertGroups(
  config: JsonReader,
  { numExperts, topK }: Pick<Moe, 'numExperts' | 'topK'>,
): Pick<Moe, 'numGroups' | 'topGroups'> {
  const numGroups = config.positiveInt('n_group', 1);
  const topGroups = config.positiveInt('topk_group', 1);
  if (numGroups === 1) return {};
  const size = numExperts / numGroups;
  if (!Number.isInteger(size) || size < 2)
    throw config.mismatch('n_group', `a divisor of the ${numExperts} experts, of at most half of them`, numGroups);
  if (topGroups > numGroups || topGroups * size < topK)
    throw config.mismatch('topk_group', `up to ${numGroups} groups that hold ${topK} experts`, topGroups);
  return { numGroups, topGroups };
}

/** The first `first_k_dense_replace` layers are dense. */
export function glm4Moe(config: JsonReader): Moe {
  const numExperts = config.positiveInt(
    config.has('num_local_experts') ? 'num_local_experts' : 'n_routed_experts',
    128,
    MAX_EXPERTS,
  );
  const topK = config.positiveInt('num_experts_per_tok', 8);
  const intermediateSize = config.positiveInt('moe_intermediate_size', 1408);
  const firstSparse = config.nonNegativeInt('first_k_dense_replace', 1);
  return {
    ...SIGMOID,
    numExperts,
    topK,
    ...expertGroups(config, { numExperts, topK }),
    intermediateSize,
    sharedIntermediateSize: config.nonNegativeInt('n_shared_experts', 1) * intermediateSize,
    normalizesWeights: config.boolean('norm_topk_prob', true),
    weightScale: config.positiveNumber('routed_scaling_factor', 1),
    layers: (layer) => layer >= firstSparse,
  };
}

export function dots1Moe(config: JsonReader): Moe {
  const firstSparse = config.nonNegativeInt('first_k_dense_replace', 0);
  return {
    ...glm4Moe(config),
    normalizesWeights: config.boolean('norm_topk_prob', false),
    layers: (layer) => layer >= firstSparse,
  };
}

export function miniMaxM2Moe(config: JsonReader): Moe {
  return {
    ...SIGMOID,
    numExperts: config.positiveInt('num_local_experts', 256, MAX_EXPERTS),
    topK: config.positiveInt('num_experts_per_tok', 8),
    intermediateSize: config.positiveInt('intermediate_size', 1536),
    normalizesWeights: true,
    layers: everyLayer,
  };
}

export function flexOlmoMoe(config: JsonReader): Moe {
  return {
    ...SOFTMAX,
    numExperts: config.positiveInt(config.has('num_experts') ? 'num_experts' : 'num_local_experts', 7, MAX_EXPERTS),
    topK: config.positiveInt('num_experts_per_tok', 5),
    intermediateSize: config.positiveInt('intermediate_size', 11008),
    normalizesWeights: config.boolean('norm_topk_prob', false),
    layers: everyLayer,
  };
}

export function graniteSharedMoe(config: JsonReader): Moe {
  return {
    ...mixtralMoe(config, 11008),
    sharedIntermediateSize: config.nonNegativeInt('shared_intermediate_size', 0),
  };
}

/** The first `num_dense_layers` layers are dense. */
export function lfm2Moe(config: JsonReader): Moe {
  const firstSparse = config.nonNegativeInt('num_dense_layers', 2);
  return {
    ...SIGMOID,
    numExperts: config.positiveInt('num_experts', 32, MAX_EXPERTS),
    topK: config.positiveInt('num_experts_per_tok', 4),
    intermediateSize: config.positiveInt('moe_intermediate_size', 1792),
    normalizesWeights: config.boolean('norm_topk_prob', true),
    weightScale: config.positiveNumber('routed_scaling_factor', 1),
    layers: (layer) => layer >= firstSparse,
  };
}

/** Experts beside the dense MLP, which is the shared expert. */
export function gemma4Moe(config: JsonReader, hiddenSize: number, intermediateSize: number): Moe {
  const hasExperts = config.boolean('enable_moe_block', false);
  return {
    ...SOFTMAX,
    numExperts: hasExperts ? config.positiveInt('num_experts', undefined, MAX_EXPERTS) : 0,
    topK: hasExperts ? config.positiveInt('top_k_experts') : 0,
    intermediateSize: hasExperts ? config.positiveInt('moe_intermediate_size') : 0,
    sharedIntermediateSize: config.positiveInt('intermediate_size', intermediateSize),
    normalizesWeights: true,
    logitScale: 1 / Math.sqrt(hiddenSize),
    hasSeparateNorms: true,
    layers: () => hasExperts,
  };
}
