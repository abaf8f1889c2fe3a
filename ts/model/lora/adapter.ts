import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { setImmediate } from 'node:timers/promises';
import type { NativeAdapterModule, NativeAdapterSource, NativeTensor } from '../../addon-types';
import { CapstanError, showPlace } from '../../errors';
import { NATIVE_DTYPES } from '../checkpoint';
import type { ModelConfig } from '../config';
import { readSafetensorsHeader } from '../safetensors';
import { storedOrder } from '../tensors';
import { invalidFile, type StoredTensor, unsupportedFile } from '../weight-file';
import { ADAPTER_CONFIG, readLoraConfig } from './config';
import { adapterModules, EXPERT_PARAMETERS, type Modules, type Projection, withoutPrefix } from './modules';
import { type CompileRegex, ModulePatterns } from './patterns';

const ADAPTER_WEIGHTS = 'adapter_model.safetensors';
/** Limit of a tensor's name, because expressions of the adapter run over it. */
const MAX_TENSOR_NAME_LENGTH = 1024;

/** An adapter without the bytes of its weights. */
export interface LoraAdapter {
  source: NativeAdapterSource;
  /** The largest rank. */
  rank: number;
  numParameters: number;
}

/** The tensors of one module. `name` is its name in the whole model, such as `model.layers.0.self_attn.q_proj`. */
interface StoredFactors {
  name: string;
  isTable: boolean;
  a?: { name: string; tensor: StoredTensor };
  b?: { name: string; tensor: StoredTensor };
}

/**
 * Reads a LoRA adapter as PEFT writes it: `adapter_config.json` and `adapter_model.safetensors`.
 * @throws CapstanError `invalid_model` or `unsupported_model` that names the key or the tensor, or `io_error`.
 */
export async function readAdapter(dir: string, model: ModelConfig, compileRegex: CompileRegex): Promise<LoraAdapter> {
  await checkFolder(dir);
  const patterns = await ModulePatterns.compile(await readLoraConfig(dir), compileRegex);
  const file = join(dir, ADAPTER_WEIGHTS);
  const known = adapterModules(model);
  const stored = nameParameters(groupByModule(await readSafetensorsHeader(file), known), known, patterns);
  checkNames(stored, known);
  const modules: NativeAdapterModule[] = [];
  for (const factors of stored.values()) {
    modules.push(...toModules(factors, known, patterns));
    await setImmediate(); // the event loop goes on between modules, because a file may have many patterns
  }
  await checkTargets(stored, known, patterns);
  return {
    source: { files: [file], modules },
    rank: Math.max(...[...stored.keys()].map((name) => patterns.rank(name))),
    numParameters: modules.reduce((sum, { a, b }) => sum + a.shape[0] * a.shape[1] + b.shape[0] * b.shape[1], 0),
  };
}

async function checkFolder(dir: string): Promise<void> {
  const names = await readdir(dir).catch((cause: NodeJS.ErrnoException) => {
    const code = cause.code === 'ENOENT' || cause.code === 'ENOTDIR' ? 'invalid_model' : 'io_error';
    throw new CapstanError(code, `expected the folder of an adapter, got one that cannot be read (${cause.code})`, {
      cause,
    });
  });
  const missing = [ADAPTER_WEIGHTS, ADAPTER_CONFIG].find((name) => !names.includes(name));
  if (missing === undefined) return;
  const other = missing === ADAPTER_WEIGHTS ? names.find((name) => /^adapter_model\./.test(name)) : undefined;
  throw invalidFile(missing, 'the file in the folder of the adapter', other === undefined ? 'none' : other);
}

const FACTOR = /^(?:base_model\.model\.)?(.+)\.lora_(?:([AB])(?:\.\w+)?\.weight|embedding_([AB])(?:\.\w+)?)$/;
/** What PEFT adds to the module of a parameter when a second parameter of it has factors too. */
const BASE_LAYER = /(?:\.base_layer)*$/;
/** Copies of the base model's weights, which PEFT adds to an adapter of the embedding or of the LM head. */
const BASE_WEIGHT = /^(?:base_model\.model\.)?(.+)\.base_layer\.weight$/;
/** Modules that read images and sounds, beside the text of a model. They change nothing here. */
const BESIDE_TEXT =
  /(?:^|\.)(?:vision_tower|vision_model|visual|multi_modal_projector|embed_vision|audio_tower|embed_audio)\./;
/** What the names of other tensors stand for. */
const OTHERS: readonly (readonly [RegExp, string])[] = [
  [/\.lora_magnitude_vector\b/, 'a tensor of DoRA'],
  [/\.lora_[AB](\.\w+)?\.bias$/, 'a bias of an update'],
  [/\.modules_to_save\.|\.(weight|bias)$/, 'a weight of a module that was trained as a whole'],
];

function groupByModule(tensors: ReadonlyMap<string, StoredTensor>, known: Modules): Map<string, StoredFactors> {
  const modules = new Map<string, StoredFactors>();
  for (const [name, tensor] of tensors) {
    if (name.length > MAX_TENSOR_NAME_LENGTH)
      throw invalidFile(name, `a name of at most ${MAX_TENSOR_NAME_LENGTH} characters`, `${name.length} characters`);
    if (BESIDE_TEXT.test(name) || isBaseWeight(name, tensor, known)) continue;
    const [, module, factor, tableFactor] = FACTOR.exec(name) ?? [];
    if (module === undefined) {
      const [, kind] = OTHERS.find(([pattern]) => pattern.test(name)) ?? [undefined, 'another tensor'];
      throw unsupportedFile(name, 'only tensors lora_A.weight and lora_B.weight', kind);
    }
    const factors = modules.get(module) ?? { name: module, isTable: factor === undefined };
    factors[(factor ?? tableFactor) === 'A' ? 'a' : 'b'] = { name, tensor };
    modules.set(module, factors);
  }
  if (modules.size === 0) throw invalidFile(ADAPTER_WEIGHTS, 'tensors of an adapter', 'none');
  return modules;
}

/** Whether a tensor is the embedding or the LM head of the base model. A vocabulary of another size is refused. */
function isBaseWeight(name: string, { shape }: StoredTensor, known: Modules): boolean {
  const [, module] = BASE_WEIGHT.exec(name) ?? [];
  const [projection] = (module !== undefined && known.get(withoutPrefix(module))) || [];
  if (projection === undefined || projection.layer >= 0) return false;
  const own = projection.isTable ? projection.shape.toReversed() : projection.shape;
  if (showShape(shape) !== showShape(own))
    throw unsupportedFile(name, `the weights of the model, of shape ${showShape(own)}`, showShape(shape));
  return true;
}

/** Gives the factors of parameters the names of their parameters: PEFT names them after the module. */
function nameParameters(
  stored: ReadonlyMap<string, StoredFactors>,
  known: Modules,
  patterns: ModulePatterns,
): Map<string, StoredFactors> {
  const named = new Map<string, StoredFactors>();
  for (const factors of stored.values()) {
    const name = parameterName(factors.name, known, patterns);
    named.set(name, { ...factors, name });
  }
  return named;
}

function parameterName(name: string, known: Modules, patterns: ModulePatterns): string {
  const module = name.replace(BASE_LAYER, '');
  if (!known.has(`${withoutPrefix(module)}.${EXPERT_PARAMETERS[0]}`)) return name;
  // The last parameter is the outer module.
  const parameters = EXPERT_PARAMETERS.map((parameter) => `${module}.${parameter}`)
    .filter((parameter) => patterns.isTargetParameter(parameter))
    .reverse();
  const depth = name.length - module.length;
  const parameter = parameters.at(depth / '.base_layer'.length);
  if (parameter === undefined)
    throw invalidFile(name, 'a parameter of this module in target_parameters', `${parameters.length} of them`);
  return parameter;
}

function checkNames(stored: ReadonlyMap<string, StoredFactors>, known: Modules): void {
  const seen = new Set<string>();
  for (const { name, isTable } of stored.values()) {
    const module = withoutPrefix(name);
    const [projection] = known.get(module) ?? [];
    if (projection === undefined)
      throw unsupportedFile(
        name,
        'a linear layer of the text model, its embedding, or the weights of its experts',
        'another module',
      );
    if ((projection.isTable ?? false) !== isTable)
      throw invalidFile(
        name,
        `both factors of ${isTable ? 'a linear layer' : 'an embedding'}`,
        `those of ${isTable ? 'an embedding' : 'a linear layer'}`,
      );
    if (seen.has(module)) throw invalidFile(name, 'each module once', 'a second one with another prefix');
    seen.add(module);
  }
}

function toModules({ name, a, b }: StoredFactors, known: Modules, patterns: ModulePatterns): NativeAdapterModule[] {
  const projections = known.get(withoutPrefix(name))!;
  if (a === undefined || b === undefined)
    throw invalidFile(name, 'lora_A.weight and lora_B.weight', `only lora_${a === undefined ? 'B' : 'A'}.weight`);
  const rank = patterns.rank(name);
  return projections.map((projection, i) => {
    const { layer, name: canonical, shape, numExperts = 1, isTable } = projection;
    // The addon knows tensors by their names.
    const use = ({ name: tensor, ...named }: NativeTensor) => ({
      ...named,
      name: i === 0 ? tensor : `${tensor} (${canonical})`,
    });
    const [outputs, inputs] = shape;
    const ownA = use(toTensor(a, [rank * numExperts, inputs]));
    return {
      layer,
      projection: canonical,
      a: isTable ? { ...ownA, shape: [inputs, rank], isTransposed: true } : ownA,
      b: { ...use(toTensor(b, [outputs, rank * numExperts])), ...storedOrder(projection) },
      scale: patterns.scale(name),
    };
  });
}

function showShape(sizes: readonly number[]): string {
  return `[${sizes.join(', ')}]`;
}

function toTensor({ name, tensor }: { name: string; tensor: StoredTensor }, shape: number[]): NativeTensor {
  if (showShape(tensor.shape) !== showShape(shape))
    throw invalidFile(name, `shape ${showShape(shape)} for this model and rank`, showShape(tensor.shape));
  const dtype = Object.hasOwn(NATIVE_DTYPES, tensor.dtype) ? NATIVE_DTYPES[tensor.dtype] : undefined;
  if (dtype === undefined) throw unsupportedFile(name, 'F32, F16 or BF16', tensor.dtype);
  return { name: showPlace(name), file: 0, offset: tensor.offset, dtype, shape };
}

/** A missing module would silently change the adapter. */
async function checkTargets(
  stored: ReadonlyMap<string, StoredFactors>,
  known: Modules,
  patterns: ModulePatterns,
): Promise<void> {
  const names = [...stored.keys()];
  const present = new Set(names.map(withoutPrefix));
  const inLayer = names.find((name) => withoutPrefix(name).includes('.'));
  const prefix = inLayer === undefined ? 'model.' : inLayer.slice(0, -withoutPrefix(inLayer).length);
  for (const [module, [projection]] of known) {
    if (present.has(module)) continue;
    const name = projection.name === 'lm_head' ? module : prefix + module;
    if (isTarget(name, projection, patterns))
      throw invalidFile(name, `the tensors of a ${settingOf(projection)} names`, 'none');
    if (!projection.isOptional) await setImmediate();
  }
}

function settingOf({ numExperts }: Projection): string {
  return numExperts === undefined ? 'module that target_modules' : 'parameter that target_parameters';
}

function isTarget(
  name: string,
  { layer, isTable, isOptional, numExperts, ...rest }: Projection,
  patterns: ModulePatterns,
) {
  if (numExperts !== undefined) return patterns.isTargetParameter(name);
  return isOptional !== true && patterns.isTarget(name, layer, isTable === true || rest.name === 'lm_head');
}
