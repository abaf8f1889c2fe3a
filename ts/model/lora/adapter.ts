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
import { type CompileRegex, type LoraSettings, ModulePatterns } from './patterns';
import { hasSwappedExperts } from './peft-version';

const ADAPTER_WEIGHTS = 'adapter_model.safetensors';
/** Limit of a tensor's name, because expressions of the adapter run over it. */
const MAX_TENSOR_NAME_LENGTH = 1024;
/** Limit of the comparisons of modules with patterns, which may take some seconds. */
const MAX_COMPARISONS = 20e6;

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
  const config = await readLoraConfig(dir);
  const patterns = await ModulePatterns.compile(config, compileRegex);
  const file = join(dir, ADAPTER_WEIGHTS);
  const known = adapterModules(model);
  const stored = groupByModule(await readSafetensorsHeader(file), known);
  checkComparisons(stored.size, patterns.count);
  const named = await nameModules(stored, known, patterns);
  const modules: NativeAdapterModule[] = [];
  let maxRank = 0;
  for (const factors of named.values()) {
    const settings = patterns.settings(factors.name);
    maxRank = Math.max(maxRank, settings.rank);
    modules.push(...toModules(factors, settings, config.peftVersion));
    await setImmediate(); // the event loop goes on between modules, because a file may have many patterns
  }
  await checkTargets(named, known, patterns);
  return {
    source: { files: [file], modules },
    rank: maxRank,
    numParameters: modules.reduce((sum, { a, b }) => sum + a.shape[0] * a.shape[1] + b.shape[0] * b.shape[1], 0),
  };
}

function checkComparisons(numModules: number, numPatterns: number): void {
  const count = numModules * numPatterns;
  if (count > MAX_COMPARISONS)
    throw invalidFile(
      ADAPTER_CONFIG,
      `at most ${MAX_COMPARISONS} comparisons of modules with patterns`,
      `${count} of ${numModules} modules with ${numPatterns} patterns`,
    );
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
    const key = (factor ?? tableFactor) === 'A' ? 'a' : 'b';
    if (factors[key] !== undefined) throw invalidFile(name, 'each factor of a module once', 'a second one');
    factors[key] = { name, tensor };
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

/** The factors of one module that the model has, or of a parameter. */
interface NamedFactors extends StoredFactors {
  projections: readonly Projection[];
}

/** Returns the factors by their names in `known`. */
async function nameModules(
  stored: ReadonlyMap<string, StoredFactors>,
  known: Modules,
  patterns: ModulePatterns,
): Promise<Map<string, NamedFactors>> {
  const named = new Map<string, NamedFactors>();
  for (const factors of stored.values()) {
    const name = parameterName(factors.name, known, patterns);
    const projections = projectionsOf(name, factors.isTable, known);
    const module = withoutPrefix(name);
    if (named.has(module)) throw invalidFile(name, 'each module once', 'a second one');
    named.set(module, { ...factors, name, projections });
    await setImmediate();
  }
  return named;
}

/** Returns the name of the parameter whose factors have this name: PEFT names them after the module. */
function parameterName(name: string, known: Modules, patterns: ModulePatterns): string {
  const module = name.replace(BASE_LAYER, '');
  const [own] = known.get(withoutPrefix(module)) ?? [];
  if (own?.numExperts !== undefined)
    throw invalidFile(name, 'the factors of a parameter under the name of its module', 'its own name');
  if (!known.has(`${withoutPrefix(module)}.${EXPERT_PARAMETERS[0]}`)) return name;
  // The last parameter is the outer module.
  const parameters = EXPERT_PARAMETERS.map((parameter) => `${module}.${parameter}`)
    .filter((parameter) => patterns.isTargetParameter(parameter))
    .reverse();
  const depth = (name.length - module.length) / '.base_layer'.length;
  const parameter = parameters.at(depth);
  if (parameter === undefined)
    throw invalidFile(
      name,
      `at least ${depth + 1} parameters of this module in target_parameters`,
      String(parameters.length),
    );
  return parameter;
}

function projectionsOf(name: string, isTable: boolean, known: Modules): readonly Projection[] {
  const projections = known.get(withoutPrefix(name));
  if (projections === undefined)
    throw unsupportedFile(
      name,
      'a linear layer of the text model, its embedding, or the weights of its experts',
      'another module',
    );
  if ((projections[0].isTable ?? false) !== isTable)
    throw invalidFile(
      name,
      `both factors of ${isTable ? 'a linear layer' : 'an embedding'}`,
      `those of ${isTable ? 'an embedding' : 'a linear layer'}`,
    );
  return projections;
}

function toModules(
  { name, projections, a, b }: NamedFactors,
  { rank, scale }: LoraSettings,
  peftVersion: string | undefined,
): NativeAdapterModule[] {
  if (a === undefined || b === undefined)
    throw invalidFile(name, 'lora_A.weight and lora_B.weight', `only lora_${a === undefined ? 'B' : 'A'}.weight`);
  return projections.map((projection, i) => {
    const { layer, name: canonical, shape, numExperts = 1, isTable } = projection;
    // The addon knows tensors by their names.
    const use = ({ name: tensor, ...named }: NativeTensor) => ({
      ...named,
      name: i === 0 ? tensor : `${tensor} (${canonical})`,
    });
    const [outputs, inputs] = shape;
    if (hasSwappedExperts(projection, peftVersion)) refuseSwapped(a, [rank * numExperts, outputs], peftVersion);
    const ownA = use(toTensor(a, [rank * numExperts, inputs]));
    return {
      layer,
      projection: canonical,
      a: isTable ? { ...ownA, shape: [inputs, rank], isTransposed: true } : ownA,
      b: { ...use(toTensor(b, [outputs, rank * numExperts])), ...storedOrder(projection) },
      scale,
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

/** Refuses the factor A of experts as some versions of PEFT write it, for the transposed parameter. */
function refuseSwapped(
  { name, tensor }: NonNullable<StoredFactors['a']>,
  swapped: readonly number[],
  peftVersion: string | undefined,
): void {
  if (showShape(tensor.shape) !== showShape(swapped)) return;
  throw unsupportedFile(
    name,
    'factors of experts from PEFT 0.19.1 or later',
    peftVersion === undefined ? 'no peft_version' : showPlace(peftVersion),
  );
}

const EXPERT_MODULES = 'experts';

/** Returns which modules a version of transformers has all or none of. */
function versionedKind({ name }: Projection): string {
  return /^experts\.\d/.test(name) ? EXPERT_MODULES : name;
}

/** A missing module would silently change the adapter. */
async function checkTargets(
  named: ReadonlyMap<string, NamedFactors>,
  known: Modules,
  patterns: ModulePatterns,
): Promise<void> {
  const inLayer = [...named].find(([module]) => module.includes('.'));
  const prefix = inLayer === undefined ? 'model.' : inLayer[1].name.slice(0, -inLayer[0].length);
  const place = ({ layer, name }: Projection) => `${layer} ${name}`;
  const stored = [...named.values()].map(({ projections }) => projections[0]);
  const places = new Set(stored.map(place));
  const kinds = new Set(stored.map(versionedKind));
  for (const [module, [projection]] of known) {
    // A router may have several names.
    if (places.has(place(projection))) continue;
    const name = projection.name === 'lm_head' ? module : prefix + module;
    const setting = targetSetting(name, projection, patterns, kinds);
    if (setting !== undefined) throw invalidFile(name, `the tensors of a ${setting} names`, 'none');
    await setImmediate();
  }
}

/** Returns the setting that says that an adapter has this module. */
function targetSetting(
  name: string,
  projection: Projection,
  patterns: ModulePatterns,
  kinds: ReadonlySet<string>,
): string | undefined {
  const { layer, numExperts, isTable, isOptional } = projection;
  const parameterSetting = 'parameter that target_parameters';
  if (numExperts !== undefined) return patterns.isTargetParameter(name) ? parameterSetting : undefined;
  const kind = versionedKind(projection);
  const mayBeMissing = isOptional === true && !kinds.has(kind);
  // Without such modules, a setting means others whose names end alike.
  if (mayBeMissing && kind === EXPERT_MODULES) return undefined;
  if (patterns.isTargetParameter(`${name}.weight`)) return parameterSetting;
  const isOuter = isTable === true || projection.name === 'lm_head';
  return !mayBeMissing && patterns.isTarget(name, layer, isOuter) ? 'module that target_modules' : undefined;
}
