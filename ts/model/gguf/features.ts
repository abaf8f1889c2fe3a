import type { NativeModelSpec } from '../../addon-types';
import type { ExpertTensors, ModelFeatures } from '../family';
import { unsupportedFile } from '../weight-file';
import { EXPERTS, type GgufArchitecture } from './architectures';
import type { GgufFiles } from './files';

type Tensors = Pick<GgufFiles, 'tensors'>;

const SHARED_GATE = 'ffn_gate_inp_shexp';

/** Returns whether the MLP of a layer is a mixture of experts. */
export function hasExperts({ tensors }: Tensors, layer: number): boolean {
  return tensors.has(`blk.${layer}.${EXPERTS.router}.weight`);
}

/** Returns the sizes of experts: that of one, and that of the shared one, which is 0 if there is none. */
export function expertSizes(
  { tensors }: Tensors,
  layer: number,
  { experts = EXPERTS }: GgufArchitecture,
): { expert: number | undefined; shared: number } {
  const rows = (name: string) => tensors.get(`blk.${layer}.${name}.weight`)?.shape.at(-2);
  return { expert: experts.each && rows(experts.each.up), shared: rows(experts.shared!.up!) ?? 0 };
}

/** Returns whether a layer has keys, but no values: they are the keys before norm and rotation. */
export function lacksValues({ tensors }: Tensors, numLayers: number): boolean {
  return Array.from({ length: numLayers }, (_, layer) => `blk.${layer}.attn_`).some(
    (prefix) => tensors.has(`${prefix}k.weight`) && !tensors.has(`${prefix}v.weight`),
  );
}

/** @throws CapstanError `unsupported_model` for a model with other layers than its family. */
export function refuseOtherLayers({ tensors }: Tensors, { needs = {} }: GgufArchitecture): void {
  for (const [name, instead] of Object.entries(needs))
    if (!tensors.has(`blk.0.${name}`)) throw unsupportedFile(`blk.0.${name}`, 'this tensor', `a model with ${instead}`);
}

/** GGUF has no keys for optional tensors: a model has those that one of its layers has. */
export function readFeatures(
  { tensors }: Tensors,
  { interleavesHeads = false, interleavesAllLayers = false, experts = EXPERTS }: GgufArchitecture,
  { layers }: Pick<NativeModelSpec, 'layers'>,
): ModelFeatures {
  const has = (...names: string[]) =>
    layers.some((_, layer) => names.some((name) => tensors.has(`blk.${layer}.${name}`)));
  // Recurrent layers have a tensor of this name too.
  const isQkvFused = layers.some(
    ({ mixer }, layer) => mixer === 'attention' && tensors.has(`blk.${layer}.attn_qkv.weight`),
  );
  return {
    qkvBias: has('attn_q.bias', 'attn_qkv.bias'),
    outputBias: has('attn_output.bias'),
    mlpBias: has('ffn_up.bias', 'ffn_down.bias'),
    hasNormBias: has('attn_norm.bias', 'ffn_norm.bias', 'attn_output_norm.bias') || tensors.has('output_norm.bias'),
    recurrentBias: has('ssm_in.bias', 'shortconv.in_proj.bias'),
    convBias: has('ssm_conv1d.bias', 'shortconv.conv.bias'),
    isQkvFused,
    isGateUpFused: has('ffn_up.weight') && !has('ffn_gate.weight'),
    isRopeInterleaved: interleavesHeads,
    interleavesAllLayers,
    ...(lacksValues({ tensors }, layers.length) ? { hasEqualKeysAndValues: true } : {}),
    ...(layers.some(({ isMoe }) => isMoe) ? { experts: readExperts(experts, has) } : {}),
  };
}

function readExperts(experts: ExpertTensors, has: (...names: string[]) => boolean): ExpertTensors {
  return {
    ...experts,
    hasRouterBias: has(`${experts.router}.bias`),
    ...(experts.each && { each: { ...experts.each, hasBias: has(`${experts.each.up}.bias`) } }),
    ...(has(`${SHARED_GATE}.weight`) ? { sharedGate: SHARED_GATE } : {}),
  };
}
