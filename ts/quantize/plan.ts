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
  /** Layers and the head. */
  matrices: PlannedMatrix[];
  /** For Capstan alone: transformers reads no quantized embedding. */
  embeddings: PlannedMatrix[];
  /** Tensors that are copied unchanged, embeddings included. */
  copied: SourceTensor[];
  /** Whether the head is the embedding, quantized. */
  hasTiedHead: boolean;
}

/** Chooses the scheme of a matrix by its columns. */
type ChooseScheme = (kind: 'layer' | 'vocab', cols: number, name: string) => MatrixScheme;

/** The matrices that `--quantization` quantizes at load, by canonical name. Routers are not among them. */
const LAYER_MATRIX =
  /^(?:layers\.\d+\.(?:(?:experts\.\d+|shared_expert)\.)?\w*(?:_proj|in_proj\w*|per_layer_gate)|(?:layers\.\d+\.)?per_layer_projection)\.weight$/;
const HEAD = 'lm_head.weight';
const EMBEDDING = 'embed_tokens.weight';
const EMBEDDINGS = [EMBEDDING, 'per_layer_table.weight'];

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
  const embeddings: PlannedMatrix[] = [];
  const head: PlannedMatrix[] = [];
  for (const tensor of tensors) {
    const { name } = tensor;
    const isEmbedding = EMBEDDINGS.includes(name);
    const isLayer = LAYER_MATRIX.test(name);
    if (!isLayer && !isEmbedding && name !== HEAD) continue;
    const source = byPlace.get(placeOf(tensor));
    const where = source === undefined ? tensor.name : `${basename(files[source.file])}: ${source.name}`;
    const isWhole = source !== undefined && source.shape.join() === tensor.shape.join();
    if (!isWhole || tensor.isTransposed === true)
      throw refusal(
        where,
        'one matrix in a tensor, (outputs, inputs)',
        'another layout, such as experts in one tensor',
      );
    if (name === EMBEDDING && source.name.endsWith(HEAD))
      throw refusal(where, 'the embedding too', 'only the head. Load the model with quantization');
    const [rows, cols] = tensor.shape;
    const scheme = choose(isLayer ? 'layer' : 'vocab', cols, where);
    const dtype = NATIVE_DTYPES[source.dtype];
    const planned = { source, module: source.name.replace(/\.weight$/, ''), dtype, rows, cols, scheme };
    if (name === EMBEDDING && isTied) head.push({ ...planned, module: headModule(planned.module) });
    else if (isEmbedding) embeddings.push(planned);
    else matrices.set(source, planned);
  }
  checkExperts([...matrices.values()]);
  // A copy of the embedding as the head would not fit the quantized head.
  const unused = head.map(({ module }) => `${module}.weight`);
  const copied = stored.filter((tensor) => !matrices.has(tensor) && !unused.includes(tensor.name));
  return { matrices: [...matrices.values(), ...head], embeddings, copied, hasTiedHead: head.length > 0 };
}

/** transformers has one scheme for all experts. */
function checkExperts(matrices: readonly PlannedMatrix[]): void {
  const experts = matrices.filter(({ module }) => /experts\.\d+\./.test(module));
  const sizes = [...new Set(experts.map(({ scheme }) => scheme.groupSize))].sort((a, b) => a - b);
  if (sizes.length > 1)
    throw refusal(
      'experts',
      'matrices with groups of one size',
      `groups of ${sizes.join(' and ')} columns. Set the option groupSize (--group-size) to ${sizes[0]}`,
    );
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
