import type { ModelConfig } from '../config';
import type { ExpertTensors, Family, ModelFeatures } from '../family';
import { JsonReader } from '../json-file';
import { layerTensors, type RequiredTensor } from '../tensors';

/** A projection that an adapter may change. */
export interface Projection extends Pick<RequiredTensor, 'interleaved'> {
  /** -1 = outside of the layers. */
  layer: number;
  /** Canonical name, as in `NativeAdapterModule`. */
  name: string;
  /** Outputs and inputs. */
  shape: [number, number];
  /** An embedding: its inputs are the tokens. */
  isTable?: true;
  /** A parameter that holds this many experts. */
  numExperts?: number;
  /** Such a parameter is (experts, inputs, outputs) in transformers, and not (experts, outputs, inputs). */
  isTransposed?: true;
  /** Not every version of transformers has such a module, so an adapter need not have it. */
  isOptional?: true;
}

/** The modules of a model by their names in transformers, from `layers.` on, and without a path outside of layers. */
export type Modules = ReadonlyMap<string, readonly Projection[]>;

/** The parameters of a module of experts, in their order. */
export const EXPERT_PARAMETERS = ['gate_up_proj', 'gate_up_proj_bias', 'down_proj', 'down_proj_bias'] as const;

const MLP = '(?:gate|up|gate_up|down)_proj';
const PROJECTION = new RegExp(
  String.raw`^layers\.\d+\.((?:q|k|v|qkv|o)_proj|in_proj(?:_(?:qkvz|qkv|z|ba|a|b))?|router|shared_gate|` +
    String.raw`per_layer_gate|per_layer_projection|(?:shared_expert\.|experts\.\d+\.)?${MLP})\.weight$`,
);
/** Modules of experts and routers became parameters in transformers 5. */
const OPTIONAL = /^(?:router$|experts\.)/;

/** Returns the name of a module in `Modules`. */
export function withoutPrefix(module: string): string {
  const layers = module.search(/\blayers\.\d/);
  return module.slice(layers >= 0 ? layers : module.lastIndexOf('.') + 1);
}

/** Returns the modules that an adapter may change. A module that gives keys and values is both projections. */
export function adapterModules({ spec, family, features: { hasEqualKeysAndValues } }: ModelConfig): Modules {
  // Whether projections are fused and how their rows are ordered depends on the family only.
  const features: ModelFeatures = {
    ...family.features(new JsonReader({}, 'config.json')),
    ...(hasEqualKeysAndValues === undefined ? {} : { hasEqualKeysAndValues }),
  };
  const modules = new Map<string, Projection[]>();
  const add = (module: string, projection: Projection) =>
    modules.set(module, [...(modules.get(module) ?? []), projection]);
  for (const [module, projection] of outerModules(spec, family)) add(module, projection);
  const layers = spec.hasMtp ? spec.layers.slice(0, -1) : spec.layers;
  for (const [layer, { isMoe }] of layers.entries()) {
    for (const tensor of layerTensors(spec, features, family.names, layer)) {
      const [, name] = PROJECTION.exec(tensor.name) ?? [];
      if (name === undefined || (name.startsWith('experts.') && features.experts?.each === undefined)) continue;
      const { shape, interleaved, checkpointName } = tensor;
      const projection: Projection = { layer, name, shape: shape as [number, number] };
      if (interleaved !== undefined) projection.interleaved = interleaved;
      if (OPTIONAL.test(name)) projection.isOptional = true;
      add(checkpointName.replace(/\.weight$/, ''), projection);
    }
    if (isMoe)
      for (const [module, projection] of expertParameters(spec, features.experts!, layer))
        add(`${family.names?.layers ?? 'layers'}.${layer}.${module}`, projection);
  }
  return modules;
}

function* outerModules(spec: ModelConfig['spec'], family: Pick<Family, 'names'>): Generator<[string, Projection]> {
  const { vocabSize, hiddenSize: hidden, perLayerInputSize, layers } = spec;
  const nameOf = (name: string) => withoutPrefix(family.names?.[name] ?? name);
  yield [nameOf('embed_tokens'), { layer: -1, name: 'embed_tokens', shape: [hidden, vocabSize], isTable: true }];
  yield [nameOf('lm_head'), { layer: -1, name: 'lm_head', shape: [vocabSize, hidden] }];
  const name = 'per_layer_projection';
  if (perLayerInputSize > 0)
    yield [nameOf(name), { layer: -1, name, shape: [layers.length * perLayerInputSize, hidden] }];
}

/** The router and the parameters of experts, as transformers 5 names them. */
function* expertParameters(
  { moe, hiddenSize: hidden }: ModelConfig['spec'],
  { inTransformers, each, stacked }: ExpertTensors,
  layer: number,
): Generator<[string, Projection]> {
  const { numExperts, intermediateSize: inner } = moe!;
  const experts = inTransformers?.experts ?? (each?.gate ?? stacked!.gateUp).replace(/\.(?:\*\.)?\w+$/, '');
  const transposed = stacked?.isTransposed ? ({ isTransposed: true } as const) : {};
  const own = { layer, numExperts, isOptional: true, ...transposed } as const;
  const rows = 2 * inner;
  const order = stacked?.isInterleaved ? { interleaved: { size: rows, rows } } : {};
  yield [`${experts}.gate_up_proj`, { ...own, ...order, name: 'experts.gate_up_proj', shape: [rows, hidden] }];
  yield [`${experts}.down_proj`, { ...own, name: 'experts.down_proj', shape: [hidden, inner] }];
  if (inTransformers !== undefined)
    yield [inTransformers.router, { layer, name: 'router', shape: [numExperts, hidden], isOptional: true }];
}
