'use strict';

const NUM_SHOWN = 10;

/** A Jest reporter: prints the slowest tests of the run, slowest first. */
module.exports = class SlowTests {
  onRunComplete(_contexts, { testResults }) {
    const tests = testResults.flatMap(({ testResults: results }) => results);
    const slowest = tests.sort((a, b) => (b.duration ?? 0) - (a.duration ?? 0)).slice(0, NUM_SHOWN);
    process.stderr.write(`\n${slowest.length} slowest tests of ${tests.length}:\n`);
    for (const { duration, fullName } of slowest) {
      process.stderr.write(`${((duration ?? 0) / 1000).toFixed(1).padStart(7)} s  ${fullName}\n`);
    }
  }
};
