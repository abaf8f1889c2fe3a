/** Experts as llm-compressor stores them, in linear layers with the same names in all families. */
import { copyFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';

import { readSafetensorsHeader } from '../../ts/model/safetensors';
import { safetensors } from '../fakes/tiny-model';
import { compareCase } from './compare';
import { type Golden, listCases } from './golden';

const FIXTURES = path.join(__dirname, 'fixtures');

interface Matrix {
  shape: number[];
  values: Float32Array;
}
type Tensors = Map<string, Matrix>;

async function readTensors(folder: string): Promise<Tensors> {
  const file = path.join(folder, 'model.safetensors');
  const bytes = readFileSync(file);
  const tensors: Tensors = new Map();
  for (const [name, { offset, numBytes, shape, dtype }] of await readSafetensorsHeader(file)) {
    expect(dtype).toBe('F32');
    const values = new Float32Array(new Uint8Array(bytes.subarray(offset, offset + numBytes)).buffer);
    tensors.set(name, { shape: [...shape], values });
  }
  return tensors;
}

/** Returns part `index` of the first dimension. */
function partOf({ shape, values }: Matrix, index: number): Matrix {
  const size = values.length / shape[0];
  return { shape: shape.slice(1), values: values.slice(index * size, (index + 1) * size) };
}

/** Returns rows of a matrix, or numbers of a vector. */
function rowsOf({ shape: [count, ...rest], values }: Matrix, isWanted: (row: number) => boolean): Matrix {
  const rows = Array.from({ length: count }, (_, row) => row).filter(isWanted);
  const parts = rows.flatMap((row) => [...partOf({ shape: [count, ...rest], values }, row).values]);
  return { shape: [rows.length, ...rest], values: Float32Array.from(parts) };
}

function transposed({ shape: [rows, cols], values }: Matrix): Matrix {
  return { shape: [cols, rows], values: values.map((_, i) => values[(i % rows) * cols + Math.trunc(i / rows)]) };
}

/** Stores (experts, …) tensors of gates and ups, and of downs, by expert. */
function splitExperts(tensors: Tensors, from: string, to: string, isGate: (row: number, count: number) => boolean) {
  const all = tensors.get(from)!;
  tensors.delete(from);
  for (let expert = 0; expert < all.shape[0]; expert++) {
    const both = partOf(all, expert);
    const isTransposed = from.endsWith('gate_up_proj');
    const rows = isTransposed ? transposed(both) : both;
    const name = (part: string) => to.replace('*', `${expert}.${part}_proj`);
    tensors.set(
      name('gate'),
      rowsOf(rows, (row) => isGate(row, rows.shape[0])),
    );
    tensors.set(
      name('up'),
      rowsOf(rows, (row) => !isGate(row, rows.shape[0])),
    );
  }
}

function splitDowns(tensors: Tensors, from: string, to: string): void {
  const all = tensors.get(from)!;
  tensors.delete(from);
  for (let expert = 0; expert < all.shape[0]; expert++) {
    const part = partOf(all, expert);
    tensors.set(to.replace('*', `${expert}.down_proj`), from.endsWith('down_proj') ? transposed(part) : part);
  }
}

const SPLITS: Record<string, (tensors: Tensors, layer: string) => void> = {
  'gpt-oss-f32': (tensors, layer) => {
    const experts = `${layer}.mlp.experts`;
    const isEven = (row: number) => row % 2 === 0;
    splitExperts(tensors, `${experts}.gate_up_proj`, `${experts}.*.weight`, isEven);
    splitExperts(tensors, `${experts}.gate_up_proj_bias`, `${experts}.*.bias`, isEven);
    splitDowns(tensors, `${experts}.down_proj`, `${experts}.*.weight`);
    splitDowns(tensors, `${experts}.down_proj_bias`, `${experts}.*.bias`);
  },
  'granitemoe-f32': (tensors, layer) => {
    const block = `${layer}.block_sparse_moe`;
    const isFirst = (row: number, count: number) => row < count / 2;
    splitExperts(tensors, `${block}.input_linear.weight`, `${block}.experts.*.weight`, isFirst);
    splitDowns(tensors, `${block}.output_linear.weight`, `${block}.experts.*.weight`);
  },
  'mixtral-f32': (tensors, layer) => {
    const parts = { w1: 'gate_proj', w2: 'down_proj', w3: 'up_proj' };
    for (const [name, tensor] of [...tensors]) {
      const [, start, part] = /^(.*\.experts\.\d+)\.(w[123])\.weight$/.exec(name) ?? [];
      if (part === undefined || !name.startsWith(`${layer}.`)) continue;
      tensors.delete(name);
      tensors.set(`${start}.${parts[part as keyof typeof parts]}.weight`, tensor);
    }
  },
};

const cases = listCases(FIXTURES).filter(({ golden }) => Object.hasOwn(SPLITS, golden.case));
let folder: string;

beforeAll(() => {
  folder = mkdtempSync(path.join(tmpdir(), 'capstan-experts-'));
});

afterAll(() => {
  rmSync(folder, { recursive: true });
});

test.each(cases)('$golden.case', async ({ directory, golden }: { directory: string; golden: Golden }) => {
  const tensors = await readTensors(directory);
  const { num_hidden_layers: numLayers } = JSON.parse(readFileSync(path.join(directory, 'config.json'), 'utf8')) as {
    num_hidden_layers: number;
  };
  for (let layer = 0; layer < numLayers; layer++) SPLITS[golden.case](tensors, `model.layers.${layer}`);
  for (const name of ['config.json', 'generation_config.json', 'tokenizer.json'])
    copyFileSync(path.join(directory, name), path.join(folder, name));
  const stored = [...tensors].map(
    ([name, { shape, values }]) => [name, { dtype: 'F32', shape, bytes: new Uint8Array(values.buffer) }] as const,
  );
  writeFileSync(path.join(folder, 'model.safetensors'), safetensors(Object.fromEntries(stored)));
  const { failures } = await compareCase({ directory: folder, golden }, 'f32');
  expect(failures).toEqual([]);
});

test('the cases are those of the table', () => {
  expect(cases.map(({ golden }) => golden.case).sort()).toEqual(Object.keys(SPLITS));
});
