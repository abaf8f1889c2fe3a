import type { Command } from 'commander';
import type { PeersBenchOptions } from '../../bench/peers-bench';
import { parseOneOf, parseWhole } from './flag-values';
import { addOutputFlags, type OutputFlags, readOutputFlags } from './output-flags';

/** The flags as commander returns them. */
export interface PeersBenchFlags extends OutputFlags {
  dir?: string;
  weights: string;
  checkpoint: string;
  gguf: string;
  openvino: string;
  rounds: string;
  threads: string;
  cpuTime?: boolean;
}

export function addPeersBenchFlags(command: Command): Command {
  command
    .option('--dir <dir>', 'folder with compare.py and the environments of the peers (default: benchmarks/peers)')
    .option(
      '--weights <type>',
      'type of the weights: bf16, int8 or int4; the models of the peers have it, and Capstan quantizes at load',
      'bf16',
    )
    .option('--checkpoint <dir>', 'model for Capstan, as make_model.py writes it', '/tmp/hf')
    .option('--gguf <file>', 'the same model for llama.cpp', '/tmp/bf16.gguf')
    .option('--openvino <dir>', 'the same model for OpenVINO', '/tmp/ov16')
    .option('--rounds <number>', 'number of measurements of each figure', '3')
    .option('--threads <number>', 'CPU threads of each engine', '2')
    .option('--cpu-time', 'report tokens per second of CPU time, for one thread on a busy machine');
  return addOutputFlags(command);
}

/** @throws UsageError for the first wrong value. */
export function readPeersBenchFlags(flags: PeersBenchFlags): PeersBenchOptions {
  const { dir, checkpoint, gguf, openvino } = flags;
  return {
    ...{ dir, checkpoint, gguf, openvino },
    weights: parseOneOf('--weights', flags.weights, ['bf16', 'int8', 'int4']),
    rounds: parseWhole('--rounds', flags.rounds, 1),
    threads: parseWhole('--threads', flags.threads, 1),
    countsCpuTime: flags.cpuTime ?? false,
    ...readOutputFlags(flags),
  };
}
