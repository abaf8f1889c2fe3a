/** Quantizations that a file beside config.json describes. */
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { readWeights } from '../../../ts/model/model';

const FIXTURES = path.join(__dirname, '..', '..', 'oracle', 'fixtures', 'quantized');
const folders: string[] = [];
afterAll(() => folders.forEach((folder) => rmSync(folder, { recursive: true })));

/** A copy of a fixture whose quantization is in another file, in the form of `convert`. */
function moved(name: string, file: string, convert: (quantization: Record<string, unknown>) => unknown): string {
  const folder = mkdtempSync(path.join(tmpdir(), 'capstan-quantization-'));
  folders.push(folder);
  cpSync(path.join(FIXTURES, name), folder, { recursive: true });
  const target = path.join(folder, 'config.json');
  const { quantization_config: quantization, ...config } = JSON.parse(readFileSync(target, 'utf8')) as {
    quantization_config: Record<string, unknown>;
  };
  writeFileSync(target, JSON.stringify(config));
  writeFileSync(path.join(folder, file), JSON.stringify(convert(quantization)));
  return folder;
}

const quantizedOf = async (folder: string) => {
  const { config, checkpoint } = await readWeights(folder);
  return {
    schemes: config.quantization?.schemes,
    names: checkpoint.tensors.flatMap(({ name, groups }) => (groups === undefined ? [] : [name])),
  };
};

test.each<[string, string, (quantization: Record<string, unknown>) => unknown]>([
  ['gptq', 'quantize_config.json', ({ quant_method: _method, ...rest }) => rest],
  ['awq', 'quant_config.json', () => ({ zero_point: true, q_group_size: 32, w_bit: 4, version: 'GEMM' })],
  [
    'compressed-fp8',
    'hf_quant_config.json',
    () => ({ producer: { name: 'modelopt' }, quantization: { quant_algo: 'FP8' } }),
  ],
])('%s in %s', async (name, file, convert) => {
  const own = await quantizedOf(path.join(FIXTURES, name));
  const other = await quantizedOf(moved(name, file, convert));
  expect(other.names).toEqual(own.names);
  expect(other.names.length).toBeGreaterThan(0);
  expect(other.schemes).toEqual(expect.arrayContaining(own.schemes ?? []));
});
