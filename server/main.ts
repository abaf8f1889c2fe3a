#!/usr/bin/env node
import { run } from './cli/program';

// A reader that stops early (`capstan serve --help | head`) is not an error.
process.stdout.on('error', () => {});

void run(process.argv.slice(2)).then((exitCode) => {
  // Without exit(): what is still being written goes out first.
  if (exitCode !== undefined) process.exitCode = exitCode;
});
