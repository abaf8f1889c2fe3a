import type { Command } from 'commander';
import type { LimitsBenchOptions } from '../../bench/limits-bench';
import type { OpsBenchOptions } from '../../bench/ops-bench';
import { CPU_ISAS } from '../cpu-isas';
import { parseBytes } from '../flag-values';
import { parseOneOf, parseWhole, parseWholes } from './flag-values';
import { addOutputFlags, type OutputFlags, readOutputFlags } from './output-flags';

/** The flags of both benchmarks as commander returns them. */
interface MachineFlags extends OutputFlags {
  threads?: string;
  repeats: string;
  readBytes: string;
}

export type LimitsBenchFlags = MachineFlags;

export interface OpsBenchFlags extends MachineFlags {
  rows: string;
  dtype: string;
  quantization: string;
  kvCacheDtype: string;
  isa: string;
  context: string;
  layers: string;
  vocabSize: string;
}

const MAX_ROWS = 512;

export function addLimitsBenchFlags(command: Command): Command {
  return addMachineFlags(command);
}

export function addOpsBenchFlags(command: Command): Command {
  command
    .option('--rows <list>', 'rows of the steps: up to 64 decode one token each, above that one prompt', '1,8,64,512')
    .option('--dtype <type>', 'data type of the weights: f32, f16 or bf16', 'bf16')
    .option('--quantization <bits>', 'quantization of the weights: none, int8 or int4', 'none')
    .option('--kv-cache-dtype <type>', 'data type of the KV cache: auto (as the weights) or int8', 'auto')
    .option('--isa <name>', `CPU instruction set: ${CPU_ISAS.join(', ')}`, 'auto')
    .option('--context <tokens>', 'tokens in the KV cache of each sequence that decodes', '512')
    .option('--layers <number>', 'number of layers; with fewer, their weights may fit into the CPU caches', '24')
    .option('--vocab-size <number>', 'number of rows of the last matrix', '151936');
  return addMachineFlags(command);
}

function addMachineFlags(command: Command): Command {
  command
    .option(
      '--threads <number>',
      'total number of CPU threads (default: the number of cores that CPU affinity and the control group allow)',
    )
    .option('--repeats <number>', 'number of measurements of each figure', '5')
    .option('--read-bytes <bytes>', 'memory that each test of the read rate reads, for example 256M', '1G');
  return addOutputFlags(command);
}

function readMachineFlags(flags: MachineFlags): LimitsBenchOptions {
  return {
    threads: flags.threads === undefined ? 0 : parseWhole('--threads', flags.threads, 1),
    repeats: parseWhole('--repeats', flags.repeats, 1, 1000),
    readBytes: parseBytes(flags.readBytes, '--read-bytes'),
    ...readOutputFlags(flags),
  };
}

/** @throws UsageError for the first wrong value. */
export function readLimitsBenchFlags(flags: LimitsBenchFlags): LimitsBenchOptions {
  return readMachineFlags(flags);
}

/** @throws UsageError for the first wrong value. */
export function readOpsBenchFlags(flags: OpsBenchFlags): OpsBenchOptions {
  const { threads, repeats, readBytes, ...output } = readMachineFlags(flags);
  const ops = {
    rows: parseWholes('--rows', flags.rows, 1, MAX_ROWS),
    dtype: parseOneOf('--dtype', flags.dtype, ['f32', 'f16', 'bf16']),
    quantization: parseOneOf('--quantization', flags.quantization, ['none', 'int8', 'int4']),
    kvCacheDtype: parseOneOf('--kv-cache-dtype', flags.kvCacheDtype, ['auto', 'int8']),
    isa: parseOneOf('--isa', flags.isa, CPU_ISAS),
    threads,
    context: parseWhole('--context', flags.context, 1, 32_768),
    repeats,
    layers: parseWhole('--layers', flags.layers, 1, 100),
    vocabSize: parseWhole('--vocab-size', flags.vocabSize, 1, 1_000_000),
    readBytes,
  };
  return { ops, ...output };
}
