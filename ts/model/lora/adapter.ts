import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { setImmediate } from 'node:timers/promises';
import type { NativeAdapterModule, NativeAdapterSource, NativeTensor } from '../../addon-types';
import { CapstanError, showPlace } from '../../errors';
import { NATIVE_DTYPES } from '../checkpoint';
import type { ModelConfig } from '../config';
import { readSafetensorsHeader } from '../safetensors';
import { type ProjectionModule, projectionModules, storedOrder } from '../tensors';
import { invalidFile, type StoredTensor, unsupportedFile } from '../weight-file';
import { ADAPTER_CONFIG, readLoraConfig } from './config';
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
  const stored = groupByModule(await readSafetensorsHeader(file));
  const known = projectionModules(model);
  checkNames(stored, known);
  const modules: NativeAdapterModule[] = [];
  for (const factors of stored.values()) {
    modules.push(...toModules(factors, known, patterns));
    await setImmediate(); // the event loop goes on between modules, because a file may have many patterns
  }
  await checkTargets(stored, known, patterns);
  return {
    source: { files: [file], modules },
    rank: Math.max(...modules.map(({ a }) => a.shape[0])),
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

const FACTOR = /^(?:base_model\.model\.)?(.+)\.lora_([AB])(?:\.\w+)?\.weight$/;
/** Modules that read images and sounds, beside the text of a model. They change nothing here. */
const BESIDE_TEXT =
  /(?:^|\.)(?:vision_tower|vision_model|visual|multi_modal_projector|embed_vision|audio_tower|embed_audio)\./;
/** What the names of other tensors stand for. */
const OTHERS: readonly (readonly [RegExp, string])[] = [
  [/\.lora_magnitude_vector\b/, 'a tensor of DoRA'],
  [/\.lora_embedding_[AB]\b/, 'an update of an embedding'],
  [/\.lora_[AB](\.\w+)?\.bias$/, 'a bias of an update'],
  [/\.modules_to_save\.|\.(weight|bias)$/, 'a weight of a module that was trained as a whole'],
];

function groupByModule(tensors: ReadonlyMap<string, StoredTensor>): Map<string, StoredFactors> {
  const modules = new Map<string, StoredFactors>();
  for (const [name, tensor] of tensors) {
    if (name.length > MAX_TENSOR_NAME_LENGTH)
      throw invalidFile(name, `a name of at most ${MAX_TENSOR_NAME_LENGTH} characters`, `${name.length} characters`);
    if (BESIDE_TEXT.test(name)) continue;
    const [, module, factor] = FACTOR.exec(name) ?? [];
    if (module === undefined) {
      const [, kind] = OTHERS.find(([pattern]) => pattern.test(name)) ?? [undefined, 'another tensor'];
      throw unsupportedFile(name, 'only tensors lora_A.weight and lora_B.weight', kind);
    }
    const factors = modules.get(module) ?? { name: module };
    factors[factor === 'A' ? 'a' : 'b'] = { name, tensor };
    modules.set(module, factors);
  }
  if (modules.size === 0) throw invalidFile(ADAPTER_WEIGHTS, 'tensors of an adapter', 'none');
  return modules;
}

function checkNames(
  stored: ReadonlyMap<string, StoredFactors>,
  known: ReadonlyMap<string, readonly ProjectionModule[]>,
): void {
  const seen = new Set<string>();
  for (const name of stored.keys()) {
    const module = withoutPrefix(name);
    if (!known.has(module))
      throw unsupportedFile(
        name,
        'a linear layer of attention, of a recurrent mixer or of a dense MLP of this model',
        'another module',
      );
    if (seen.has(module)) throw invalidFile(name, 'each module once', 'a second one with another prefix');
    seen.add(module);
  }
}

function toModules(
  { name, a, b }: StoredFactors,
  known: ReadonlyMap<string, readonly ProjectionModule[]>,
  patterns: ModulePatterns,
): NativeAdapterModule[] {
  const projections = known.get(withoutPrefix(name))!;
  if (a === undefined || b === undefined)
    throw invalidFile(name, 'lora_A.weight and lora_B.weight', `only lora_${a === undefined ? 'B' : 'A'}.weight`);
  const rank = patterns.rank(name);
  return projections.map((projection, i) => {
    // The addon knows tensors by their names.
    const use = ({ name: tensor, ...named }: NativeTensor) => ({
      ...named,
      name: i === 0 ? tensor : `${tensor} (${projection.name})`,
    });
    return {
      layer: projection.layer,
      projection: projection.name,
      a: use(toTensor(a, [rank, projection.shape[1]])),
      b: { ...use(toTensor(b, [projection.shape[0], rank])), ...storedOrder(projection) },
      scale: patterns.scale(name),
    };
  });
}

function toTensor({ name, tensor }: { name: string; tensor: StoredTensor }, shape: number[]): NativeTensor {
  const showShape = (sizes: readonly number[]) => `[${sizes.join(', ')}]`;
  if (showShape(tensor.shape) !== showShape(shape))
    throw invalidFile(name, `shape ${showShape(shape)} for this model and rank`, showShape(tensor.shape));
  const dtype = Object.hasOwn(NATIVE_DTYPES, tensor.dtype) ? NATIVE_DTYPES[tensor.dtype] : undefined;
  if (dtype === undefined) throw unsupportedFile(name, 'F32, F16 or BF16', tensor.dtype);
  return { name: showPlace(name), file: 0, offset: tensor.offset, dtype, shape };
}

/** Returns the name from `layers.` on. */
function withoutPrefix(module: string): string {
  return module.slice(Math.max(0, module.search(/\blayers\.\d/)));
}

/** A missing module would silently change the adapter. */
async function checkTargets(
  stored: ReadonlyMap<string, StoredFactors>,
  known: ReadonlyMap<string, readonly ProjectionModule[]>,
  patterns: ModulePatterns,
): Promise<void> {
  const [first] = stored.keys();
  const prefix = first.slice(0, first.length - withoutPrefix(first).length);
  for (const [module, [{ layer }]] of known) {
    const name = prefix + module;
    if (!stored.has(name) && patterns.isTarget(name, layer))
      throw invalidFile(name, 'the tensors of a module that target_modules names', 'none');
    await setImmediate();
  }
}
