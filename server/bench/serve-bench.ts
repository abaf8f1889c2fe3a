import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import type { ServeBenchOptions } from './options';
import { renderReport, resultJson } from './report';
import { runServeBench, TargetError } from './run';
import { summarize } from './summary';

/**
 * Runs the benchmark, prints the report and writes the result file.
 * @returns The exit code: 130 after Ctrl-C, 1 if no request succeeded, otherwise 0.
 */
export async function serveBench(options: ServeBenchOptions): Promise<number> {
  const stop = new AbortController();
  const onSignal = () => stop.abort();
  // `once`, so that a second Ctrl-C ends the process.
  process.once('SIGINT', onSignal);
  const progress = new Progress(options.numPrompts, options.isQuiet);
  try {
    const run = await runServeBench(options, {
      signal: stop.signal,
      onProgress: (numEnded, numFailed) => progress.show(numEnded, numFailed),
    });
    progress.clear();
    const summary = summarize(run, options);
    process.stdout.write(renderReport(run, summary, options));
    if (options.resultPath !== undefined)
      process.stdout.write(`Wrote ${writeResult(options, resultJson(run, summary, options, new Date()))}\n`);
    if (stop.signal.aborted) return 130;
    return summary.completed > 0 ? 0 : 1;
  } catch (error) {
    progress.clear();
    if (!(error instanceof TargetError)) throw error;
    process.stderr.write(`error: ${error.message}\n`);
    return stop.signal.aborted ? 130 : 1;
  } finally {
    process.off('SIGINT', onSignal);
  }
}

function writeResult(
  { resultPath, backend, label, requestRate, maxConcurrency }: ServeBenchOptions,
  result: Record<string, unknown>,
): string {
  const concurrency = maxConcurrency === Infinity ? '' : `-concurrency${maxConcurrency}`;
  const model = String(result.model_id).replaceAll(/[^\w.-]+/g, '-');
  const generated = `${label ?? backend}-${requestRate === Infinity ? 'inf' : requestRate}qps${concurrency}-${model}-${String(result.date).replaceAll(/[:.]/g, '')}.json`;
  const path = resultPath!.endsWith('/') ? join(resultPath!, generated) : resultPath!;
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, `${JSON.stringify(result, null, 1)}\n`);
  return path;
}

/** A progress line on a terminal, updated at most four times per second. */
class Progress {
  readonly #total: number;
  readonly #isShown: boolean;
  #lastAt = 0;

  constructor(total: number, isQuiet: boolean) {
    this.#total = total;
    this.#isShown = !isQuiet && process.stderr.isTTY;
  }

  show(numEnded: number, numFailed: number): void {
    const now = performance.now();
    if (!this.#isShown || now - this.#lastAt < 250) return;
    this.#lastAt = now;
    process.stderr.write(`\r${numEnded} of ${this.#total} requests${numFailed > 0 ? `, ${numFailed} failed` : ''}`);
  }

  clear(): void {
    if (this.#isShown) process.stderr.write('\r\x1b[K');
  }
}
