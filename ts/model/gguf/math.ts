import type { Family } from '../family';
import type { JsonReader } from '../json-file';
import type { GgufArchitecture } from './architectures';
import { unsupported } from './unsupported';

/** Keys that change what a model computes, and the values without effect. */
const NEUTRAL_VALUES: Readonly<Record<string, readonly unknown[]>> = {
  'attention.causal': [true],
  'attention.clamp_kqv': [0],
  'attention.max_alibi_bias': [0],
  'attention.output_scale': [0, 1],
  'attention.rope_pattern': [],
  'attention.scale': [0],
  'attention.temperature_scale': [0],
  'attention.value_scale': [0, 1],
  attn_logit_softcapping: [0],
  embedding_scale: [0],
  final_logit_softcapping: [0],
  logit_scale: [0],
  nextn_predict_layers: [0],
  residual_scale: [0],
  'rope.dimension_sections': [],
  'rope.scaling.alpha': [0, 1],
  router_logit_softcapping: [0],
};

/** The same for models with experts. The gating functions are softmax, over all experts or over the chosen ones. */
const NEUTRAL_OF_EXPERTS: Readonly<Record<string, readonly unknown[]>> = {
  expert_gating_func: [0, 1, 3],
  expert_group_count: [0, 1],
  expert_weights_scale: [0, 1],
};

/** @throws CapstanError `unsupported_model` that names a key with an unsupported effect on the results. */
export function refuseUnknownMath(
  metadata: JsonReader,
  { name: arch, keys = [], values: own }: GgufArchitecture,
  family: Family,
): void {
  const values = family.moe === undefined ? { expert_count: [0] } : NEUTRAL_OF_EXPERTS;
  for (const [name, neutral] of Object.entries({ ...NEUTRAL_VALUES, ...values, ...own })) {
    const value = metadata.raw(`${arch}.${name}`);
    if (value === undefined || neutral.includes(value) || keys.includes(name)) continue;
    throw unsupported(metadata, `${arch}.${name}`, neutral.map(String).join(' or ') || 'nothing', value);
  }
}
