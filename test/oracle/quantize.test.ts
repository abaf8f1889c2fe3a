/** `quantize()` writes what the option `quantization` computes at load, and what compressed-tensors reads. */
import { createHash } from 'node:crypto';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';

import { CapstanError, Engine, quantize, type QuantizeOptions } from '../../ts/index';
import { readSafetensorsHeader } from '../../ts/model/safetensors';
import { temporaryFolder } from '../fakes/temporary-folder';
import { DEMO_MODEL } from '../../ts/model/model';

const FIXTURES = path.join(__dirname, 'fixtures');
const fixture = (name: string): string => path.join(FIXTURES, name);
const parts = temporaryFolder('quantize');
let numFolders = 0;
const newFolder = (): string => path.join(parts, `model-${++numFolders}`);

type Options = Parameters<typeof Engine.load>[1];

/** Returns greedy tokens with the bits of their log-probabilities. */
async function answersOf(model: string, options: Options, numTokens = 12) {
  const engine = await Engine.load(model, { threads: 2, maxModelLen: 256, dtype: 'bf16', ...options });
  try {
    const ids = Array.from({ length: 70 }, (_, i) => 3 + ((i * 37) % 290));
    const ask = async (promptTokenIds: number[]) => {
      const sampling = { temperature: 0, maxTokens: numTokens, logprobs: 5, ignoreEos: true };
      const { choices } = await engine.generate(promptTokenIds, sampling).result();
      return { tokenIds: choices[0].tokenIds, logprobs: choices[0].logprobs };
    };
    return { answers: await Promise.all([ask(ids), ask(ids.slice(0, 5))]), info: engine.info };
  } finally {
    await engine.close();
  }
}

describe.each([
  ['demo', DEMO_MODEL, true],
  ['llama3-bf16', fixture('llama3-bf16'), false],
  ['gemma3-bf16, whose head is the embedding', fixture('gemma3-bf16'), true],
  ['lfm2-bf16, with short convolutions', fixture('lfm2-bf16'), true],
])('%s', (_name, model, isSplit) => {
  test.each(['int8', 'int4'] as const)('%s: the folder gives the tokens of the option, bit for bit', async (type) => {
    const out = newFolder();
    const { weightBytes, sourceBytes, numMatrices } = await quantize(model, out, { quantization: type });
    expect(numMatrices).toBeGreaterThan(5);
    expect(weightBytes).toBeLessThan(sourceBytes);
    const wanted = await answersOf(model, { quantization: type });
    const got = await answersOf(out, {});
    expect(got.answers).toEqual(wanted.answers);
    expect(got.info.numParameters).toBe(wanted.info.numParameters);
    expect(got.info.weightBytes).toBe(wanted.info.weightBytes);
    if (isSplit) expect((await answersOf(out, { tensorParallelSize: 2 })).answers).toEqual(wanted.answers);
  });
});

describe('the files', () => {
  const model = fixture('llama3-bf16');

  /** What compressed-tensors 0.20 decodes, by `check_quantized.py`. */
  const golden = JSON.parse(readFileSync(fixture('quantize.json'), 'utf8')) as Record<string, Record<string, string>>;

  test.each([
    ['int8', {}],
    ['int4', {}],
    ['int4-32', { quantization: 'int4', groupSize: 32 }],
  ] satisfies [string, QuantizeOptions][])(
    '%s: hold the values that compressed-tensors decodes',
    async (name, more) => {
      const out = newFolder();
      await quantize(model, out, { quantization: name.slice(0, 4) as 'int8' | 'int4', ...more });
      expect(await decodedHashes(out)).toEqual(golden[name]);
    },
  );

  test('are the same in shards, with an index', async () => {
    const out = newFolder();
    await quantize(model, out, { quantization: 'int4', maxShardBytes: 20_000 });
    const names = readdirSync(out);
    expect(names).toContain('model.safetensors.index.json');
    const shards = names.filter((name) => name.endsWith('.safetensors'));
    expect(shards.length).toBeGreaterThan(2);
    expect(shards[0]).toBe(`model-00001-of-0000${shards.length}.safetensors`);
    expect(await decodedHashes(out)).toEqual(golden.int4);
    expect((await answersOf(out, {})).answers).toEqual((await answersOf(model, { quantization: 'int4' })).answers);
  });

  test('are complete: config, tokenizer and generation_config', async () => {
    const out = newFolder();
    await quantize(fixture('gemma3-bf16'), out, { quantization: 'int4' });
    const config = JSON.parse(readFileSync(path.join(out, 'config.json'), 'utf8')) as Record<string, unknown>;
    expect(config).toMatchObject({ model_type: 'gemma3_text', tie_word_embeddings: false, capstan_tied_head: true });
    const weights = { type: 'int', symmetric: true, strategy: 'group', dynamic: false };
    const projection = (name: string): string => `re:(?:.*\\.)?layers\\.\\d+\\.${name.replace('.', '\\.')}$`;
    expect(config.quantization_config).toMatchObject({
      quant_method: 'compressed-tensors',
      format: 'pack-quantized',
      quantization_status: 'compressed',
      config_groups: {
        group_0: {
          targets: expect.arrayContaining([projection('self_attn.q_proj'), projection('mlp.down_proj')]) as unknown,
          weights: { ...weights, num_bits: 4, group_size: 64 },
        },
        group_1: { targets: ['re:(?:.*\\.)?lm_head$'], weights: { ...weights, num_bits: 8, group_size: 64 } },
      },
      ignore: [],
    });
    for (const name of ['tokenizer.json', 'generation_config.json'])
      expect(readFileSync(path.join(out, name))).toEqual(readFileSync(path.join(fixture('gemma3-bf16'), name)));
  });
});

/** Returns the SHA-256 of the decoded values of each matrix, in f32. */
async function decodedHashes(folder: string): Promise<Record<string, string>> {
  const hashes: [string, string][] = [];
  for (const file of readdirSync(folder).filter((name) => name.endsWith('.safetensors'))) {
    const bytes = readFileSync(path.join(folder, file));
    const header = await readSafetensorsHeader(path.join(folder, file));
    for (const [name, codes] of header) {
      if (!name.endsWith('.weight_packed')) continue;
      const scales = header.get(name.replace('_packed', '_scale'))!;
      const shapeAt = header.get(name.replace('_packed', '_shape'))!.offset;
      const [rows, cols] = [0, 8].map((at) => Number(bytes.readBigInt64LE(shapeAt + at)));
      const bits = (codes.shape[1] * 32) / cols;
      const groupSize = cols / scales.shape[1];
      const values = new Float32Array(rows * cols);
      for (let i = 0; i < values.length; i++) {
        const byte = bytes[codes.offset + Math.floor((i * bits) / 8)];
        const code = bits === 8 ? byte : (byte >> ((i % 2) * 4)) & 15;
        const scale = fromF16(bytes.readUInt16LE(scales.offset + Math.floor(i / groupSize) * 2));
        values[i] = (code - 2 ** (bits - 1)) * scale;
      }
      const hash = createHash('sha256').update(Buffer.from(values.buffer)).digest('hex');
      hashes.push([name.replace('.weight_packed', ''), hash]);
    }
  }
  return Object.fromEntries(hashes.sort(([a], [b]) => (a < b ? -1 : 1)));
}

function fromF16(bits: number): number {
  const exponent = (bits >> 10) & 31;
  const magnitude = exponent === 0 ? (bits & 1023) * 2 ** -24 : (1024 + (bits & 1023)) * 2 ** (exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

describe('what it refuses', () => {
  const messageOf = async (model: string, out: string, options: QuantizeOptions = {}): Promise<string> => {
    const error = await quantize(model, out, options).then(
      () => undefined,
      (reason: unknown) => reason,
    );
    expect(error).toBeInstanceOf(CapstanError);
    return `${(error as CapstanError).code}: ${(error as CapstanError).message}`;
  };

  test.each([
    ['a GGUF file', 'gguf/gemma3-bf16.gguf', /unsupported_model: .*expected a model directory.*GGUF file gemma3-bf16/],
    ['a quantized model', 'quantized/awq', /unsupported_model: .*quantized already \(AWQ, 4 bits\)/],
    ['odd columns', 'llama2-f32', /unsupported_model: model.*: .*expected a multiple of 16 columns, got \d+/],
    ['experts in one tensor', 'gpt-oss-f32', /unsupported_model: .*one matrix in a tensor/],
    ['experts that do not divide alike', 'qwen3-moe-bf16', /experts: expected .* one size, got groups of 32 and 64/],
    ['a folder without a model', 'templates', /invalid_model: config.json/],
  ])('%s', async (_name, model, message) => {
    const out = newFolder();
    expect(await messageOf(fixture(model), out)).toMatch(message);
    expect(existsSync(out)).toBe(false);
    expect(readdirSync(parts).filter((name) => name.includes('partial'))).toEqual([]);
  });

  test('a folder that is not empty', async () => {
    const model = fixture('llama3-bf16');
    expect(await messageOf(model, FIXTURES)).toMatch(/invalid_argument: out: expected a folder that is empty.*files/);
    expect(await messageOf(model, path.join(model, 'config.json'))).toMatch(/invalid_argument: out: .*got a file/);
  });

  test('wrong options', async () => {
    const wrong = (options: object) => messageOf(DEMO_MODEL, newFolder(), options);
    expect(await wrong({ quantization: 'int2' })).toMatch(/quantization: expected one of int8, int4, got "int2"/);
    expect(await wrong({ groupSize: 48 })).toMatch(/groupSize: expected 16, 32, 64 or 128, got 48/);
    expect(await wrong({ bits: 4 })).toMatch(/options.bits: expected one of the options/);
  });

  test('nothing is left after an abort or a failure', async () => {
    const abort = new AbortController();
    const onProgress = () => abort.abort();
    expect(await messageOf(DEMO_MODEL, newFolder(), { signal: abort.signal, onProgress })).toMatch(/^aborted/);
    const fail = () => {
      throw new CapstanError('internal_error', 'the caller failed');
    };
    expect(await messageOf(DEMO_MODEL, newFolder(), { onProgress: fail })).toMatch(/the caller failed/);
    expect(readdirSync(parts).filter((name) => name.includes('partial'))).toEqual([]);
  });
});
