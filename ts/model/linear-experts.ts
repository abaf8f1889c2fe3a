import type { ModelFeatures } from './family';

const FIRST_GATE =
  /^(?:(?:language_|text_)?model\.)*layers\.\d+\.((?:.+\.)?experts)\.0\.gate_proj\.(?:weight(?:_packed)?|qweight)$/;

/**
 * Returns the features with the names of the checkpoint's experts. llm-compressor makes three linear layers of each
 * expert before it quantizes them, and stores these under the same names for all families.
 */
export function withLinearExperts(features: ModelFeatures, found: ReadonlyMap<string, unknown>): ModelFeatures {
  const { experts } = features;
  if (experts === undefined) return features;
  for (const name of found.keys()) {
    const [, module] = FIRST_GATE.exec(name) ?? [];
    if (module === undefined) continue;
    const names = { gate: `${module}.*.gate_proj`, up: `${module}.*.up_proj`, down: `${module}.*.down_proj` };
    if (experts.each?.gate === names.gate) return features;
    const hasBias = found.has(name.replace(/\w+$/, 'bias'));
    return { ...features, experts: { ...experts, each: { ...names, hasBias }, eachIn: undefined, stacked: undefined } };
  }
  return features;
}
