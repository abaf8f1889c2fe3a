import { join } from 'node:path';
import type { ServeBenchOptions } from './options';
import { renderTable } from './bench-report';
import { writeFile, writeOutput } from './output';
import { Progress } from './progress';
import { renderReport, resultJson } from './report';
import { runServeBench, TargetError } from './run';
import { type MeasuredRun, serveReport, sweepTable } from './serve-report';
import { summarize } from './summary';

/**
 * Runs the benchmark, prints the report and writes the result file.
 * @returns The exit code: 130 after Ctrl-C, 1 if no request succeeded or a sweep is incomplete, otherwise 0.
 */
export async function serveBench(options: ServeBenchOptions): Promise<number> {
  const stop = new AbortController();
  const onSignal = () => stop.abort();
  // `once`, so that a second Ctrl-C ends the process.
  process.once('SIGINT', onSignal);
  try {
    const runs = await measure(options, stop.signal);
    showResult(options, runs);
    if (stop.signal.aborted) return 130;
    const isComplete = runs.length === Math.max(1, options.sweep.length);
    return isComplete && runs.some(({ summary }) => summary.completed > 0) ? 0 : 1;
  } catch (error) {
    if (!(error instanceof TargetError)) throw error;
    process.stderr.write(`error: ${error.message}\n`);
    return stop.signal.aborted ? 130 : 1;
  } finally {
    process.off('SIGINT', onSignal);
  }
}

/** Runs the workload once, or once for each limit of a sweep. Ctrl-C ends the sweep with the current run. */
async function measure(options: ServeBenchOptions, signal: AbortSignal): Promise<MeasuredRun[]> {
  const progress = new Progress(options.isQuiet);
  const runs: MeasuredRun[] = [];
  try {
    for (const runOptions of runsOf(options)) {
      if (signal.aborted) break;
      const limit = options.sweep.length === 0 ? '' : `concurrency ${runOptions.maxConcurrency}: `;
      const onProgress = (numEnded: number, numFailed: number) =>
        progress.show(
          `${limit}${numEnded} of ${options.numPrompts} requests${numFailed > 0 ? `, ${numFailed} failed` : ''}`,
        );
      const run = await runServeBench(runOptions, { signal, onProgress });
      runs.push({ options: runOptions, run, summary: summarize(run, runOptions) });
    }
    return runs;
  } catch (error) {
    // A sweep that cannot continue reports the runs before.
    if (!(error instanceof TargetError) || runs.length === 0) throw error;
    progress.clear();
    process.stderr.write(`error: ${error.message}\n`);
    return runs;
  } finally {
    progress.clear();
  }
}

/** Each run of a sweep has its own prompts, which the prefix cache of the server does not hold yet. */
function runsOf(options: ServeBenchOptions): ServeBenchOptions[] {
  if (options.sweep.length === 0) return [options];
  return options.sweep.map((maxConcurrency, i) => ({ ...options, maxConcurrency, seed: options.seed + i }));
}

function showResult(options: ServeBenchOptions, runs: readonly MeasuredRun[]): void {
  const now = new Date();
  const isSweep = options.sweep.length > 0;
  const results = runs.map(({ run, summary, options: runOptions }) => resultJson(run, summary, runOptions, now));
  const json = isSweep ? { date: now.toISOString(), label: options.label ?? null, runs: results } : results[0];
  const [{ run, summary }] = runs;
  const text = isSweep ? renderTable(sweepTable(runs)) : renderReport(run, summary, options);
  writeOutput(options, { text, json, report: serveReport(runs, isSweep) });
  if (options.resultPath === undefined) return;
  writeFile(resultPathOf(options, run.model, now), `${JSON.stringify(json, null, 1)}\n`, options.printsJson);
}

function resultPathOf(
  { resultPath, backend, label, requestRate, maxConcurrency, sweep }: ServeBenchOptions,
  modelId: string,
  now: Date,
): string {
  if (!resultPath!.endsWith('/')) return resultPath!;
  const limit = sweep.length > 0 ? sweep.join('-') : String(maxConcurrency);
  const concurrency = limit === 'Infinity' ? '' : `-concurrency${limit}`;
  const rate = requestRate === Infinity ? 'inf' : requestRate;
  const model = modelId.replaceAll(/[^\w.-]+/g, '-');
  const time = now.toISOString().replaceAll(/[:.]/g, '');
  return join(resultPath!, `${label ?? backend}-${rate}qps${concurrency}-${model}-${time}.json`);
}
