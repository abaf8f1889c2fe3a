import { basename } from 'node:path';
import type { NativeDType } from '../addon-types';
import { CapstanError } from '../errors';
import { type Checkpoint, NATIVE_DTYPES } from '../model/checkpoint';
import type { StoredTensor } from '../model/weight-file';

/** How a matrix is quantized. */
export interface MatrixScheme {
  bits: 4 | 8;
  /** Columns that share a scale. */
  groupSize: number;
}

/** A tensor of the checkpoint that is read. */
export interface SourceTensor extends StoredTensor {
  name: string;
  /** Index into {@link Checkpoint.files}. */
  file: number;
}

/** A matrix that is quantized. */
export interface PlannedMatrix {
  source: SourceTensor;
  /** The name of its module in the new checkpoint, without `.weight`. */
  module: string;
  dtype: NativeDType;
  rows: number;
  cols: number;
  scheme: MatrixScheme;
}

/** What a new checkpoint holds. */
export interface QuantizePlan {
  matrices: PlannedMatrix[];
  /** Tensors that stay as they are. */
  copied: SourceTensor[];
  /** Whether the embedding is written twice, as the embedding and as the head. */
  repeatsHead: boolean;
}

/** Chooses the scheme of a matrix by its columns. */
export type ChooseScheme = (kind: 'layer' | 'vocab', cols: number, name: string) => MatrixScheme;

/** The matrices that `--quantization` quantizes at load, by canonical name. Routers are not among them. */
const LAYER_MATRIX =
  /^(?:layers\.\d+\.(?:(?:experts\.\d+|shared_expert)\.)?\w*(?:_proj|in_proj\w*|per_layer_gate)|(?:layers\.\d+\.)?per_layer_projection)\.weight$/;
const VOCAB_MATRIX = /^(?:embed_tokens|lm_head|per_layer_table)\.weight$/;

/**
 * Plans a quantized checkpoint.
 * @param stored All tensors of the checkpoint's files.
 * @throws CapstanError `unsupported_model` that names the tensor that cannot be quantized.
 */
export function planQuantization(
  { files, tensors }: Pick<Checkpoint, 'files' | 'tensors'>,
  stored: readonly SourceTensor[],
  isTied: boolean,
  choose: ChooseScheme,
): QuantizePlan {
  const byPlace = new Map(stored.map((tensor) => [placeOf(tensor), tensor]));
  const matrices = new Map<SourceTensor, PlannedMatrix>();
  let embedding: PlannedMatrix | undefined;
  for (const tensor of tensors) {
    const isLayer = LAYER_MATRIX.test(tensor.name);
    if (!isLayer && !VOCAB_MATRIX.test(tensor.name)) continue;
    const source = byPlace.get(placeOf(tensor));
    const where = source === undefined ? tensor.name : `${basename(files[source.file])}: ${source.name}`;
    const isWhole = source !== undefined && source.shape.join() === tensor.shape.join();
    if (!isWhole || tensor.isTransposed === true)
      throw refusal(
        where,
        'one matrix in a tensor, (outputs, inputs)',
        'another layout, such as experts in one tensor',
      );
    const [rows, cols] = tensor.shape;
    const scheme = choose(isLayer ? 'layer' : 'vocab', cols, where);
    const dtype = NATIVE_DTYPES[source.dtype];
    const planned = { source, module: source.name.replace(/\.weight$/, ''), dtype, rows, cols, scheme };
    matrices.set(source, planned);
    if (tensor.name === 'embed_tokens.weight') embedding = planned;
  }
  const copied = stored.filter((tensor) => !matrices.has(tensor));
  const all = [...matrices.values()];
  // transformers cannot tie a head to a quantized embedding.
  if (isTied && embedding !== undefined) all.push({ ...embedding, module: headModule(embedding.module) });
  return { matrices: all, copied, repeatsHead: isTied };
}

function headModule(embedding: string): string {
  return embedding.startsWith('language_model.') ? 'language_model.lm_head' : 'lm_head';
}

function placeOf({ file, offset }: { file: number; offset: number }): string {
  return `${file}:${offset}`;
}

function refusal(where: string, expected: string, received: string): CapstanError {
  return CapstanError.unexpected('unsupported_model', where, expected, received);
}
