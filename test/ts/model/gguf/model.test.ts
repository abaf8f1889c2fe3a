import { copyFileSync, mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { readModel } from '../../../../ts/model/model';
import { checkSamplingDefaults } from '../../../../ts/sampling';
import {
  changedMetadata,
  ggufBytes,
  type GgufTensor,
  type GgufValue,
  type MetadataChanges,
  tinyGguf,
  tinyGgufTensors,
} from '../../../fakes/tiny-gguf';
import { tinyModel } from '../../../fakes/tiny-model';

async function load(path: string): ReturnType<typeof readModel> {
  const model = await readModel(path);
  await model.text.close();
  return model;
}

/** The metadata of the tiny model as one of another architecture. */
function asArchitecture(name: string, changes: MetadataChanges = {}): MetadataChanges {
  const renamed: Record<string, GgufValue | null> = { 'general.architecture': { string: name } };
  for (const [key, value] of changedMetadata({}))
    if (key.startsWith('qwen2.')) {
      renamed[key] = null;
      renamed[key.replace('qwen2.', `${name}.`)] = value;
    }
  return { ...renamed, ...changes };
}

test('reads the same spec, tensors and vocabulary as the same model in a directory', async () => {
  const file = await load(tinyGguf());
  const directory = await load(tinyModel());
  expect(file.config.spec).toEqual({ ...directory.config.spec, rmsNormEps: Math.fround(1e-6) });
  expect(file.config.features).toMatchObject(directory.config.features);
  expect(file.config.family).toBe(directory.config.family);
  expect(file.checkpoint.numParameters).toBe(directory.checkpoint.numParameters);
  expect(file.checkpoint.dtype).toBe('f32');
  const shapes = ({ checkpoint }: typeof file) =>
    checkpoint.tensors.map(({ name, shape, dtype }) => [name, shape, dtype]);
  expect(shapes(file)).toEqual(shapes(directory));
  expect(file.tokens.decode([72, 105, 256, 260], false)).toBe(directory.tokens.decode([72, 105, 256, 260], false));
  expect(file.toolCallFormat).toBe(directory.toolCallFormat);
});

test('takes the name of the file, without the number of a part', async () => {
  expect((await load(tinyGguf({}, undefined, 'Qwen3-4B.Q4_K_M.gguf'))).name).toBe('Qwen3-4B.Q4_K_M');
  const part = { 'split.count': { uint16: 1 }, 'split.no': { uint16: 0 } };
  expect((await load(tinyGguf(part, undefined, 'Big-00001-of-00001.gguf'))).name).toBe('Big');
});

test('ends a text at the EOS, EOT and EOM tokens, and at known control tokens', async () => {
  expect((await load(tinyGguf())).config.eosTokenIds).toEqual([258, 256]);
  const turn = { 'tokenizer.ggml.eos_token_id': { uint32: 3 }, 'tokenizer.ggml.eot_token_id': { uint32: 4 } };
  expect((await load(tinyGguf(turn))).config.eosTokenIds).toEqual([3, 4, 256, 258]);
});

test('reads sampling defaults', async () => {
  const changes = {
    'general.sampling.temp': { float32: 0.5 },
    'general.sampling.top_k': { int32: 20 },
    'general.sampling.penalty_repeat': { float32: 0 },
  };
  expect((await load(tinyGguf(changes))).config.samplingDefaults).toEqual({ temperature: 0.5, topK: 20 });
});

test.each<[name: string, value: GgufValue, defaults: object]>([
  ['temp', { float32: -1 }, {}],
  ['temp', { float32: Infinity }, {}],
  ['temp', { float32: 0 }, { temperature: 0 }],
  ['top_k', { int32: -1 }, { topK: 0 }],
  ['top_k', { int32: -40 }, { topK: 0 }],
  ['top_k', { float32: 2.5 }, {}],
  ['top_k', { uint64: 2n ** 62n }, {}],
  ['top_p', { float32: 0 }, {}],
  ['top_p', { float32: 1.5 }, {}],
  ['top_p', { float32: NaN }, {}],
  ['top_p', { float32: 1 }, { topP: 1 }],
  ['min_p', { float32: 0.1 }, {}],
  ['penalty_repeat', { float32: 0 }, {}],
  ['penalty_repeat', { string: '1' }, {}],
])('takes a sampling default only if a request may have it: %s %o', async (name, value, expected) => {
  const { samplingDefaults } = (await load(tinyGguf({ [`general.sampling.${name}`]: value }))).config;
  expect(samplingDefaults).toEqual(expected);
  expect(checkSamplingDefaults('defaults', samplingDefaults)).toEqual(expected);
});

describe('the layout of Llama', () => {
  test('stores the rows of Q and K as pairs, has no biases, and an output matrix', async () => {
    const path = tinyGguf(asArchitecture('llama'), (tensors) => {
      for (const name of ['q', 'k', 'v']) tensors.delete(`blk.0.attn_${name}.bias`);
      tensors.set('output.weight', { sizes: [8, 272], type: 1 });
    });
    const { config, checkpoint } = await load(path);
    expect(config.spec.tieWordEmbeddings).toBe(false);
    expect(config.features.qkvBias).toBe(false);
    const pairs = checkpoint.tensors.filter(({ interleavedHeadDim }) => interleavedHeadDim !== undefined);
    expect(pairs.map(({ name, interleavedHeadDim }) => [name, interleavedHeadDim])).toEqual([
      ['layers.0.q_proj.weight', 4],
      ['layers.0.k_proj.weight', 4],
    ]);
    expect(checkpoint.tensors.find(({ name }) => name === 'lm_head.weight')).toMatchObject({ dtype: 'f16' });
  });

  test('divides the rotary frequencies by a tensor', async () => {
    const bytes = new Uint8Array(Float32Array.of(1, 8).buffer);
    const { config } = await load(tinyGguf({}, (tensors) => tensors.set('rope_freqs.weight', { sizes: [2], bytes })));
    expect(config.spec.ropes[0]).toMatchObject({ type: 'default', frequencyDivisors: Float32Array.of(1, 8) });
    const zeros = tinyGguf({}, (tensors) => tensors.set('rope_freqs.weight', { sizes: [2] }));
    await expect(load(zeros)).rejects.toThrow('rope_freqs.weight: expected numbers above 0, got 0');
    const wrong = tinyGguf({}, (tensors) => tensors.set('rope_freqs.weight', { sizes: [3] }));
    await expect(load(wrong)).rejects.toThrow('rope_freqs.weight: expected F32 [2], got F32 [3]');
  });
});

test('reads QK norms, window and head dimension of Qwen3', async () => {
  const changes = asArchitecture('qwen3', {
    'qwen3.attention.key_length': { uint32: 6 },
    'qwen3.attention.value_length': { uint32: 6 },
    'qwen3.attention.sliding_window': { uint32: 16 },
  });
  const path = tinyGguf(changes, (tensors) => {
    const sizes: Record<string, readonly number[]> = { q: [8, 12], k: [8, 6], v: [8, 6] };
    for (const [name, size] of Object.entries(sizes)) {
      tensors.delete(`blk.0.attn_${name}.bias`);
      tensors.set(`blk.0.attn_${name}.weight`, { sizes: size });
    }
    tensors.set('blk.0.attn_output.weight', { sizes: [12, 8] });
    tensors.set('blk.0.attn_q_norm.weight', { sizes: [6] });
    tensors.set('blk.0.attn_k_norm.weight', { sizes: [6] });
  });
  const { spec } = (await load(path)).config;
  expect(spec).toMatchObject({
    headDim: 6,
    attentionScale: 1 / Math.sqrt(6),
    layers: [{ mixer: 'attention', window: 16, rope: 0, isMoe: false }],
  });
  expect(spec.qkNorm).toBe('head');
});

test('an expert is a slice of the tensor that holds all, in whole blocks', async () => {
  const changes = asArchitecture('qwen3moe', {
    'qwen3moe.expert_count': { uint32: 4 },
    'qwen3moe.expert_used_count': { uint32: 2 },
  });
  const path = tinyGguf(changes, (tensors) => {
    for (const name of ['q', 'k', 'v']) tensors.delete(`blk.0.attn_${name}.bias`);
    for (const name of ['gate', 'up', 'down']) tensors.delete(`blk.0.ffn_${name}.weight`);
    for (const name of ['q', 'k']) tensors.set(`blk.0.attn_${name}_norm.weight`, { sizes: [4] });
    tensors.set('blk.0.ffn_gate_inp.weight', { sizes: [8, 4] });
    for (const name of ['gate', 'up']) tensors.set(`blk.0.ffn_${name}_exps.weight`, { sizes: [8, 32, 4] });
    tensors.set('blk.0.ffn_down_exps.weight', { sizes: [32, 8, 4], type: 8 });
  });
  const { config, checkpoint } = await load(path);
  expect(config.spec.layers[0].isMoe).toBe(true);
  expect(config.spec.moe).toMatchObject({ numExperts: 4, topK: 2, intermediateSize: 32, normalizesWeights: true });
  const experts = (name: string) =>
    checkpoint.tensors.filter((tensor) => tensor.name.startsWith('layers.0.experts.') && tensor.name.includes(name));
  const gates = experts('.gate_proj.');
  expect(gates.map(({ shape }) => shape)).toEqual([0, 1, 2, 3].map(() => [32, 8]));
  expect(gates.map(({ offset }) => offset - gates[0].offset)).toEqual([0, 1, 2, 3].map((i) => i * 32 * 8 * 4));
  const downs = experts('.down_proj.');
  expect(downs.map(({ dtype, shape }) => [dtype, ...shape])).toEqual([0, 1, 2, 3].map(() => ['q8_0', 8, 32]));
  expect(downs.map(({ offset }) => offset - downs[0].offset)).toEqual([0, 1, 2, 3].map((i) => i * 8 * 34));
});

test.each<[what: string, value: GgufValue, windows: number[]]>([
  ['as it is by default', { uint32: 6 }, [16]],
  ['as the file says', { bools: [false] }, [0]],
])('the windows of Gemma 3 are %s', async (_what, pattern, windows) => {
  const changes = asArchitecture('gemma3', {
    'gemma3.attention.sliding_window': { uint32: 16 },
    'gemma3.attention.sliding_window_pattern': pattern,
  });
  const path = tinyGguf(changes, (tensors) => {
    for (const name of ['q', 'k', 'v']) tensors.delete(`blk.0.attn_${name}.bias`);
    for (const name of ['q', 'k']) tensors.set(`blk.0.attn_${name}_norm.weight`, { sizes: [4] });
    for (const name of ['attention', 'ffw']) tensors.set(`blk.0.post_${name}_norm.weight`, { sizes: [8] });
  });
  const { spec } = (await load(path)).config;
  expect(spec.layers.map(({ window }) => window)).toEqual(windows);
  expect(spec).toMatchObject({
    hiddenAct: 'gelu_tanh',
    normOffset: 0,
    embeddingScale: Math.sqrt(8),
    attentionScale: 0.5,
  });
  expect(spec.ropes.map(({ theta }) => theta)).toEqual([10_000, 10_000]);
});

describe('rotary scaling', () => {
  const ropeOf = async (changes: MetadataChanges) => (await load(tinyGguf(changes))).config.spec.ropes[0];

  test('none, linear, and the old key for linear', async () => {
    expect(await ropeOf({ 'qwen2.rope.scaling.type': { string: 'none' } })).toMatchObject({
      type: 'default',
      factor: 1,
    });
    const linear = { type: 'linear', factor: 4, originalMaxPositions: 4096 };
    expect(await ropeOf({ 'qwen2.rope.scale_linear': { float32: 4 } })).toMatchObject(linear);
    expect(
      await ropeOf({ 'qwen2.rope.scaling.type': { string: 'linear' }, 'qwen2.rope.scaling.factor': { float32: 4 } }),
    ).toMatchObject(linear);
  });

  const yarn: MetadataChanges = {
    'qwen2.rope.scaling.type': { string: 'yarn' },
    'qwen2.rope.scaling.factor': { float32: 4 },
    'qwen2.rope.scaling.original_context_length': { uint32: 1024 },
  };

  test('YaRN with its temperature', async () => {
    expect(await ropeOf(yarn)).toMatchObject({
      type: 'yarn',
      factor: 4,
      originalMaxPositions: 1024,
      betaFast: 32,
      betaSlow: 1,
      attentionFactor: 0.1 * Math.log(4) + 1,
    });
    const temperature = { 'qwen2.rope.scaling.yarn_attn_factor': { float32: 1.5 } };
    expect(await ropeOf({ ...yarn, ...temperature })).toMatchObject({ attentionFactor: 1.5 });
    const multiplier = { 'qwen2.rope.scaling.yarn_log_multiplier': { float32: 1 } };
    expect(await ropeOf({ ...yarn, ...multiplier })).toMatchObject({ attentionFactor: 1 });
  });

  test('another type is refused by name', async () => {
    await expect(ropeOf({ 'qwen2.rope.scaling.type': { string: 'ntk' } })).rejects.toMatchObject({
      code: 'unsupported_model',
      message: 'tiny.gguf: qwen2.rope.scaling.type: expected one of none, linear, yarn, longrope, got "ntk"',
    });
  });
});

describe('refuses', () => {
  const remove =
    (...names: string[]) =>
    (tensors: Map<string, GgufTensor>) =>
      names.forEach((name) => tensors.delete(name));
  const set = (name: string, tensor: GgufTensor) => (tensors: Map<string, GgufTensor>) =>
    void tensors.set(name, tensor);

  const metadataCases: [what: string, changes: MetadataChanges, code: string, message: string][] = [
    [
      'an architecture that is not supported',
      asArchitecture('falcon'),
      'unsupported_model',
      'general.architecture: expected one of the architectures llama, mistral3, qwen2, qwen3,',
    ],
    ['a projector', { 'general.type': { string: 'mmproj' } }, 'unsupported_model', 'general.type: expected model, got'],
    ['a missing key', { 'qwen2.block_count': null }, 'invalid_model', 'qwen2.block_count: expected an integer'],
    ['too many layers', { 'qwen2.block_count': { uint32: 5000 } }, 'invalid_model', 'an integer from 1 to 4096'],
    ['a text as number', { 'qwen2.context_length': { string: '1' } }, 'invalid_model', 'qwen2.context_length'],
    ['experts', { 'qwen2.expert_count': { uint32: 8 } }, 'unsupported_model', 'qwen2.expert_count: expected 0, got 8'],
    ['an encoder', { 'qwen2.attention.causal': { bool: false } }, 'unsupported_model', 'qwen2.attention.causal'],
    ['a scale', { 'qwen2.logit_scale': { float32: 0.5 } }, 'unsupported_model', 'qwen2.logit_scale: expected 0'],
    ['odd heads', { 'qwen2.attention.head_count_kv': { uint32: 3 } }, 'invalid_model', 'a divisor of the 2 heads'],
    [
      'layers with different sizes',
      { 'qwen2.block_count': { uint32: 2 }, 'qwen2.feed_forward_length': { int32s: [12, 13] } },
      'unsupported_model',
      'the same number for all layers',
    ],
    [
      'more sizes than layers',
      { 'qwen2.feed_forward_length': { int32s: [12, 12] } },
      'invalid_model',
      'qwen2.feed_forward_length: expected 1 numbers',
    ],
    [
      'a fraction for each layer',
      { 'qwen2.feed_forward_length': { float32s: [12.5] } },
      'invalid_model',
      'qwen2.feed_forward_length: expected an integer from 1 to 2147483647, got 12.5',
    ],
    [
      'a size for each layer that the addon cannot hold',
      { 'qwen2.feed_forward_length': { float32s: [2 ** 32] } },
      'invalid_model',
      'qwen2.feed_forward_length: expected an integer from 1 to 2147483647',
    ],
    ['an unknown tokenizer', { 'tokenizer.ggml.model': { string: 'rwkv' } }, 'unsupported_model', 'one of gpt2, llama'],
    ['no tokenizer', { 'tokenizer.ggml.model': null }, 'invalid_model', 'tokenizer.ggml.model: expected a string'],
  ];
  test.each(metadataCases)('%s', async (_what, changes, code, message) => {
    await expect(load(tinyGguf(changes))).rejects.toMatchObject({ code, message: expect.stringContaining(message) });
  });

  const tensorCases: [
    what: string,
    change: (tensors: Map<string, GgufTensor>) => void,
    code: string,
    message: string,
  ][] = [
    ['a missing tensor', remove('blk.0.ffn_up.weight'), 'invalid_model', 'a tensor of shape [12, 8] in the file'],
    ['a wrong shape', set('blk.0.ffn_up.weight', { sizes: [12, 8] }), 'invalid_model', 'shape [12, 8] as the metadata'],
    [
      'a tensor that nothing uses',
      set('blk.0.attn_sinks.weight', { sizes: [2] }),
      'unsupported_model',
      'blk.0.attn_sinks.weight: expected only tensors of the architecture qwen2',
    ],
    [
      'a type that cannot be loaded',
      set('blk.0.ffn_up.weight', { sizes: [8, 12], type: 24, bytes: new Uint8Array(96) }),
      'unsupported_model',
      'blk.0.ffn_up.weight: expected one of the types F32, F16, Q4_0,',
    ],
  ];
  test.each(tensorCases)('%s', async (_what, change, code, message) => {
    await expect(load(tinyGguf({}, change))).rejects.toMatchObject({ code, message: expect.stringContaining(message) });
  });
});

test('StableLM 2 12B is refused with the reason', async () => {
  const changes = asArchitecture('stablelm', {
    'stablelm.attention.layer_norm_rms_epsilon': null,
    'stablelm.attention.layer_norm_epsilon': { float32: 1e-5 },
    'stablelm.use_parallel_residual': { bool: true },
  });
  const path = tinyGguf(changes, (tensors) => {
    tensors.delete('blk.0.ffn_norm.weight');
    for (const name of ['attn_q_norm', 'attn_k_norm']) tensors.set(`blk.0.${name}.weight`, { sizes: [4, 2] });
  });
  await expect(load(path)).rejects.toMatchObject({
    code: 'unsupported_model',
    message:
      'blk.0.ffn_norm.weight: expected this tensor, got a model with layers whose attention and MLP run in parallel, as StableLM 2 12B has them',
  });
});

test('a refused tensor shows the start of its name without control characters', async () => {
  const name = `\u001b[2J${'x'.repeat(900)}`;
  await expect(load(tinyGguf({}, (tensors) => tensors.set(name, { sizes: [2] })))).rejects.toMatchObject({
    code: 'unsupported_model',
    message: expect.stringMatching(/^\\u001b\[2Jx{100,400}…: expected only tensors of the architecture qwen2/),
  });
});

test('accepts equal values for all layers, and quantized tensors', async () => {
  const changes: MetadataChanges = {
    'qwen2.feed_forward_length': { int32s: [32] },
    'qwen2.attention.head_count': { int32s: [2] },
  };
  const { config, checkpoint } = await load(
    tinyGguf(changes, (tensors) => {
      tensors.set('blk.0.ffn_gate.weight', { sizes: [8, 32] });
      tensors.set('blk.0.ffn_up.weight', { sizes: [8, 32] });
      tensors.set('blk.0.ffn_down.weight', { sizes: [32, 8], type: 8 });
    }),
  );
  expect(config.spec).toMatchObject({ intermediateSize: 32, numHeads: 2 });
  expect(checkpoint.tensors.find(({ name }) => name === 'layers.0.down_proj.weight')).toMatchObject({ dtype: 'q8_0' });
});

describe('the factor of NVFP4 weights', () => {
  const changes: MetadataChanges = { 'qwen2.feed_forward_length': { uint32: 64 } };
  const down: GgufTensor = { sizes: [64, 8], type: 40, bytes: new Uint8Array(8 * 36) };
  const withDown = (change: Record<string, GgufTensor> = {}) =>
    tinyGguf(changes, (tensors) => {
      for (const name of ['gate', 'up']) tensors.set(`blk.0.ffn_${name}.weight`, { sizes: [8, 64] });
      tensors.set('blk.0.ffn_down.weight', down);
      for (const [name, tensor] of Object.entries(change)) tensors.set(`blk.0.${name}`, tensor);
    });
  const downOf = async (path: string) =>
    (await load(path)).checkpoint.tensors.find(({ name }) => name === 'layers.0.down_proj.weight');

  test('lies in a tensor, and is 1 without it', async () => {
    const one = { sizes: [1] };
    const found = await downOf(withDown({ 'ffn_down.scale': one, 'ffn_down.input_scale': one }));
    expect(found).toMatchObject({ dtype: 'nvfp4', scaleFactor: { file: 0, dtype: 'f32' } });
    expect(found!.scaleFactor!.offset).toBeGreaterThan(found!.offset);
    expect(await downOf(withDown())).not.toHaveProperty('scaleFactor');
  });

  test('lies in a tensor of all experts', async () => {
    const experts = asArchitecture('qwen3moe', {
      'qwen3moe.expert_count': { uint32: 2 },
      'qwen3moe.expert_used_count': { uint32: 2 },
    });
    const path = tinyGguf(experts, (tensors) => {
      for (const name of ['q', 'k', 'v']) tensors.delete(`blk.0.attn_${name}.bias`);
      for (const name of ['gate', 'up', 'down']) tensors.delete(`blk.0.ffn_${name}.weight`);
      for (const name of ['q', 'k']) tensors.set(`blk.0.attn_${name}_norm.weight`, { sizes: [4] });
      tensors.set('blk.0.ffn_gate_inp.weight', { sizes: [8, 2] });
      for (const name of ['gate', 'up']) tensors.set(`blk.0.ffn_${name}_exps.weight`, { sizes: [8, 64, 2] });
      tensors.set('blk.0.ffn_down_exps.weight', { sizes: [64, 8, 2], type: 40, bytes: new Uint8Array(2 * 8 * 36) });
      tensors.set('blk.0.ffn_down_exps.scale', { sizes: [2] });
    });
    const { tensors } = (await load(path)).checkpoint;
    const [first, second] = tensors.filter(({ name }) => name.endsWith('.down_proj.weight'));
    expect(second.offset - first.offset).toBe(8 * 36);
    expect(second.scaleFactor!.offset - first.scaleFactor!.offset).toBe(4);
  });

  test.each<[string, Record<string, GgufTensor>, string]>([
    ['two factors', { 'ffn_down.scale': { sizes: [2] } }, 'blk.0.ffn_down.scale: expected F32 [1], got F32 [2]'],
    ['a factor in F16', { 'ffn_down.scale': { sizes: [1], type: 1 } }, 'expected F32 [1], got F16 [1]'],
    ['a factor of other weights', { 'ffn_up.scale': { sizes: [1] } }, 'a tensor that Capstan does not know'],
  ])('%s: refused', async (_what, change, message) => {
    await expect(load(withDown(change))).rejects.toThrow(message);
  });
});

describe('a folder', () => {
  const folder = (...names: string[]): string => {
    const dir = mkdtempSync(join(tmpdir(), 'capstan-gguf-'));
    const file = tinyGguf();
    for (const name of names) copyFileSync(file, join(dir, name));
    return dir;
  };

  test.each(['mmproj-m.gguf', 'm-mmproj-f16.gguf', 'imatrix.gguf', 'config.json'])(
    'with one GGUF file is that model; %s beside it does not count',
    async (other) => {
      expect((await load(folder('m.gguf', other, 'README.md'))).checkpoint.files[0]).toMatch(/\/m\.gguf$/);
    },
  );

  test.each(['m-Q4_K_M-imatrix.gguf', 'm-imatrix.gguf'])('%s alone is a model', async (name) => {
    expect((await load(folder(name, 'mmproj-m.gguf'))).checkpoint.files[0]).toMatch(new RegExp(`/${name}$`));
  });

  test('with several models is refused with their names', async () => {
    await expect(load(folder('a.gguf', 'b.gguf'))).rejects.toThrow('2 models: a.gguf, b.gguf');
    await expect(load(folder('a.gguf', 'a-Q4_0-imatrix.gguf'))).rejects.toThrow(
      '2 models: a-Q4_0-imatrix.gguf, a.gguf',
    );
  });

  test('without a first part is refused', async () => {
    await expect(load(folder('m-00002-of-00002.gguf'))).rejects.toThrow('the first part of a split GGUF file');
  });

  test('with config.json is a model directory', async () => {
    const dir = tinyModel();
    copyFileSync(tinyGguf(), join(dir, 'other.gguf'));
    expect((await load(dir)).checkpoint.files[0]).toMatch(/model\.safetensors$/);
  });
});

describe('a split model', () => {
  /** Writes the tiny model in two parts and returns the path of the first. */
  const split = (change: (parts: { names: string[]; metadata: MetadataChanges[] }) => void = () => {}): string => {
    const names = ['m-00001-of-00002.gguf', 'm-00002-of-00002.gguf'];
    const tensors = tinyGgufTensors();
    const count: MetadataChanges = { 'split.count': { uint16: 2 }, 'split.tensors.count': { int32: tensors.length } };
    const parts = { names, metadata: [0, 1].map((no): MetadataChanges => ({ ...count, 'split.no': { uint16: no } })) };
    change(parts);
    const dir = mkdtempSync(join(tmpdir(), 'capstan-gguf-'));
    const bytes = [
      ggufBytes({ metadata: changedMetadata(parts.metadata[0]), tensors: tensors.slice(0, 5) }),
      ggufBytes({ metadata: changedMetadata(parts.metadata[1], []), tensors: tensors.slice(5) }),
    ];
    names.forEach((name, i) => name !== '' && writeFileSync(join(dir, name), bytes[i]));
    return join(dir, names[0] === '' ? names[1] : names[0]);
  };

  test('is read from each part, and from its folder', async () => {
    const path = split();
    for (const place of [path, path.replace('00001-of', '00002-of'), dirname(path)]) {
      const { checkpoint, name } = await load(place);
      expect(checkpoint.files.map((file) => file.slice(-21))).toEqual([
        'm-00001-of-00002.gguf',
        'm-00002-of-00002.gguf',
      ]);
      expect(new Set(checkpoint.tensors.map(({ file }) => file))).toEqual(new Set([0, 1]));
      if (place !== dirname(path)) expect(name).toBe('m');
    }
  });

  test('without a part is refused with its name', async () => {
    const missing = split(({ names }) => (names[1] = ''));
    await expect(load(missing)).rejects.toThrow(
      'm-00002-of-00002.gguf: expected all 2 parts of the model in one folder',
    );
  });

  test('without its first part is refused with the name of that part', async () => {
    const path = split(({ names }) => (names[0] = ''));
    await expect(load(path)).rejects.toThrow('(m-00001-of-00002.gguf), got part 2 of 2');
  });

  test('with parts that do not belong together is refused', async () => {
    const wrong = split(({ metadata }) => (metadata[1] = { ...metadata[1], 'split.no': { uint16: 0 } }));
    await expect(load(wrong)).rejects.toThrow('m-00002-of-00002.gguf: expected part 2 of 2, got split.no 0');
    const fewer = split(({ metadata }) => (metadata[0] = { ...metadata[0], 'split.tensors.count': { int32: 3 } }));
    await expect(load(fewer)).rejects.toThrow('split.tensors.count');
    const many = split(({ metadata }) => (metadata[0] = { ...metadata[0], 'split.count': { uint16: 5000 } }));
    await expect(load(many)).rejects.toThrow('a number from 1 to 1024');
    const renamed = split(({ names }) => (names[0] = 'x.gguf'));
    await expect(load(renamed)).rejects.toThrow('a name that ends with -00001-of-00002.gguf');
  });
});

test('a file that was merged from parts has a part count of 0', async () => {
  const merged = { 'split.count': { uint16: 0 }, 'split.no': { uint16: 0 }, 'split.tensors.count': { int32: 999 } };
  expect((await load(tinyGguf(merged))).checkpoint.files).toHaveLength(1);
});

test('a path that does not exist, and a file that is not GGUF, are explained', async () => {
  await expect(load('/no/model.gguf')).rejects.toThrow("a directory with config.json, a GGUF file, or 'demo'");
  const path = join(tinyModel(), 'config.json');
  await expect(load(path)).rejects.toThrow('config.json: expected a GGUF file, which starts with GGUF, got a file');
});

test.each([['qwen2', 'none. Rerankers of GGUF files run as ModernBERT and Qwen3-Reranker, this one is of qwen2']])(
  'a reranker of %s without the layer before its classifier',
  async (arch, message) => {
    const path = tinyGguf({ [`${arch}.pooling_type`]: { uint32: 4 } }, (tensors) =>
      tensors.set('cls.output.weight', { sizes: [8, 1] }),
    );
    await expect(load(path)).rejects.toMatchObject({
      code: 'unsupported_model',
      message: expect.stringContaining(message) as string,
    });
  },
);
