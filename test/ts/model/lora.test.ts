/** Reads adapters in the form of PEFT, and refuses what would be ignored. `test/oracle/lora.test.ts` has results. */
import { execFileSync } from 'node:child_process';
import { cpSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { readModelConfig } from '../../../ts/model/config';
import { readAdapter } from '../../../ts/model/lora/adapter';
import { temporaryFolder } from '../../fakes/temporary-folder';

const FIXTURES = join(__dirname, '../../oracle/fixtures');
const model = (name: string) =>
  readModelConfig(JSON.parse(readFileSync(join(FIXTURES, name, 'config.json'), 'utf8')), undefined);
const compileRegex = (pattern: string) => {
  if (pattern.includes('(?P')) return Promise.reject(new Error('regex: expected a group, got (?P'));
  return Promise.resolve((text: string) => new RegExp(`^(?:${pattern})$`).test(text));
};

const folder = temporaryFolder('lora');
let numCopies = 0;

interface Stored {
  dtype: string;
  shape: number[];
}

/** Returns a copy of an adapter, with another config and other names or headers of its tensors. */
function copy(
  config: Record<string, unknown> = {},
  change: (name: string, tensor: Stored) => [string, Stored] | undefined = (name, tensor) => [name, tensor],
  from = 'llama-all',
): string {
  const dir = join(folder, String(numCopies++));
  cpSync(join(FIXTURES, 'lora', from), dir, { recursive: true });
  const old = JSON.parse(readFileSync(join(dir, 'adapter_config.json'), 'utf8')) as object;
  writeFileSync(join(dir, 'adapter_config.json'), JSON.stringify({ ...old, ...config }));
  const file = join(dir, 'adapter_model.safetensors');
  const bytes = readFileSync(file);
  const length = Number(bytes.readBigUInt64LE());
  const header = JSON.parse(bytes.subarray(8, 8 + length).toString()) as Record<string, Stored>;
  const tensors: [string, Stored][] = [];
  for (const [name, tensor] of Object.entries(header)) {
    const changed = name === '__metadata__' ? undefined : change(name, tensor);
    if (changed !== undefined) tensors.push(changed);
  }
  writeTensors(file, tensors);
  return dir;
}

/** Writes zeros. */
function writeTensors(file: string, tensors: readonly [string, Stored][]): void {
  let end = 0;
  const header: Record<string, object> = {};
  for (const [name, { dtype, shape }] of tensors) {
    const size = { F64: 8, F32: 4, BF16: 2, F16: 2, I32: 4 }[dtype]!;
    const begin = end;
    end += shape.reduce((product, count) => product * count, size);
    header[name] = { dtype, shape, data_offsets: [begin, end] };
  }
  const text = Buffer.from(JSON.stringify(header));
  const size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt(text.length));
  writeFileSync(file, Buffer.concat([size, text, Buffer.alloc(end)]));
}

const read = (dir: string, base = 'llama3-f32') => readAdapter(dir, model(base), compileRegex);
const messageOf = (dir: string, base?: string) =>
  read(dir, base).then(
    () => 'no error',
    ({ code, message }: { code: string; message: string }) => `${code} ${message}`,
  );

test('reads ranks, scales and places of the projections', async () => {
  const { source, rank, numParameters } = await read(join(FIXTURES, 'lora/llama-patterns'));
  expect(rank).toBe(17);
  expect(numParameters).toBeGreaterThan(1000);
  const scales = source.modules.map(({ layer, projection, a, scale }) => [layer, projection, a.shape[0], scale]);
  expect(scales.sort()).toEqual([
    [0, 'q_proj', 5, 9 / Math.sqrt(5)],
    [0, 'up_proj', 5, 9 / Math.sqrt(5)],
    [0, 'v_proj', 3, 9 / Math.sqrt(3)],
    [1, 'q_proj', 17, 6 / Math.sqrt(17)],
    [1, 'up_proj', 5, 6 / Math.sqrt(5)],
    [1, 'v_proj', 3, 6 / Math.sqrt(3)],
  ]);
});

test('reads names with and without the prefixes of PEFT, and with the name of the adapter', async () => {
  const rename = (replace: (name: string) => string) => copy({}, (name, tensor) => [replace(name), tensor]);
  const numbers = async (dir: string) => (await read(dir)).source.modules.length;
  expect(await numbers(rename((name) => name.replace('base_model.model.', '')))).toBe(14);
  expect(await numbers(rename((name) => name.replace('base_model.model.model.', 'base_model.model.')))).toBe(14);
  expect(await numbers(rename((name) => name.replace('.weight', '.default.weight')))).toBe(14);
});

test.each<[string, Record<string, unknown>]>([
  [
    'unsupported_model adapter_config.json: use_dora: expected a plain LoRA adapter without it, got true',
    { use_dora: true },
  ],
  ['unsupported_model adapter_config.json: bias: expected none, got "all"', { bias: 'all' }],
  ['unsupported_model adapter_config.json: modules_to_save: expected a plain', { modules_to_save: ['lm_head'] }],
  ['unsupported_model adapter_config.json: peft_type: expected LORA, got "IA3"', { peft_type: 'IA3' }],
  ['unsupported_model adapter_config.json: task_type: expected CAUSAL_LM, got "SEQ_CLS"', { task_type: 'SEQ_CLS' }],
  ['unsupported_model adapter_config.json: init_lora_weights: expected true, false,', { init_lora_weights: 'pissa' }],
  ['unsupported_model adapter_config.json: trainable_token_indices', { trainable_token_indices: [1] }],
  ['unsupported_model adapter_config.json: lora_bias', { lora_bias: true }],
  ['invalid_model adapter_config.json: r: expected an integer from 1', { r: 0 }],
  ['invalid_model adapter_config.json: lora_alpha: expected a number above 0, got "x"', { lora_alpha: 'x' }],
  ['invalid_model adapter_config.json: target_modules: expected a list of module names', { target_modules: [1] }],
  [
    'invalid_model adapter_config.json: rank_pattern: q_proj: expected a number above 0',
    { rank_pattern: { q_proj: -1 } },
  ],
  ['invalid_model adapter_config.json: alpha_pattern: regex: expected a group', { alpha_pattern: { '(?P<a>q)': 1 } }],
  ['invalid_model adapter_config.json: layers_to_transform: expected a layer', { layers_to_transform: 'x' }],
  [
    'base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight: expected shape [2, 60] for this model and rank, got [4, 60]',
    { rank_pattern: { q_proj: 2 } },
  ],
])('refuses: %s', async (message, config) => {
  expect(await messageOf(copy(config))).toContain(message);
});

test.each<[string, string, string]>([
  ['q_proj.lora_A.weight', 'q_proj.lora_magnitude_vector', 'got a tensor of DoRA'],
  [
    'q_proj.lora_A.weight',
    'q_proj.lora_embedding_A',
    'q_proj: expected both factors of a linear layer, got those of an embedding',
  ],
  ['q_proj.lora_B.weight', 'q_proj.lora_B.bias', 'got a bias of an update'],
  ['model.layers.0.mlp.up_proj.lora_A.weight', 'lm_head.modules_to_save.weight', 'got a weight of a module that was'],
  [
    'layers.0.self_attn.q_proj',
    'layers.9.self_attn.q_proj',
    'expected a linear layer of the text model, its embedding',
  ],
  [
    'layers.0.self_attn.q_proj',
    'layers.0.self_attn.rotary',
    'expected a linear layer of the text model, its embedding',
  ],
])('refuses a tensor %s named %s', async (from, to, message) => {
  const dir = copy({}, (name, tensor) => [name.includes(from) ? name.replace(from, to) : name, tensor]);
  expect(await messageOf(dir)).toContain(message);
});

test('refuses missing and odd tensors by their names', async () => {
  const only = (keep: (name: string) => boolean) =>
    copy({}, (name, tensor) => (keep(name) ? [name, tensor] : undefined));
  expect(await messageOf(only((name) => !name.includes('layers.1.mlp.up_proj.lora_B')))).toContain(
    'model.layers.1.mlp.up_proj: expected lora_A.weight and lora_B.weight, got only lora_A.weight',
  );
  expect(await messageOf(only((name) => !name.includes('layers.1.mlp.up_proj')))).toContain(
    'model.layers.1.mlp.up_proj: expected the tensors of a module that target_modules names, got none',
  );
  expect(await messageOf(only(() => false))).toContain('expected tensors of an adapter, got none');
  const wide = copy({}, (name, tensor) => [
    name,
    name.includes('o_proj.lora_B') ? { ...tensor, shape: [61, 4] } : tensor,
  ]);
  expect(await messageOf(wide)).toContain(
    'o_proj.lora_B.weight: expected shape [60, 4] for this model and rank, got [61, 4]',
  );
  const integers = copy({}, (name, tensor) => [name, { ...tensor, dtype: 'I32' }]);
  expect(await messageOf(integers)).toContain('expected F32, F16 or BF16, got I32');
});

test('reads the head, the embedding and their copies of the weights of the model', async () => {
  const { source, rank } = await read(join(FIXTURES, 'lora/llama-head'));
  expect(rank).toBe(4);
  const outer = source.modules.filter(({ layer }) => layer < 0);
  expect(outer.map(({ projection, a, b }) => [projection, a.shape, a.isTransposed, b.shape])).toEqual([
    ['lm_head', [4, 60], undefined, [317, 4]],
    ['embed_tokens', [317, 4], true, [60, 4]],
  ]);
  const resized = copy(
    {},
    (name, tensor) => [name, name.endsWith('lm_head.base_layer.weight') ? { ...tensor, shape: [318, 60] } : tensor],
    'llama-head',
  );
  expect(await messageOf(resized)).toContain(
    'lm_head.base_layer.weight: expected the weights of the model, of shape [317, 60], got [318, 60]',
  );
  const without = (part: string) =>
    copy({}, (name, tensor) => (name.includes(part) ? undefined : [name, tensor]), 'llama-head');
  for (const name of ['lm_head', 'model.embed_tokens'])
    expect(await messageOf(without(name))).toContain(
      `${name}: expected the tensors of a module that target_modules names, got none`,
    );
  const linear = copy({ target_modules: 'all-linear' });
  expect(await messageOf(linear)).toBe('no error');
});

test('reads the parameters of experts, which PEFT names after their module', async () => {
  const change = (config: Record<string, unknown>, only = '') =>
    copy(config, (name, tensor) => (name.includes(only) ? undefined : [name, tensor]), 'gpt-oss-experts');
  const { source } = await read(change({}, 'no such name'), 'gpt-oss-f32');
  const layer = source.modules.filter(({ layer, projection }) => layer === 1 && projection.startsWith('experts.'));
  expect(layer.map(({ projection, a, b }) => [projection, a.shape, b.shape, b.interleavedHeadDim])).toEqual([
    ['experts.gate_up_proj', [12, 48], [128, 12], 128],
    ['experts.down_proj', [12, 64], [48, 12], undefined],
  ]);
  expect(await messageOf(change({}, 'experts.lora'), 'gpt-oss-f32')).toContain(
    'layers.0.mlp.experts.down_proj: expected the tensors of a parameter that target_parameters names, got none',
  );
  expect(await messageOf(change({ target_parameters: null }, 'no such name'), 'gpt-oss-f32')).toContain(
    'mlp.experts.base_layer: expected at least 2 parameters of this module in target_parameters, got 0',
  );
  expect(await messageOf(change({ target_parameters: 'experts' }, 'no such name'), 'gpt-oss-f32')).toContain(
    'adapter_config.json: target_parameters: expected a list of parameter names',
  );
  const bias = { target_parameters: ['experts.gate_up_proj_bias', 'experts.down_proj', 'router.weight'] };
  expect(await messageOf(change(bias, 'no such name'), 'gpt-oss-f32')).toContain(
    'mlp.experts.gate_up_proj_bias: expected a linear layer of the text model, its embedding',
  );
});

test('refuses experts of a dense model, and what is no projection of a recurrent layer, by name', async () => {
  const expert = (name: string) => name.replace('self_attn.q_proj', 'mlp.experts.0.up_proj');
  const dir = copy({}, (name, tensor) => [expert(name), tensor], 'moe-attention');
  expect(await messageOf(dir)).toContain('layers.0.mlp.experts.0.up_proj: expected a linear layer');
  const recurrent = (name: string) => name.replace(/layers\.\d\.self_attn\.q_proj/, 'layers.0.linear_attn.conv1d');
  const other = copy({}, (name, tensor) => [recurrent(name), tensor], 'qwen35-attention');
  expect(await messageOf(other, 'qwen35-f32')).toContain('layers.0.linear_attn.conv1d: expected a linear layer');
});

test.each([
  'model.vision_tower.vision_model.encoder.layers.0.self_attn.',
  'model.visual.blocks.0.attn.',
  'vision_tower.transformer.layers.1.attention.',
  'model.multi_modal_projector.',
  'model.audio_tower.layers.0.self_attn.',
])('leaves out modules of images and sounds: %s', async (place) => {
  const text = await read(copy());
  // As PEFT names them in a model of text with images. The first tensor may be one of them.
  const dir = copy({}, (name, tensor) => [
    name
      .replace('model.model.layers.0.self_attn.', `model.${place}`)
      .replace('model.model.l', 'model.model.language_model.l'),
    tensor,
  ]);
  const config = JSON.parse(readFileSync(join(dir, 'adapter_config.json'), 'utf8')) as object;
  const targets = '.*language_model.*(mlp.*|layers\\.1\\.self_attn\\..*)';
  writeFileSync(join(dir, 'adapter_config.json'), JSON.stringify({ ...config, target_modules: targets }));
  const { source } = await read(dir);
  const places = ({ modules }: typeof source) => modules.map(({ layer, projection }) => `${layer} ${projection}`);
  expect(places(source)).toEqual(places(text.source).filter((name) => !/^0 [qkvo]_/.test(name)));
});

test('says which file is missing', async () => {
  const dir = copy();
  rmSync(join(dir, 'adapter_model.safetensors'));
  writeFileSync(join(dir, 'adapter_model.bin'), '');
  expect(await messageOf(dir)).toBe(
    'invalid_model adapter_model.safetensors: expected the file in the folder of the adapter, got adapter_model.bin',
  );
  expect(await messageOf(join(dir, 'none'))).toContain('invalid_model expected the folder of an adapter');
  const withoutConfig = copy();
  rmSync(join(withoutConfig, 'adapter_config.json'));
  expect(await messageOf(withoutConfig)).toContain(
    'invalid_model adapter_config.json: expected the file in the folder of the adapter, got none',
  );
});

test.each(['adapter_config.json', 'adapter_model.safetensors'])('refuses a pipe as %s at once', async (name) => {
  const dir = copy();
  rmSync(join(dir, name));
  execFileSync('mkfifo', [join(dir, name)]);
  expect(await messageOf(dir)).toBe(`invalid_model ${name}: expected a regular file, got another kind of file`);
});

test('bounds the configuration, its patterns and the names of tensors', async () => {
  const names = (count: number) => Array.from({ length: count }, (_, i) => `x${i}`);
  expect(await messageOf(copy({ comment: 'x'.repeat(1 << 20) }))).toMatch(
    /^invalid_model adapter_config\.json: expected at most 1048576 bytes, got 10\d+ bytes$/,
  );
  expect(await messageOf(copy({ exclude_modules: names(9000) }))).toBe('no error');
  const ranks = Object.fromEntries(names(6000).map((name) => [name, 1]));
  expect(await messageOf(copy({ rank_pattern: ranks, alpha_pattern: ranks }))).toBe(
    'invalid_model adapter_config.json: alpha_pattern: expected at most 10000 patterns and names in this file, got more than 10000',
  );
  const many = copy({ rank_pattern: ranks });
  const factor: [string, Stored][] = names(4000).map((name) => [`${name}.lora_A.weight`, { dtype: 'F32', shape: [1] }]);
  writeTensors(join(many, 'adapter_model.safetensors'), factor);
  expect(await messageOf(many)).toBe(
    'invalid_model adapter_config.json: expected at most 20000000 comparisons of modules with patterns, got 24000000 of 4000 modules with 6000 patterns',
  );
  const long = copy({}, (name, tensor) => [name.replace('base_model', 'b'.repeat(1024)), tensor]);
  expect(await messageOf(long)).toContain('expected a name of at most 1024 characters');
});

test('refuses a module that is stored twice under different prefixes', async () => {
  const twice = copy({}, (name, tensor) => [name.replace('base_model.model.model.layers.1', 'layers.0'), tensor]);
  expect(await messageOf(twice)).toContain('layers.0.mlp.down_proj: expected each module once, got a second one');
});

test.each([
  ['llama-all', 'llama3-f32', 'layers.1.mlp.up_proj.lora_A', 'layers.0.mlp.up_proj.lora_A.default', 'each factor'],
  [
    'gpt-oss-experts',
    'gpt-oss-f32',
    'base_model.model.model.layers.1.mlp.experts.base',
    'layers.0.mlp.experts.base',
    'each module',
  ],
])('refuses what is stored twice (%s)', async (adapter, base, from, to, expected) => {
  const dir = copy({}, (name, tensor) => [name.replace(from, to), tensor], adapter);
  expect(await messageOf(dir, base)).toMatch(new RegExp(`expected ${expected}.* once, got a second one`));
});

test('refuses a parameter of experts under its own name', async () => {
  const rename = (name: string) => name.replace('layers.0.mlp.experts.lora', 'layers.0.mlp.experts.down_proj.lora');
  const dir = copy({}, (name, tensor) => [rename(name), tensor], 'gpt-oss-experts');
  expect(await messageOf(dir, 'gpt-oss-f32')).toContain(
    'mlp.experts.down_proj: expected the factors of a parameter under the name of its module, got its own name',
  );
});

test.each<[string, string | null, string]>([
  ['qwen2-moe', null, 'no peft_version'],
  ['qwen2-moe', '0.18.1', '0.18.1'],
  ['qwen2-moe', '0.19.0', '0.19.0'],
  ['qwen2-moe', '0.19.1.dev0', '0.19.1.dev0'],
  ['qwen2-moe', '0.19.1', ''],
  ['qwen2-moe', '0.21.0', ''],
  ['qwen2-moe', '1.0.0', ''],
  ['gpt-oss', '0.18.1', ''],
  ['gpt-oss', '0.19.0', '0.19.0'],
  ['gpt-oss', '0.19.1', ''],
])('refuses experts of %s of a PEFT that swaps their inputs and outputs: %s', async (family, version, received) => {
  // Inputs and outputs of gate_up_proj of qwen2-moe have equal sizes, as do those of gpt-oss after this change.
  const isSwapped = received !== '' && family === 'gpt-oss';
  const swap = (name: string, tensor: Stored): [string, Stored] => {
    if (!isSwapped || !name.includes('experts.base_layer')) return [name, tensor];
    return [name, { ...tensor, shape: name.includes('lora_A') ? [12, 128] : [48, 12] }];
  };
  const message = await messageOf(copy({ peft_version: version }, swap, `${family}-experts`), `${family}-f32`);
  if (received === '') expect(message).toBe('no error');
  else
    expect(message).toContain(
      `experts.base_layer.lora_A.weight: expected factors of experts from PEFT 0.19.1 or later, got ${received}`,
    );
});

test.each([
  ['qwen2-moe-experts', 'qwen2-moe-f32', '2.mlp.gate.', 'layers.2.mlp.gate: expected the tensors of a parameter that'],
  ['qwen2-moe-experts', 'qwen2-moe-f32', 'mlp.gate.', 'layers.0.mlp.gate: expected the tensors of a parameter that'],
  [
    'mixtral-old-experts',
    'mixtral-f32',
    '0.block_sparse_moe.experts.3.w1',
    'experts.3.w1: expected the tensors of a module',
  ],
  ['mixtral-old-experts', 'mixtral-f32', '1.block_sparse_moe.gate', 'gate: expected the tensors of a module'],
])('refuses missing routers and experts (%s, %s, %s)', async (adapter, base, missing, message) => {
  const dir = copy({}, (name, tensor) => (name.includes(missing) ? undefined : [name, tensor]), adapter);
  expect(await messageOf(dir, base)).toContain(message);
});

test('the event loop goes on between modules', async () => {
  let turn = 0;
  let isDone = false;
  const next = () => {
    turn++;
    if (!isDone) setImmediate(next);
  };
  setImmediate(next);
  const numCalls = new Map<number, number>();
  const countCall = () => Promise.resolve(() => numCalls.set(turn, (numCalls.get(turn) ?? 0) + 1).size < 0);
  const dir = copy({ alpha_pattern: { 'no.*module': 1 }, rank_pattern: { 'none.*too': 1 } });
  const { source } = await readAdapter(dir, model('llama3-f32'), countCall).finally(() => (isDone = true));
  expect(source.modules.length).toBe(14);
  expect([...numCalls.values()]).toEqual(Array<number>(14).fill(2));
});
