/** With CAPSTAN_TEST_ALL, generated cases run completely, as the lane `generated` of .ci/full does. */
const { CAPSTAN_TEST_ALL: runsAll = '' } = process.env;

/** Returns how many generated cases run: all of them, or only the first ones. */
export function numCases(all: number, sample: number): number {
  return runsAll === '' ? sample : all;
}
