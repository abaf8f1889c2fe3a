import { readFileSync, truncateSync } from 'node:fs';
import { join } from 'node:path';
import { readModel } from '../../../ts/model/model';
import {
  safetensors,
  type TinyFiles,
  tinyModel,
  tinyTensors,
  type TinyTensor,
  tinyTokenizer,
  TINY_CONFIG,
} from '../../fakes/tiny-model';

type Header = Record<string, { dtype: string; shape: number[]; data_offsets: [number, number] }>;

const NORM = 'model.norm.weight';

function load(changes: TinyFiles): ReturnType<typeof readModel> {
  return readModel(tinyModel(changes));
}

function withTensors(change: (tensors: Record<string, TinyTensor>) => void): TinyFiles {
  const tensors = tinyTensors();
  change(tensors);
  return { 'model.safetensors': safetensors(tensors) };
}

function withHeader(change: (header: Header) => void): TinyFiles {
  return { 'model.safetensors': safetensors(tinyTensors(), change) };
}

const ESCAPE = '\u001b[2J';
const { model: TOKENIZER_MODEL, ...TOKENIZER } = tinyTokenizer() as { model: object };

test.each<[what: string, files: TinyFiles]>([
  ['config.json', { 'config.json': ESCAPE }],
  ['a header', { 'model.safetensors': Buffer.concat([Buffer.from([4, 0, 0, 0, 0, 0, 0, 0]), Buffer.from(ESCAPE)]) }],
  ['a merge', { 'tokenizer.json': { ...TOKENIZER, model: { ...TOKENIZER_MODEL, merges: [[ESCAPE, 'a']] } } }],
  ['the name of a file', { 'model.safetensors': null, [`${ESCAPE}.bin`]: '' }],
])('the error of %s shows control characters as text', async (_what, files) => {
  await expect(load(files)).rejects.toMatchObject({
    code: 'invalid_model',
    message: expect.stringMatching(/^\P{Cc}*\\u001b\P{Cc}*$/u) as string,
  });
});

test('a directory of a LoRA adapter is refused with the name of its base model', async () => {
  const adapter = { base_model_name_or_path: 'Qwen/Qwen3-0.6B' };
  await expect(load({ 'config.json': null, 'adapter_config.json': adapter })).rejects.toMatchObject({
    code: 'invalid_model',
    message: expect.stringContaining('a LoRA adapter: load its base model "Qwen/Qwen3-0.6B"') as string,
  });
});

const UP = 'model.layers.0.mlp.up_proj.weight';
const STATE = { quant_type: 'nf4', blocksize: 8, dtype: 'bfloat16', shape: [12, 8] };

const IN_BYTES: TinyTensor = { dtype: 'U8', shape: [48, 1], bytes: new Uint8Array(48) };

/** The tiny model with a weight of bitsandbytes in 4 bits, or in 8. */
function withBitsAndBytes(state: unknown, weightFormat?: number, stored: TinyTensor = IN_BYTES): TinyFiles {
  const inBytes = (bytes: Uint8Array): TinyTensor => ({ dtype: 'U8', shape: [bytes.length], bytes });
  const in4Bits: Record<string, TinyTensor> = {
    [UP]: stored,
    [`${UP}.absmax`]: { dtype: 'F32', shape: [12] },
    [`${UP}.quant_map`]: { dtype: 'F32', shape: [16] },
    [`${UP}.quant_state.bitsandbytes__nf4`]: inBytes(Buffer.from(JSON.stringify(state))),
  };
  const in8Bits: Record<string, TinyTensor> = {
    [UP]: { dtype: 'I8', shape: [12, 8] },
    [UP.replace('weight', 'SCB')]: { dtype: 'F32', shape: [12] },
    [UP.replace('weight', 'weight_format')]: { dtype: 'U8', shape: [], bytes: Uint8Array.of(weightFormat ?? 0) },
  };
  const has8Bits = weightFormat !== undefined;
  const quantization = { quant_method: 'bitsandbytes', load_in_8bit: has8Bits, load_in_4bit: !has8Bits };
  return {
    'config.json': { ...TINY_CONFIG, quantization_config: quantization },
    'model.safetensors': safetensors({ ...tinyTensors(), ...(has8Bits ? in8Bits : in4Bits) }),
  };
}

test('weights of bitsandbytes are stored as their state says', async () => {
  const upProjection = async (changes: TinyFiles) =>
    (await load(changes)).checkpoint.tensors.find(({ name }) => name === 'layers.0.up_proj.weight');
  expect(await upProjection(withBitsAndBytes(STATE))).toMatchObject({ dtype: 'table4', groups: { groupCols: 8 } });
  const inBf16: TinyTensor = { dtype: 'BF16', shape: [24, 1], bytes: new Uint8Array(48) };
  expect(await upProjection(withBitsAndBytes(STATE, undefined, inBf16))).toMatchObject({
    dtype: 'table4',
    groups: { groupCols: 8 },
  });
  expect(await upProjection(withBitsAndBytes(STATE, 0))).toMatchObject({ dtype: 'int8_max', groups: { groupCols: 8 } });
});

test.each<[string, TinyFiles, RegExp]>([
  ['no list', withBitsAndBytes([]), /up_proj\.weight\.quant_state\.bitsandbytes__nf4: expected a JSON object/],
  [
    'no block size',
    withBitsAndBytes({ shape: [12, 8] }),
    /quant_state\.bitsandbytes__nf4: blocksize: expected an integer/,
  ],
  ['no shape', withBitsAndBytes({ blocksize: 8 }), /quant_state\.bitsandbytes__nf4: shape: expected a list of sizes/],
  [
    'a text for the offset',
    withBitsAndBytes({ ...STATE, nested_offset: '1' }),
    /quant_state\.bitsandbytes__nf4: nested_offset: expected a number, got "1"/,
  ],
  ['columns of a GPU', withBitsAndBytes(STATE, 2), /up_proj\.weight_format: expected 0 \(row\), got 2 \(col_turing\)/],
])('a weight of bitsandbytes with %s in its state is refused', async (_name, changes, message) => {
  await expect(load(changes)).rejects.toThrow(message);
});

test('the only file of weights may have any name', async () => {
  const weights = safetensors(tinyTensors());
  const named = (...names: string[]): TinyFiles => ({
    'model.safetensors': null,
    ...Object.fromEntries(names.map((name) => [name, weights])),
  });
  for (const name of ['gptq_model-4bit-128g.safetensors', 'model-00001-of-00001.safetensors'])
    expect((await load(named(name))).checkpoint.files[0]).toMatch(name);
  for (const names of [['a', 'b'], ['model-00001-of-00002'], ['adapter_model'], ['consolidated']])
    await expect(load(named(...names.map((name) => `${name}.safetensors`)))).rejects.toThrow(
      `expected model.safetensors or model.safetensors.index.json, got only ${names[0]}.safetensors`,
    );
});

test('maps tensors to canonical names and offsets', async () => {
  const dir = tinyModel();
  const { checkpoint } = await readModel(dir);
  expect(checkpoint).toMatchObject({
    files: [join(dir, 'model.safetensors')],
    dtype: 'f32',
    numParameters: 272 * 8 + 8 * 3 + 2 * 64 + 2 * 32 + 8 + 4 + 4 + 3 * 96,
  });
  const norm = checkpoint.tensors.find(({ name }) => name === 'norm.weight')!;
  expect(norm).toMatchObject({ file: 0, dtype: 'f32', shape: [8] });
  const bytes = readFileSync(join(dir, 'model.safetensors'));
  expect(norm.offset).toBe(bytes.length - 8 * 4 - tailAfter(NORM));
  expect(checkpoint.tensors.map(({ name }) => name)).toContain('layers.0.k_proj.bias');
});

/** Returns the size of the tensors after one, in the order of the file. */
function tailAfter(name: string): number {
  const entries = Object.entries(tinyTensors());
  return entries
    .slice(entries.findIndex(([other]) => other === name) + 1)
    .reduce((sum, [, { shape }]) => sum + 4 * shape.reduce((a, b) => a * b, 1), 0);
}

test('reads names without the prefix, several files and unused tensors', async () => {
  const tensors = Object.entries(tinyTensors()).map(
    ([name, tensor]) => [name.replace(/^model\./, ''), tensor] as const,
  );
  const [first, second] = [tensors.slice(0, 5), tensors.slice(5)];
  const weightMap = Object.fromEntries([
    ...first.map(([name]) => [name, 'a.safetensors']),
    ...second.map(([name]) => [name, 'b.safetensors']),
  ] as [string, string][]);
  const { checkpoint } = await load({
    'model.safetensors': null,
    'a.safetensors': safetensors(Object.fromEntries([...first, ['rotary_emb.inv_freq', { dtype: 'F64', shape: [4] }]])),
    'b.safetensors': safetensors(Object.fromEntries(second)),
    'model.safetensors.index.json': { metadata: {}, weight_map: weightMap },
  });
  expect(checkpoint.files).toHaveLength(2);
  expect(new Set(checkpoint.tensors.map(({ file }) => file))).toEqual(new Set([0, 1]));
});

test('finds an untied lm_head outside of the prefix', async () => {
  const { checkpoint } = await load({
    'config.json': { ...TINY_CONFIG, tie_word_embeddings: false },
    ...withTensors((tensors) => {
      tensors['lm_head.weight'] = { dtype: 'BF16', shape: [272, 8] };
    }),
  });
  expect(checkpoint.tensors.find(({ name }) => name === 'lm_head.weight')).toMatchObject({ dtype: 'bf16' });
});

describe('a head in the files of a config that ties it to the embedding', () => {
  const bytes = (last: number) => new Uint8Array(272 * 8 * 4).fill(7).fill(last, -1);
  const names = async (embedding: TinyTensor | undefined, head: TinyTensor): Promise<[string[], boolean]> => {
    const { config, checkpoint } = await load(
      withTensors((tensors) => {
        delete tensors['model.embed_tokens.weight'];
        if (embedding !== undefined) tensors['model.embed_tokens.weight'] = embedding;
        tensors['lm_head.weight'] = head;
      }),
    );
    return [checkpoint.tensors.map(({ name }) => name), config.spec.tieWordEmbeddings];
  };
  const shape = [272, 8];

  test('with the same values is not read', async () => {
    const [found, isTied] = await names(
      { dtype: 'F32', shape, bytes: bytes(7) },
      { dtype: 'F32', shape, bytes: bytes(7) },
    );
    expect([found.includes('lm_head.weight'), isTied]).toEqual([false, true]);
  });

  test.each<[string, TinyTensor]>([
    ['with another last value', { dtype: 'F32', shape, bytes: bytes(8) }],
    ['of another type', { dtype: 'BF16', shape }],
  ])('%s is read', async (_name, head) => {
    const [found, isTied] = await names({ dtype: 'F32', shape, bytes: bytes(7) }, head);
    expect([found.includes('lm_head.weight'), isTied]).toEqual([true, false]);
  });

  test('alone is the embedding', async () => {
    const [found, isTied] = await names(undefined, { dtype: 'F32', shape, bytes: bytes(7) });
    expect([found.includes('embed_tokens.weight'), found.includes('lm_head.weight'), isTied]).toEqual([
      true,
      false,
      true,
    ]);
  });
});

test.each<[name: string, changes: TinyFiles, code: string, message: RegExp]>([
  ['no config', { 'config.json': null }, 'invalid_model', /^config\.json: expected the file in \S+, got none/],
  ['a config that is no JSON', { 'config.json': '{' }, 'invalid_model', /^config\.json: expected JSON/],
  [
    'a config that is a list',
    { 'config.json': '[]' },
    'invalid_model',
    /^config\.json: expected a JSON object, got an array of 0/,
  ],
  [
    'no weights',
    { 'model.safetensors': null },
    'invalid_model',
    /expected model\.safetensors or model\.safetensors\.index\.json, got neither/,
  ],
  [
    'weights in another format',
    { 'model.safetensors': null, 'pytorch_model.bin': '' },
    'invalid_model',
    /got only pytorch_model\.bin/,
  ],
  [
    'no tokenizer',
    { 'tokenizer.json': null },
    'invalid_model',
    /^tokenizer\.json: expected the file, tokenizer\.model or tekken\.json in the model directory, got none/,
  ],
  [
    'a lone vocab.json',
    { 'tokenizer.json': null, 'vocab.json': {} },
    'invalid_model',
    /got only vocab\.json \(convert it with/,
  ],
  [
    'a lone vocab.txt',
    { 'tokenizer.json': null, 'vocab.txt': '[PAD]' },
    'invalid_model',
    /got only vocab\.txt \(convert it with/,
  ],
  [
    "a tokenizer.model that is not SentencePiece's",
    { 'tokenizer.json': null, 'tokenizer.model': 'IQ== 0\nIg== 1\n' },
    'unsupported_model',
    /^tokenizer\.model: expected a SentencePiece model, got another format/,
  ],
  [
    'a tokenizer that does not load',
    { 'tokenizer.json': { model: { vocab: {} } } },
    'invalid_model',
    /^tokenizer\.json: expected a valid tokenizer/,
  ],
  [
    'a tokenizer without a vocabulary',
    { 'tokenizer.json': {} },
    'invalid_model',
    /^tokenizer\.json: model\.vocab: expected a vocabulary/,
  ],
  [
    'an empty file',
    { 'model.safetensors': '' },
    'invalid_model',
    /^model\.safetensors: expected at least 8 bytes, got 0 bytes/,
  ],
  [
    'a folder of that name',
    { 'model.safetensors': null, 'model.safetensors/x': '' },
    'invalid_model',
    /^model\.safetensors: expected a regular file, got another kind of file/,
  ],
  [
    'a header longer than the file',
    { 'model.safetensors': Buffer.from([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]) },
    'invalid_model',
    /^model\.safetensors: expected a header of at most 1 bytes in a file of 9, got a header length of 18446744073709551615/,
  ],
  [
    'a header that is no JSON',
    { 'model.safetensors': Buffer.concat([Buffer.from([2, 0, 0, 0, 0, 0, 0, 0]), Buffer.from('{x')]) },
    'invalid_model',
    /^model\.safetensors: header: expected JSON/,
  ],
  [
    'a missing tensor',
    withTensors((tensors) => {
      delete tensors[NORM];
    }),
    'invalid_model',
    /^model\.norm\.weight: expected a tensor of shape \[8\] in the checkpoint, got none of that name/,
  ],
  [
    'a wrong shape',
    withTensors((tensors) => {
      tensors[NORM] = { dtype: 'F32', shape: [9] };
    }),
    'invalid_model',
    /^model\.safetensors: model\.norm\.weight: expected shape \[8\] as config\.json says, got \[9\]/,
  ],
  [
    'a wrong number of dimensions',
    withTensors((tensors) => {
      tensors[NORM] = { dtype: 'F32', shape: [8, 1] };
    }),
    'invalid_model',
    /expected shape \[8\].* got \[8, 1\]/,
  ],
  [
    'an unsupported data type',
    withTensors((tensors) => {
      tensors[NORM] = { dtype: 'F64', shape: [8] };
    }),
    'unsupported_model',
    /model\.norm\.weight: expected F32, F16 or BF16, got F64/,
  ],
  [
    'an unknown data type',
    withHeader((header) => {
      header[NORM].dtype = 'F33';
    }),
    'invalid_model',
    /model\.norm\.weight: expected one of the data types .* got "F33"/,
  ],
  [
    'a shape that is a string',
    withHeader((header) => {
      header[NORM].shape = '8' as never;
    }),
    'invalid_model',
    /model\.norm\.weight: expected a shape of integers/,
  ],
  [
    'a negative size',
    withHeader((header) => {
      header[NORM].shape = [-8];
    }),
    'invalid_model',
    /expected a shape of integers of 0 or more, got \[-8\]/,
  ],
  [
    'sizes whose product overflows',
    withHeader((header) => {
      header[NORM].shape = [2 ** 52, 2 ** 52];
    }),
    'invalid_model',
    /model\.norm\.weight: expected .* bytes for F32/,
  ],
  [
    'offsets that do not fit the shape',
    withHeader((header) => {
      header[NORM].data_offsets[1] -= 4;
    }),
    'invalid_model',
    /model\.norm\.weight: expected 32 bytes for F32 \[8\]/,
  ],
  [
    'offsets in descending order',
    withHeader((header) => {
      header[NORM].data_offsets.reverse();
    }),
    'invalid_model',
    /model\.norm\.weight: expected 32 bytes/,
  ],
  [
    'one offset',
    withHeader((header) => {
      header[NORM].data_offsets.pop();
    }),
    'invalid_model',
    /expected two data offsets/,
  ],
  [
    'an entry that is not an object',
    withHeader((header) => {
      header[NORM] = null as never;
    }),
    'invalid_model',
    /model\.norm\.weight: expected one of the data types/,
  ],
  [
    'tensors that overlap',
    withHeader((header) => {
      header[NORM].data_offsets = header['model.layers.0.input_layernorm.weight'].data_offsets;
    }),
    'invalid_model',
    /expected data that starts at \d+, the end of the previous tensor/,
  ],
  [
    'data after the end of the file',
    withHeader((header) => {
      header[NORM].data_offsets = [1e9, 1e9 + 32];
    }),
    'invalid_model',
    /model\.norm\.weight: expected data that ends within the file's \d+ bytes, .* the file is truncated/,
  ],
  [
    'an index that names a missing file',
    { 'model.safetensors': null, 'model.safetensors.index.json': { weight_map: { a: 'gone.safetensors' } } },
    'invalid_model',
    /^gone\.safetensors: expected a readable file/,
  ],
  [
    'an index that leaves the directory',
    { 'model.safetensors': null, 'model.safetensors.index.json': { weight_map: { a: '../x.safetensors' } } },
    'invalid_model',
    /expected a file name without a folder/,
  ],
  [
    'an index without a map',
    { 'model.safetensors': null, 'model.safetensors.index.json': {} },
    'invalid_model',
    /^model\.safetensors\.index\.json: weight_map: expected an object/,
  ],
  [
    'an unsupported decoder',
    {
      'tokenizer.json': {
        ...tinyTokenizer(),
        decoder: { type: 'CTC', pad_token: '_', word_delimiter_token: '|', cleanup: true },
      },
    },
    'unsupported_model',
    /^tokenizer\.json: expected a decoder of ByteLevel.* got CTC/,
  ],
])('refuses %s', async (_name, changes, code, message) => {
  await expect(load(changes)).rejects.toMatchObject({ code, message: expect.stringMatching(message) as string });
});

test('a file truncated at any place is invalid_model', async () => {
  const { length } = safetensors(tinyTensors());
  for (const kept of [1, 7, 8, 9, 500, length - 1]) {
    const dir = tinyModel();
    truncateSync(join(dir, 'model.safetensors'), kept);
    await expect(readModel(dir)).rejects.toMatchObject({ code: 'invalid_model' });
  }
});
