import type { Command } from 'commander';
import type { EngineOptions } from '../../ts';
import { parseOneOf, parseWhole } from './flag-values';

export interface OfflineBenchOptions {
  model: string;
  engine: EngineOptions;
  numPrompts: number;
  inputLen: number;
  outputLen: number;
  prefixLen: number;
  seed: number;
  resultPath: string | undefined;
}

/** As commander gives them. */
export interface OfflineBenchFlags {
  numPrompts: string;
  inputLen: string;
  outputLen: string;
  prefixLen: string;
  seed: string;
  threads?: string;
  pinThreads?: boolean;
  dtype: string;
  maxNumSeqs?: string;
  maxNumBatchedTokens?: string;
  outputJson?: string;
}

/** Flags under the names of `vllm bench throughput`. */
export function addOfflineBenchFlags(command: Command): Command {
  return command
    .argument('[model]', 'a model directory, or demo (default: demo)')
    .option('--num-prompts <number>', 'how many requests', '64')
    .option('--input-len <tokens>', 'length of each prompt', '256')
    .option('--output-len <tokens>', 'tokens of each answer', '64')
    .option('--prefix-len <tokens>', 'tokens before each prompt that all share', '0')
    .option('--seed <number>', 'decides the prompts', '0')
    .option('--threads <number>', 'threads in total (default: the cores of this process)')
    .option('--pin-threads', 'tie each thread to a core')
    .option('--dtype <type>', 'number type of the weights: auto, f32, f16 or bf16', 'auto')
    .option('--max-num-seqs <number>', 'most sequences running at once')
    .option('--max-num-batched-tokens <tokens>', 'most tokens per step')
    .option('--output-json <file>', 'write a JSON file');
}

/** @throws UsageError for the first value that is wrong. */
export function readOfflineBenchFlags(model: string | undefined, flags: OfflineBenchFlags): OfflineBenchOptions {
  const given = (name: string, value: string | undefined) =>
    value === undefined ? undefined : parseWhole(name, value, 1);
  const engine: EngineOptions = {
    threads: given('--threads', flags.threads),
    pinThreads: flags.pinThreads,
    dtype: parseOneOf('--dtype', flags.dtype, ['auto', 'f32', 'f16', 'bf16']),
    maxNumSeqs: given('--max-num-seqs', flags.maxNumSeqs),
    maxNumBatchedTokens: given('--max-num-batched-tokens', flags.maxNumBatchedTokens),
  };
  return {
    model: model ?? 'demo',
    engine: Object.fromEntries(Object.entries(engine).filter(([, value]) => value !== undefined)),
    numPrompts: parseWhole('--num-prompts', flags.numPrompts, 1),
    inputLen: parseWhole('--input-len', flags.inputLen, 1),
    outputLen: parseWhole('--output-len', flags.outputLen, 1),
    prefixLen: parseWhole('--prefix-len', flags.prefixLen, 0),
    seed: parseWhole('--seed', flags.seed, 0),
    resultPath: flags.outputJson,
  };
}
