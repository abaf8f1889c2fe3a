import { measureOps, type OpsOptions, type OpsResult } from '../../ts/benchmarks';
import { type BenchReport, type Plot, renderTable, type Table } from './bench-report';
import { describeMachine, machineText } from './machine';
import { type OutputOptions, writeOutput } from './output';
import { Progress } from './progress';

export interface OpsBenchOptions extends OutputOptions {
  ops: OpsOptions;
}

/** Measures every op of the CPU backend. Returns the exit code. */
export function opsBench(options: OpsBenchOptions): number {
  const { ops } = options;
  const progress = new Progress(false);
  const results: OpsResult[] = [];
  progress.show('packing random weights');
  const run = measureOps(ops, (result) => {
    results.push(result);
    progress.show(`${results.length} of ${ops.rows.length} numbers of rows`);
  });
  progress.clear();
  const weights = ops.quantization === 'none' ? ops.dtype : `${ops.dtype} as ${ops.quantization}`;
  const table = opsTable(results);
  const report: BenchReport = {
    title: 'Ops of the CPU backend',
    facts: [
      ['Machine', `${run.machine}; ${machineText()}`],
      ['Settings', `${run.isa}, ${weights}, ${run.threads} threads, ${ops.layers} layers, context ${ops.context}`],
      ['Limit', 'the fastest read and computation in the same run, by a test of the machine or by an op'],
    ],
    tables: [table],
    plots: opsPlots(results),
  };
  const json = { ...ops, ...run, machine: { ...describeMachine(), processor: run.machine }, results };
  writeOutput(options, { text: renderTable(table), json, report });
  return 0;
}

function opsTable(results: readonly OpsResult[]): Table {
  return {
    title: 'Time and share of the limit',
    columns: ['rows', 'op', 'ms', 'GB/s', 'GFLOP/s', '% of limit'],
    rows: results.flatMap(({ rows, ops }) =>
      ops.map(({ op, ms, gbPerS, gflopPerS, limitShare }) => [rows, op, ms, gbPerS, gflopPerS, 100 * limitShare]),
    ),
  };
}

function opsPlots(results: readonly OpsResult[]): Plot[] {
  const x = { label: 'rows', values: results.map(({ rows }) => rows), isLog: true };
  const names = results[0].ops.map(({ op }) => op);
  // Lookups of embeddings have no limit worth a line.
  const lines = (value: (op: OpsResult['ops'][number]) => number) =>
    names
      .map((label, i) => ({ label, values: results.map(({ ops }) => value(ops[i])) }))
      .filter(({ values }) => values.some((each) => each > 0));
  return [
    { title: 'Share of the limit', x, yLabel: '%', series: lines(({ limitShare }) => 100 * limitShare) },
    { title: 'Time of a step', x, yLabel: 'ms', series: lines(({ ms }) => ms) },
  ];
}
