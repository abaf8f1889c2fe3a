import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import type { BenchReport } from './bench-report';
import { renderPage } from './report-page';

/** Where a result goes, for every benchmark. */
export interface OutputOptions {
  /** Prints JSON instead of a table. */
  printsJson: boolean;
  /** File of the page with plots. */
  reportPath: string | undefined;
}

/** Prints the result, and writes the page if it is requested. */
export function writeOutput(
  { printsJson, reportPath }: OutputOptions,
  { text, json, report }: { text: string; json: object; report: BenchReport },
): void {
  process.stdout.write(printsJson ? `${JSON.stringify(json, null, 1)}\n` : text);
  if (reportPath === undefined) return;
  writeFile(reportPath, renderPage(report), printsJson);
}

/** Writes a file and says so: on standard error if standard output is JSON. */
export function writeFile(path: string, content: string, printsJson: boolean): void {
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, content);
  (printsJson ? process.stderr : process.stdout).write(`Wrote ${path}\n`);
}
