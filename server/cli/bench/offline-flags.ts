import type { Command } from 'commander';
import { addOutputFlags, type OutputFlags, readOutputFlags } from './output-flags';
import type { EngineOptions } from '../../../ts';
import type { OfflineBenchOptions } from '../../bench/offline-bench';
import { HUB_HELP, HUBS, MODEL_ARGUMENT } from '../model-argument';
import { parseOneOf, parseWhole } from './flag-values';

/** The flags as commander returns them. */
export interface OfflineBenchFlags extends OutputFlags {
  numPrompts: string;
  inputLen: string;
  outputLen: string;
  prefixLen: string;
  seed: string;
  threads?: string;
  pinThreads?: boolean;
  dtype: string;
  quantization: string;
  hub?: string;
  maxNumSeqs?: string;
  maxNumBatchedTokens?: string;
  profile?: boolean;
  outputJson?: string;
}

/** Adds the flags, named as in `vllm bench throughput`. */
export function addOfflineBenchFlags(command: Command): Command {
  command
    .argument('[model]', MODEL_ARGUMENT)
    .option('--hub <name>', HUB_HELP)
    .option('--num-prompts <number>', 'number of requests', '64')
    .option('--input-len <tokens>', 'length of each prompt in tokens, without the shared prefix', '256')
    .option('--output-len <tokens>', 'number of output tokens per request', '64')
    .option('--prefix-len <tokens>', 'length of a prefix that all prompts share, in tokens', '0')
    .option('--seed <number>', 'seed of the random prompts', '0')
    .option(
      '--threads <number>',
      'total number of CPU threads (default: the number of cores that CPU affinity and the control group allow)',
    )
    .option('--pin-threads', 'pin each CPU thread to a core')
    .option('--dtype <type>', 'data type of the weights: auto, f32, f16 or bf16', 'auto')
    .option('--quantization <bits>', 'quantize the weights at load: none, int8 or int4', 'none')
    .option('--max-num-seqs <number>', 'maximum number of sequences that run at the same time (default: 64)')
    .option('--max-num-batched-tokens <tokens>', 'maximum number of tokens per step (default: 512)')
    .option('--profile', 'print where the time of the steps goes, and how near the limit of the machine each part is')
    .option('--output-json <file>', 'write the result to this JSON file');
  return addOutputFlags(command);
}

/** @throws UsageError for the first wrong value. */
export function readOfflineBenchFlags(model: string | undefined, flags: OfflineBenchFlags): OfflineBenchOptions {
  const parseOptional = (name: string, value: string | undefined) =>
    value === undefined ? undefined : parseWhole(name, value, 1);
  const engine: EngineOptions = {
    threads: parseOptional('--threads', flags.threads),
    pinThreads: flags.pinThreads,
    dtype: parseOneOf('--dtype', flags.dtype, ['auto', 'f32', 'f16', 'bf16']),
    quantization: parseOneOf('--quantization', flags.quantization, ['none', 'int8', 'int4']),
    hub: flags.hub === undefined ? undefined : parseOneOf('--hub', flags.hub, HUBS),
    maxNumSeqs: parseOptional('--max-num-seqs', flags.maxNumSeqs),
    maxNumBatchedTokens: parseOptional('--max-num-batched-tokens', flags.maxNumBatchedTokens),
  };
  return {
    model: model ?? 'demo',
    engine: Object.fromEntries(Object.entries(engine).filter(([, value]) => value !== undefined)),
    numPrompts: parseWhole('--num-prompts', flags.numPrompts, 1),
    inputLen: parseWhole('--input-len', flags.inputLen, 1),
    outputLen: parseWhole('--output-len', flags.outputLen, 1),
    prefixLen: parseWhole('--prefix-len', flags.prefixLen, 0),
    seed: parseWhole('--seed', flags.seed, 0),
    profiles: flags.profile ?? false,
    resultPath: flags.outputJson,
    ...readOutputFlags(flags),
  };
}
