import { stat } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { loadAddon } from '../addon';
import { checkKnownKeys, checkNumber, checkObject, checkOneOf, checkString } from '../checks';
import { CapstanError } from '../errors';
import { locateModel } from '../hub/locate';
import type { ModelInfo } from '../hub/model-info';
import { checkHubChoice, type HubKind } from '../hub/settings';
import { INDEX_FILE } from '../hub/select-files';
import { freeDiskBytes, throwIfAborted } from '../hub/system';
import { EMBEDDING_FILE, readStoredTensors } from '../model/checkpoint';
import { type JsonObject, parseJsonObject, readTextFile } from '../model/json-file';
import { DEMO_MODEL, findModel, readWeights } from '../model/model';
import { quantizedConfig } from './config';
import { copyTexts, writeDurably } from './copied-files';
import { checkOutput, fillFolder } from './output-folder';
import { type MatrixScheme, planQuantization, type QuantizePlan } from './plan';
import { indexOf, planShards } from './shards';
import { entriesOf, ShardWriter } from './shard-writer';

/** Progress of {@link quantize}: of the download of the model's files, then of the new checkpoint. */
export interface QuantizeProgress {
  /** `download`: the files are fetched. `quantize`: the weights are read and written. */
  stage: 'download' | 'quantize';
  /** Bytes so far: downloaded, or of the new weight files. */
  doneBytes: number;
  /** Bytes of the whole stage. */
  totalBytes: number;
}

/** Options of {@link quantize}. Every field is optional. */
export interface QuantizeOptions {
  /**
   * `'int8'`: 8 bits, about half the size of bf16. `'int4'`: 4 bits for the layers and 8 for the embedding and the LM
   * head, a third to a quarter. Default: `'int8'`.
   */
  quantization?: 'int8' | 'int4';
  /**
   * Weights of a row that share a scale: 16, 32, 64 or 128. If it does not divide the columns of a matrix, the matrix
   * uses half of it, and so on. Default: 128 for 8 bits, 64 for 4, as for the option `quantization` of `Engine.load`.
   */
  groupSize?: 16 | 32 | 64 | 128;
  /** Maximum bytes of a weight file. A larger matrix gets a separate file. Default: 4,000,000,000. */
  maxShardBytes?: number;
  /** Where the model is downloaded from. Default: as in `Engine.load`. */
  hub?: HubKind;
  /** As in `Engine.load`. */
  token?: string | null;
  /** As in `Engine.load`. */
  cacheDir?: string;
  /** Aborting it makes the call reject with code `aborted`, and removes what was written. */
  signal?: AbortSignal;
  /** Called for each piece of work. If it throws, the call rejects with that error. */
  onProgress?: (progress: QuantizeProgress) => void;
  /** Called before a model from the hub is downloaded. */
  onDownload?: (info: ModelInfo) => void;
}

/** A checkpoint that {@link quantize} has written. */
export interface QuantizedModel {
  /** The folder. */
  path: string;
  /** Matrices that are quantized. An embedding that serves as the head counts once. */
  numMatrices: number;
  /** Bytes of the weight files of the model. */
  sourceBytes: number;
  /** Bytes of the weight files in the folder. */
  weightBytes: number;
}

const OPTIONS = [
  'quantization',
  'groupSize',
  'maxShardBytes',
  'hub',
  'token',
  'cacheDir',
  'signal',
  'onProgress',
  'onDownload',
];
const GROUP_SIZES = [16, 32, 64, 128] as const;
const DEFAULT_SHARD_BYTES = 4e9;

/**
 * Writes a quantized copy of a model: a directory in Hugging Face's layout with the format `pack-quantized` of
 * compressed-tensors. transformers (with the package compressed-tensors) reads it. Loading it gives the same tokens as
 * loading the model with the option `quantization`, if `dtype` is the same.
 *
 * Reads one matrix after the other in pieces, so memory does not grow with the model. `out` appears when it is
 * complete. If it is an empty folder already, it gets its files then, config.json last.
 * @param model As in `Engine.load`: a model directory, a name on the hub, or `demo`. Not a GGUF file, and not a model
 *   that is quantized already.
 * @param out A folder that is empty or does not exist.
 * @throws CapstanError `invalid_argument`, `unsupported_model`, `invalid_model`, `io_error` (such as a full disk),
 *   `aborted`, or as `pullModel`.
 */
export async function quantize(model: string, out: string, options: QuantizeOptions = {}): Promise<QuantizedModel> {
  try {
    checkOptions(options);
    checkString('out', out);
    if (out === '') throw CapstanError.argument('out', 'the path of a folder', out);
    checkString('model', model);
    // Before the download, which may take hours.
    await checkOutput(out);
    const dir = await locateFolder(model, options);
    return await fillFolder(out, (folder) => writeModel(dir, folder, out, options));
  } catch (error) {
    throw CapstanError.from(error);
  }
}

function checkOptions(options: QuantizeOptions): void {
  checkKnownKeys('options', checkObject('options', options), OPTIONS);
  const { quantization, groupSize, maxShardBytes, signal } = options;
  if (quantization !== undefined) checkOneOf('quantization', quantization, ['int8', 'int4']);
  if (groupSize !== undefined && !GROUP_SIZES.includes(groupSize))
    throw CapstanError.argument('groupSize', GROUP_SIZES.join(', ').replace(/, (\d+)$/, ' or $1'), groupSize);
  if (maxShardBytes !== undefined) checkNumber('maxShardBytes', maxShardBytes, { min: 1, isInteger: true });
  checkHubChoice(options);
  if (signal !== undefined && !(signal instanceof AbortSignal))
    throw CapstanError.argument('signal', 'an AbortSignal', signal);
}

async function locateFolder(model: string, options: QuantizeOptions): Promise<string> {
  const { signal, onProgress, onDownload } = options;
  throwIfAborted(signal, 'quantization');
  const located =
    model === DEMO_MODEL
      ? { path: model }
      : await locateModel(model, {
          hub: checkHubChoice(options),
          signal,
          engineOptions: {},
          onDownload,
          onProgress: (done) => onProgress?.({ stage: 'download', ...done }),
        });
  const { path, gguf } = await findModel(located.path);
  if (gguf !== undefined)
    throw refusal(model, 'a model directory with config.json', `the GGUF file ${basename(gguf)}. It runs as it is`);
  return path;
}

async function writeModel(dir: string, folder: string, out: string, options: QuantizeOptions): Promise<QuantizedModel> {
  const { maxShardBytes = DEFAULT_SHARD_BYTES, signal, onProgress } = options;
  const { plan, files, configText } = await readPlan(dir, options);
  const shards = planShards(entriesOf(plan), maxShardBytes);
  const embeddings = planShards(entriesOf({ matrices: plan.embeddings, copied: [] }), Infinity);
  const all = [...shards, ...embeddings.map((shard) => ({ ...shard, fileName: EMBEDDING_FILE }))];
  const totalBytes = all.reduce((sum, { numBytes }) => sum + numBytes, 0);
  await demandSpace(folder, out, totalBytes);
  const config = quantizedConfig(parseJsonObject(configText, 'config.json'), plan);
  await writeDurably(join(folder, 'config.json'), toJson(config, configText));
  await copyTexts(dir, folder);
  let doneBytes = 0;
  const writer = new ShardWriter(files, signal, (bytes) => {
    doneBytes += bytes;
    onProgress?.({ stage: 'quantize', doneBytes, totalBytes });
  });
  try {
    for (const shard of all) await writer.write(shard, join(folder, shard.fileName));
  } finally {
    await writer.close();
  }
  if (shards.length > 1) await writeDurably(join(folder, INDEX_FILE), `${JSON.stringify(indexOf(shards), null, 2)}\n`);
  throwIfAborted(signal, 'quantization');
  const sizes = await Promise.all(files.map(async (file) => (await stat(file)).size));
  return {
    path: out,
    numMatrices: plan.matrices.length + plan.embeddings.length,
    sourceBytes: sizes.reduce((sum, size) => sum + size, 0),
    weightBytes: totalBytes,
  };
}

async function readPlan(
  dir: string,
  options: QuantizeOptions,
): Promise<{ plan: QuantizePlan; files: string[]; configText: string }> {
  const { config, checkpoint } = await readWeights(dir);
  const { pooling, quantization, spec } = config;
  if (quantization !== undefined)
    throw refusal(dir, 'weights in F32, F16 or BF16', `weights that are quantized already (${quantization.title})`);
  if (pooling !== undefined)
    throw refusal(dir, 'a model that generates text', `one with the task ${pooling.task}. Load it with quantization`);
  const { files, found } = await readStoredTensors(dir);
  const stored = [...found].map(([name, tensor]) => ({ ...tensor, name }));
  const plan = planQuantization({ ...checkpoint, files }, stored, spec.tieWordEmbeddings, (kind, cols, where) =>
    chooseScheme(options, kind, cols, where),
  );
  return { plan, files, configText: (await readTextFile(dir, 'config.json')) ?? '{}' };
}

function chooseScheme(
  { quantization = 'int8', groupSize }: QuantizeOptions,
  kind: 'layer' | 'vocab',
  cols: number,
  where: string,
): MatrixScheme {
  const bits = quantization === 'int4' && kind === 'layer' ? 4 : 8;
  const [least] = GROUP_SIZES;
  // The format has no shorter last group.
  if (cols % least !== 0)
    throw refusal(where, `a multiple of ${least} columns`, `${cols}. Load the model with quantization`);
  const wanted = groupSize ?? loadAddon().defaultGroupSize(bits, cols);
  return { bits, groupSize: GROUP_SIZES.findLast((size) => size <= wanted && cols % size === 0)! };
}

async function demandSpace(folder: string, out: string, neededBytes: number): Promise<void> {
  const freeBytes = await freeDiskBytes(folder);
  if (freeBytes >= neededBytes) return;
  const expected = `${neededBytes} bytes of free disk space`;
  throw CapstanError.unexpected('io_error', out, expected, `${freeBytes}. Free some space or choose another folder`);
}

/** Files of Python may hold numbers that JSON does not have, which became strings. */
function toJson(config: JsonObject, original: string): string {
  const text = `${JSON.stringify(config, null, 2)}\n`;
  const hasOthers = /[:[,]\s*(?:-?Infinity|NaN)\b/.test(original);
  return hasOthers ? text.replace(/"(-?Infinity|NaN)"/g, '$1') : text;
}

function refusal(where: string, expected: string, received: string): CapstanError {
  return CapstanError.unexpected('unsupported_model', where, expected, received);
}
