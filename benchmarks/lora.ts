// Measures what LoRA adapters cost: the time of a decode step of several streams, each with a different adapter, as a
// share of the time without adapters. The adapters have random values in bf16.
//   node -r ./test/oracle/register-ts.cjs benchmarks/lora.ts MODEL_DIR [--adapters 8] [--rank 16] [--tokens 48]
//     [--rounds 7] [--quantization int8] [--modules all] [--out FILE.md]
// MODEL_DIR is a model of benchmarks/peers/make_model.py, or another dense model in the shape of Llama. The cases of a
// round take turns, so that other work on the machine delays all of them. `--modules all` changes the seven linear
// layers of each layer, `--modules attention` changes q_proj and v_proj, as PEFT does by default.
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { safetensors, type TinyTensor } from '../test/fakes/tiny-model';
import { Engine, type EngineOptions } from '../ts';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    adapters: { type: 'string', default: '8' },
    rank: { type: 'string', default: '16' },
    tokens: { type: 'string', default: '48' },
    rounds: { type: 'string', default: '7' },
    quantization: { type: 'string' },
    modules: { type: 'string', default: 'all' },
    out: { type: 'string' },
  },
});
const [numAdapters, rank, maxTokens, rounds] = [values.adapters, values.rank, values.tokens, values.rounds].map(
  Number,
) as [number, number, number, number];
const median = (numbers: readonly number[]): number => [...numbers].sort((a, b) => a - b)[numbers.length >> 1]!;

interface Config {
  hidden_size: number;
  intermediate_size: number;
  num_hidden_layers: number;
  num_attention_heads: number;
  num_key_value_heads: number;
  head_dim?: number;
}

/** The path, outputs and inputs of each layer that an adapter changes. */
function modulesOf(config: Config): [string, number, number][] {
  const { hidden_size: hidden, intermediate_size: inner, num_attention_heads: heads } = config;
  const headDim = config.head_dim ?? hidden / heads;
  const kv = config.num_key_value_heads * headDim;
  const all: [string, number, number][] = [
    ['self_attn.q_proj', heads * headDim, hidden],
    ['self_attn.v_proj', kv, hidden],
    ['self_attn.k_proj', kv, hidden],
    ['self_attn.o_proj', hidden, heads * headDim],
    ['mlp.gate_proj', inner, hidden],
    ['mlp.up_proj', inner, hidden],
    ['mlp.down_proj', hidden, inner],
  ];
  if (values.modules === 'attention') return all.slice(0, 2);
  if (values.modules === 'all') return all;
  throw new Error(`--modules: expected all or attention, got ${values.modules}`);
}

/** Values of bf16 between -2^-6 and 2^-6. */
function randomTensor(rows: number, cols: number): TinyTensor {
  const bytes = new Uint8Array(rows * cols * 2);
  for (let i = 0; i < bytes.length; i += 2) {
    const bits = Math.floor(Math.random() * 0x10000);
    // Exponents from 2^-10 to 2^-7.
    const value = (bits & 0x8000) | ((117 + ((bits >> 8) & 3)) << 7) | (bits & 0x7f);
    bytes[i] = value & 0xff;
    bytes[i + 1] = value >> 8;
  }
  return { dtype: 'BF16', shape: [rows, cols], bytes };
}

function writeAdapter(dir: string, config: Config): void {
  const modules = modulesOf(config);
  const tensors: Record<string, TinyTensor> = {};
  for (let layer = 0; layer < config.num_hidden_layers; layer++) {
    for (const [path, outputs, inputs] of modules) {
      const name = `base_model.model.model.layers.${layer}.${path}`;
      tensors[`${name}.lora_A.weight`] = randomTensor(rank, inputs);
      tensors[`${name}.lora_B.weight`] = randomTensor(outputs, rank);
    }
  }
  mkdirSync(dir);
  const names = modules.map(([path]) => path.split('.')[1]);
  const adapter = { peft_type: 'LORA', r: rank, lora_alpha: rank, target_modules: names, bias: 'none' };
  writeFileSync(join(dir, 'adapter_config.json'), JSON.stringify(adapter));
  writeFileSync(join(dir, 'adapter_model.safetensors'), safetensors(tensors));
}

/** Milliseconds per step of streams that decode together, each with its adapter. */
async function time(engine: Engine, adapters: readonly (string | undefined)[]): Promise<number> {
  const answers = await Promise.all(
    adapters.map((adapter, i) => {
      const sampling = { temperature: 0, maxTokens, ignoreEos: true, ...(adapter !== undefined && { adapter }) };
      return engine.generate([100 + i, 200, 300, 400], sampling).result();
    }),
  );
  return median(answers.map(({ usage }) => usage.timings.decodeMs)) / (maxTokens - 1);
}

async function main(): Promise<void> {
  const model = positionals[0];
  if (model === undefined) throw new Error('expected the folder of a model');
  const config = JSON.parse(readFileSync(join(model, 'config.json'), 'utf8')) as Config;
  const folder = mkdtempSync(join(os.tmpdir(), 'capstan-lora-'));
  try {
    const names = Array.from({ length: numAdapters }, (_, i) => `adapter-${i}`);
    for (const name of names) writeAdapter(join(folder, name), config);
    const loraModules = Object.fromEntries(names.map((name) => [name, join(folder, name)]));
    const quantization = values.quantization as NonNullable<EngineOptions['quantization']>;
    const engine = await Engine.load(model, {
      loraModules,
      maxModelLen: 1024,
      maxNumSeqs: numAdapters,
      ...(values.quantization !== undefined && { quantization }),
    });
    const cases = [names.map(() => undefined), names.map(() => names[0]), names];
    const ms: number[][] = cases.map(() => []);
    for (let round = 0; round <= rounds; round++) {
      for (const [i, adapters] of cases.entries()) {
        const step = await time(engine, adapters);
        if (round > 0) ms[i]!.push(step); // the first round warms up
      }
    }
    const ratios = (i: number): string => {
      const all = ms[i]!.map((step, round) => step / ms[0]![round]!);
      return `${median(all).toFixed(3)}× (${Math.min(...all).toFixed(3)}–${Math.max(...all).toFixed(3)})`;
    };
    const { isa, threads } = engine.info;
    await engine.close();
    const report = [
      `${model}, ${values.quantization ?? 'as it is'}, ${isa}, ${threads} threads, ${os.cpus()[0]?.model.trim()}, ${new Date().toISOString().slice(0, 10)}; ${numAdapters} streams, adapters of rank ${rank} on ${values.modules === 'all' ? 'all linear layers' : 'q_proj and v_proj'}, ${rounds} rounds`,
      '',
      '| no adapter (ms/step) | the same for all | ratio: median (all rounds) | one for each stream | ratio |',
      '|---|---|---|---|---|',
      `| ${median(ms[0]!).toFixed(2)} | ${median(ms[1]!).toFixed(2)} | ${ratios(1)} | ${median(ms[2]!).toFixed(2)} | ${ratios(2)} |`,
      '',
    ].join('\n');
    process.stdout.write(report);
    if (values.out !== undefined) writeFileSync(values.out, report);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

void main();
