import { basename } from 'node:path';
import type { NativeArray, NativeCodeLayout, NativeGroups, NativeTensor } from '../addon-types';
import type { QuantState } from './bitsandbytes';
import { CapstanError } from '../errors';
import { type RequiredTensor, storedOrder } from './tensors';
import type { WeightScheme } from './quantization';
import { invalidFile, type StoredTensor, unsupportedFile } from './weight-file';

/** A tensor of a checkpoint, with the index of its file. */
export interface FoundTensor extends StoredTensor {
  file: number;
  /** Of a weight of bitsandbytes in 4 bits. */
  state?: QuantState;
}

/** The data types of scales, zero points and group indices. */
const ARRAY_TYPES: Readonly<Record<string, NativeArray['dtype']>> = {
  F32: 'f32',
  F16: 'f16',
  BF16: 'bf16',
  U8: 'e8m0',
  F8_E8M0: 'e8m0',
  F8_E4M3: 'e4m3',
  I32: 'i32',
  I8: 'i8',
};
const FLOAT_TYPES = ['F32', 'F16', 'BF16'];
const E8M0_TYPES = ['U8', 'F8_E8M0'];
const ONE_FLOAT: Expected = [{ dtypes: ['F32'], shape: [] }];
const CODE_TYPES: Readonly<Record<NativeCodeLayout, string>> = {
  rows: 'I32',
  gptq: 'I32',
  gptq_v2: 'I32',
  awq: 'I32',
  int8: 'I8',
  fp8: 'F8_E4M3',
  fp4: 'U8',
  fp4_e4m3: 'U8',
  table4: 'U8',
  int8_max: 'I8',
};
const WORD_BITS = 32;
const EXPERT_WEIGHT = /^(.+\.experts)\.(\d+)\.(gate|up|down)_proj\.weight$/;

/** What an array must look like; one of the alternatives. */
type Expected = readonly { dtypes: readonly string[]; shape: readonly number[] }[];

/** The arrays of a (rows, cols) tensor in the file. Groups are (R, C). */
interface Arrays {
  codes: Expected;
  scales: Expected;
  zeros: Expected;
}

function wordsOf(count: number, bits: number): number {
  return Math.ceil((count * bits) / WORD_BITS);
}

/** Returns what `native/backend/grouped_tensor.h` says of each layout. */
function arraysOf({ layout, bits }: WeightScheme, rows: number, cols: number, R: number, C: number): Arrays {
  const one = (dtypes: readonly string[], ...shape: number[]): Expected => [{ dtypes, shape }];
  const codes = (...shape: number[]): Expected => one([CODE_TYPES[layout]], ...shape);
  const bytes = one(['I8'], R, C);
  switch (layout) {
    case 'rows':
      return {
        codes: codes(rows, wordsOf(cols, bits)),
        scales: one(FLOAT_TYPES, R, C),
        zeros: [...one(['I32'], wordsOf(R, bits), C), ...bytes],
      };
    case 'gptq':
    case 'gptq_v2':
      return {
        codes: codes(wordsOf(cols, bits), rows),
        scales: one(FLOAT_TYPES, C, R),
        zeros: one(['I32'], C, wordsOf(R, bits)),
      };
    case 'awq':
      return {
        codes: codes(cols, wordsOf(rows, bits)),
        scales: one(FLOAT_TYPES, C, R),
        zeros: one(['I32'], C, wordsOf(R, bits)),
      };
    case 'fp4':
      return {
        codes: [...codes(rows, cols / 2), ...codes(rows, C, cols / C / 2)],
        scales: one(E8M0_TYPES, R, C),
        zeros: [],
      };
    case 'fp4_e4m3':
      return { codes: codes(rows, cols / 2), scales: one(['F8_E4M3'], R, C), zeros: [] };
    case 'table4':
      return { codes: codes((rows * cols) / 2), scales: one(['F32', 'U8'], R * C), zeros: [] };
    case 'int8_max':
      return { codes: codes(rows, cols), scales: one(['F32'], R, C), zeros: [] };
    case 'int8':
    case 'fp8':
      return {
        codes: codes(rows, cols),
        scales: one(layout === 'int8' ? FLOAT_TYPES : [...FLOAT_TYPES, ...E8M0_TYPES], R, C),
        zeros: bytes,
      };
  }
}

/**
 * Returns the tensor as the file stores it, or undefined if it is not quantized.
 * @param required With the complete name in the checkpoint.
 * @param files Paths, for errors.
 * @throws CapstanError `invalid_model` that names the tensor, if no scheme fits its shapes.
 */
export function resolveQuantized(
  required: RequiredTensor,
  schemes: readonly WeightScheme[],
  found: ReadonlyMap<string, FoundTensor>,
  files: readonly string[],
): NativeTensor | undefined {
  if (required.shape.length !== 2) return undefined;
  const codeType = ({ names }: WeightScheme) => found.get(arrayName(required, names.codes))?.dtype;
  const present = schemes.filter((scheme) => !FLOAT_TYPES.includes(codeType(scheme) ?? 'F32'));
  const fitting = present.filter((scheme) => codeType(scheme) === CODE_TYPES[scheme.layout]);
  let firstError: Error | undefined;
  for (const scheme of fitting.length > 0 ? fitting : present) {
    try {
      return new SchemeReader(required, scheme, found, files).read();
    } catch (error) {
      firstError ??= error as Error;
    }
  }
  if (firstError !== undefined) throw firstError;
  return undefined;
}

/** Reads the arrays of one tensor by one scheme. */
class SchemeReader {
  constructor(
    private readonly required: RequiredTensor,
    private readonly scheme: WeightScheme,
    private readonly found: ReadonlyMap<string, FoundTensor>,
    private readonly files: readonly string[],
  ) {}

  read(): NativeTensor {
    const { layout, bits, names } = this.scheme;
    this.refuseTensors();
    const [rows, cols] = this.required.shape;
    const groupRows = Math.min(rows, this.scheme.groupRows);
    const state = layout === 'table4' ? this.quantState() : undefined;
    const groupCols = Math.min(cols, state?.blockSize ?? this.scheme.groupCols);
    const expected = arraysOf(this.scheme, rows, cols, Math.ceil(rows / groupRows), Math.ceil(cols / groupCols));
    const { file, offset } = this.demand([names.codes], expected.codes);
    const zeros =
      names.zeros !== undefined && (names.needsZeros === true || this.has(names.zeros)) ? names.zeros : undefined;
    const index = names.groupIndex !== undefined && this.has(names.groupIndex) ? names.groupIndex : undefined;
    return {
      name: this.required.name,
      file,
      offset,
      dtype: layout,
      shape: this.required.shape,
      ...storedOrder(this.required),
      groups: {
        bits,
        groupRows,
        groupCols,
        scales: this.fusedScales(expected.scales) ?? this.array(names.scales, expected.scales),
        ...(zeros === undefined ? {} : { zeros: this.array([zeros], expected.zeros) }),
        ...(index === undefined ? {} : { groupIndex: this.array([index], [{ dtypes: ['I32'], shape: [cols] }]) }),
        ...(state === undefined ? {} : this.tables(state, (rows * cols) / groupCols)),
      },
      ...(names.factor === undefined ? {} : { scaleFactor: this.array([names.factor], ONE_FLOAT) }),
      ...(names.divisor === undefined ? {} : { scaleDivisor: this.array([names.divisor], ONE_FLOAT) }),
    };
  }

  private refuseTensors(): void {
    const refused = this.scheme.names.refused?.find((name) => this.has(name));
    if (refused === undefined) return;
    throw CapstanError.unexpected(
      'unsupported_model',
      arrayName(this.required, refused),
      'a layer without this tensor',
      'one. Choose another quantization of the model',
    );
  }

  private array(names: readonly string[], expected: Expected): NativeArray {
    const { file, offset, dtype } = this.demand(names, expected);
    const isByte = dtype === 'U8' && this.scheme.layout === 'table4';
    return { file, offset, dtype: isByte ? 'u8' : ARRAY_TYPES[dtype] };
  }

  /** Blocks of bitsandbytes go on in the next row. Here they must not. */
  private quantState(): QuantState {
    const { checkpointName: name, shape } = this.required;
    const state = this.found.get(name)?.state;
    if (state === undefined) throw invalidFile(name, `a tensor ${name}.quant_state.*`, 'none of that name');
    if (!isSameShape(state.shape, shape))
      throw invalidFile(
        `${name}.quant_state`,
        `shape [${shape.join(', ')}] as config.json says`,
        show('', state.shape),
      );
    if (shape[1] % state.blockSize !== 0)
      throw unsupportedFile(
        name,
        `a multiple of ${state.blockSize} columns`,
        `${shape[1]}. Choose another quantization of the model`,
      );
    return state;
  }

  /** The values of codes and of scales in bytes. */
  private tables({ nested }: QuantState, numScales: number): Pick<NativeGroups, 'table' | 'scaleCodes'> {
    const { table, scaleTable, scaleFactors } = this.scheme.names;
    const floats = (name: string | undefined, count: number): NativeArray =>
      this.array([name!], [{ dtypes: ['F32'], shape: [count] }]);
    if (nested === undefined) return { table: floats(table, 16) };
    return {
      table: floats(table, 16),
      scaleCodes: {
        table: floats(scaleTable, 256),
        factors: floats(scaleFactors, Math.ceil(numScales / nested.blockSize)),
        run: nested.blockSize,
        offset: nested.offset,
      },
    };
  }

  /** When transformers quantizes experts itself, it stores their weights by expert, but their scales together. */
  private fusedScales([{ dtypes, shape: groups }]: Expected): NativeArray | undefined {
    const [, experts, expert, part] = EXPERT_WEIGHT.exec(this.required.checkpointName) ?? [];
    const stored = this.found.get(`${experts}.${part === 'down' ? 'down' : 'gate_up'}_proj_scale_inv`);
    if (stored === undefined || stored.shape.length !== 3 || this.scheme.layout !== 'fp8') return undefined;
    // A group does not hold rows of both gate and up.
    const { groupRows } = this.scheme;
    if (part !== 'down' && Number.isFinite(groupRows) && this.required.shape[0] % groupRows !== 0) return undefined;
    const { file, dtype, shape, offset } = stored;
    const numParts = part === 'down' ? 1 : 2;
    const numBytes = stored.numBytes / shape[0] / numParts;
    const isExpected = dtypes.includes(dtype) && isSameShape(shape, [shape[0], numParts * groups[0], groups[1]]);
    if (!isExpected || Number(expert) >= shape[0]) return undefined;
    const index = numParts * Number(expert) + (part === 'up' ? 1 : 0);
    return { file, offset: offset + numBytes * index, dtype: ARRAY_TYPES[dtype] };
  }

  private has(name: string): boolean {
    return this.found.has(arrayName(this.required, name));
  }

  /** @param names Alternatives. */
  private demand(names: readonly string[], expected: Expected): FoundTensor {
    const name = arrayName(this.required, names.find((candidate) => this.has(candidate)) ?? names[0]);
    const { stacked } = this.required;
    const shapeOf = (shape: readonly number[]) => (stacked === undefined ? shape : [stacked.count, ...shape]);
    const wanted = expected.map(({ dtypes, shape }) => show(dtypes.join(' or '), shapeOf(shape))).join(' or ');
    const tensor = this.found.get(name);
    if (tensor === undefined) throw invalidFile(name, `a tensor ${wanted} in the checkpoint`, 'none of that name');
    const isExpected = expected.some(
      ({ dtypes, shape }) => dtypes.includes(tensor.dtype) && isSameShape(tensor.shape, shapeOf(shape)),
    );
    if (!isExpected)
      throw invalidFile(
        `${basename(this.files[tensor.file])}: ${name}`,
        `${wanted} as config.json says`,
        show(tensor.dtype, tensor.shape),
      );
    if (stacked === undefined) return tensor;
    const numBytes = tensor.numBytes / stacked.count;
    return { ...tensor, numBytes, offset: tensor.offset + numBytes * stacked.index };
  }
}

/** A weight `x.weight` has arrays such as `x.weight_scale` or `x.qweight`, a parameter `x` has `x_scale`. */
function arrayName({ checkpointName }: RequiredTensor, array: string): string {
  const layer = checkpointName.replace(/\.weight$/, '');
  return layer === checkpointName ? checkpointName + array.replace(/^weight/, '') : `${layer}.${array}`;
}

/** Sizes of 1 may be left out: a scale for a whole tensor is `[]`, `[1]` or `[1, 1]`. */
function isSameShape(a: readonly number[], b: readonly number[]): boolean {
  const sizes = (shape: readonly number[]): string => shape.filter((size) => size !== 1).join();
  return sizes(a) === sizes(b);
}

function show(dtype: string, shape: readonly number[]): string {
  return `${dtype} [${shape.join(', ')}]`;
}
