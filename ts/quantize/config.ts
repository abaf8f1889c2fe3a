import type { JsonObject } from '../model/json-file';
import { TIED_HEAD } from '../model/tied-head';
import type { MatrixScheme, QuantizePlan } from './plan';

interface Group {
  scheme: MatrixScheme;
  targets: Set<string>;
}

/**
 * Returns the config.json of a quantized checkpoint, with the `quantization_config` of compressed-tensors.
 * Source: github.com/vllm-project/compressed-tensors, quantization/quant_config.py.
 */
export function quantizedConfig(config: JsonObject, plan: QuantizePlan): JsonObject {
  const groups = groupModules(plan);
  const targets = groups.map((group) => [...group.targets]);
  const result: JsonObject = {
    ...config,
    quantization_config: {
      quant_method: 'compressed-tensors',
      format: 'pack-quantized',
      quantization_status: 'compressed',
      config_groups: Object.fromEntries(
        groups.map(({ scheme }, i) => [
          `group_${i}`,
          { targets: targets[i], weights: weightsOf(scheme), input_activations: null, output_activations: null },
        ]),
      ),
      ignore: ignoredModules(plan, targets.flat()),
    },
  };
  if (!plan.matrices.some(({ module }) => module.endsWith('lm_head'))) return result;
  // transformers does not tie quantized matrices.
  result.tie_word_embeddings = false;
  if (plan.hasTiedHead) result[TIED_HEAD] = true;
  const { text_config: text } = config;
  if (typeof text === 'object' && text !== null) result.text_config = { ...text, tie_word_embeddings: false };
  return result;
}

function weightsOf({ bits, groupSize }: MatrixScheme): JsonObject {
  return { num_bits: bits, type: 'int', symmetric: true, strategy: 'group', group_size: groupSize, dynamic: false };
}

/** Names modules by patterns, and those that other layers quantize otherwise one by one. */
function groupModules({ matrices }: QuantizePlan): Group[] {
  const schemes = new Map<string, Set<string>>();
  const keyOf = ({ bits, groupSize }: MatrixScheme): string => `${bits}:${groupSize}`;
  for (const { module, scheme } of matrices) {
    const pattern = patternOf(module, String.raw`\d+`);
    schemes.set(pattern, (schemes.get(pattern) ?? new Set()).add(keyOf(scheme)));
  }
  const groups = new Map<string, Group>();
  for (const { module, scheme } of matrices) {
    const shared = patternOf(module, String.raw`\d+`);
    const target = schemes.get(shared)!.size === 1 ? shared : patternOf(module, undefined);
    const group = groups.get(keyOf(scheme)) ?? { scheme, targets: new Set() };
    group.targets.add(target);
    groups.set(keyOf(scheme), group);
  }
  return [...groups.values()];
}

/** transformers may give a module another prefix than the checkpoint. @param number Stands for all numbers. */
function patternOf(module: string, number: string | undefined): string {
  const name = /(?:layers\.\d+\..*|[^.]*)$/.exec(module)![0];
  const parts = name.split('.').map((part) => (/^\d+$/.test(part) ? (number ?? part) : escapeRegex(part)));
  return `re:(?:.*\\.)?${parts.join('\\.')}$`;
}

function escapeRegex(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
}

/** The modules that a pattern matches, but that are copied unchanged, such as those of a vision tower. */
function ignoredModules({ copied }: QuantizePlan, targets: readonly string[]): string[] {
  const patterns = targets.map((target) => new RegExp(`^${target.slice('re:'.length)}`));
  return copied
    .filter(({ name, shape }) => shape.length === 2 && name.endsWith('.weight'))
    .map(({ name }) => name.replace(/\.weight$/, ''))
    .filter((module) => patterns.some((pattern) => pattern.test(module)));
}
