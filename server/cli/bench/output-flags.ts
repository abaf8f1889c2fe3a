import type { Command } from 'commander';
import type { OutputOptions } from '../../bench/output';

/** The flags as commander returns them. */
export interface OutputFlags {
  json?: boolean;
  report?: string;
}

/** Adds the flags of every benchmark. */
export function addOutputFlags(command: Command): Command {
  return command
    .option('--json', 'print JSON instead of the table')
    .option('--report <file>', 'write a page with plots to this HTML file; it needs no network');
}

export function readOutputFlags({ json, report }: OutputFlags): OutputOptions {
  return { printsJson: json ?? false, reportPath: report };
}
