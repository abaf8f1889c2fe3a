import type { NativeModelSpec } from '../../addon-types';
import type { ExpertTensors, ModelFeatures } from '../family';
import { unsupportedFile } from '../weight-file';
import type { GgufArchitecture } from './architectures';
import type { GgufFiles } from './files';

type Tensors = Pick<GgufFiles, 'tensors'>;

/** Names of the tensors of experts, relative to the layer. Each holds all experts. */
const EXPERTS: ExpertTensors = {
  router: 'ffn_gate_inp',
  each: { gate: 'ffn_gate_exps', up: 'ffn_up_exps', down: 'ffn_down_exps', isStacked: true },
  shared: { gate: 'ffn_gate_shexp', up: 'ffn_up_shexp', down: 'ffn_down_shexp' },
};
const SHARED_GATE = 'ffn_gate_inp_shexp';

/** Returns whether the MLP of a layer is a mixture of experts. */
export function hasExperts({ tensors }: Tensors, layer: number): boolean {
  return tensors.has(`blk.${layer}.${EXPERTS.router}.weight`);
}

/** Returns the sizes of experts: that of one, and that of the shared one, which is 0 if there is none. */
export function expertSizes({ tensors }: Tensors, layer: number): { expert: number | undefined; shared: number } {
  const rows = (name: string) => tensors.get(`blk.${layer}.${name}.weight`)?.shape.at(-2);
  return { expert: rows(EXPERTS.each!.up), shared: rows(EXPERTS.shared!.up!) ?? 0 };
}

/** GGUF has no keys for optional tensors: a model has those that one of its layers has. */
export function readFeatures(
  { tensors }: Tensors,
  { interleavesHeads = false }: GgufArchitecture,
  { layers }: Pick<NativeModelSpec, 'layers'>,
): ModelFeatures {
  const has = (...names: string[]) =>
    layers.some((_, layer) => names.some((name) => tensors.has(`blk.${layer}.${name}`)));
  const isQkvFused = has('attn_qkv.weight');
  if (isQkvFused && interleavesHeads)
    throw unsupportedFile('blk.0.attn_qkv.weight', 'separate tensors of q, k and v', 'one tensor for all three');
  return {
    qkvBias: has('attn_q.bias', 'attn_qkv.bias'),
    outputBias: has('attn_output.bias'),
    mlpBias: has('ffn_up.bias', 'ffn_down.bias'),
    isQkvFused,
    isGateUpFused: has('ffn_up.weight') && !has('ffn_gate.weight'),
    isRopeInterleaved: interleavesHeads,
    ...(layers.some(({ isMoe }) => isMoe) ? { experts: readExperts(has) } : {}),
  };
}

function readExperts(has: (...names: string[]) => boolean): ExpertTensors {
  return {
    ...EXPERTS,
    hasRouterBias: has(`${EXPERTS.router}.bias`),
    each: { ...EXPERTS.each!, hasBias: has(`${EXPERTS.each!.up}.bias`) },
    ...(has(`${SHARED_GATE}.weight`) ? { sharedGate: SHARED_GATE } : {}),
  };
}
