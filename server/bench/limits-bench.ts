import { measureLimits } from '../../ts/benchmarks';
import { type BenchReport, renderTable } from './bench-report';
import { describeMachine, machineText } from './machine';
import { type OutputOptions, writeOutput } from './output';

export interface LimitsBenchOptions extends OutputOptions {
  /** 0: all that this process may use. */
  threads: number;
  repeats: number;
  readBytes: number;
}

/** Measures the limits of the machine. Returns the exit code. */
export function limitsBench(options: LimitsBenchOptions): number {
  const { repeats, readBytes } = options;
  const limits = measureLimits({ threads: options.threads, repeats, readBytes });
  const { machine, threads } = limits;
  const rows: [string, string, number][] = [
    ...limits.reads.map(({ pattern, gbPerS }): [string, string, number] => [`read: ${pattern}`, 'GB/s', gbPerS]),
    ['8-bit products', 'GOP/s', limits.int8GopPerS],
    ['bf16 dot products (AVX512-BF16)', 'GFLOP/s', limits.bf16GflopPerS],
    ['bf16 tile products (AMX)', 'GFLOP/s', limits.amxBf16GflopPerS],
    ['8-bit tile products (AMX)', 'GOP/s', limits.amxInt8GopPerS],
    ['f32 multiply-add', 'GFLOP/s', limits.f32GflopPerS],
  ];
  const table = {
    title: 'Fastest of all repeats',
    columns: ['limit', 'unit', 'value'],
    // A machine without the instructions has no such limit.
    rows: rows.filter(([, , value]) => value > 0),
  };
  const report: BenchReport = {
    title: 'Limits of the machine',
    facts: [
      ['Machine', `${machine}; ${machineText()}`],
      ['Settings', `${threads} threads, ${repeats} repeats, ${readBytes} bytes per read`],
    ],
    tables: [table],
    plots: [],
  };
  const json = { ...limits, repeats, readBytes, machine: { ...describeMachine(), processor: machine } };
  writeOutput(options, { text: renderTable(table), json, report });
  return 0;
}
