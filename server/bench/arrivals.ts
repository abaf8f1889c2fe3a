import type { Random } from './random';

/** Returns the send time of each request, in milliseconds from the start. Open loop: independent of the responses. */
export function arrivalTimesMs(
  count: number,
  { requestRate, burstiness }: { requestRate: number; burstiness: number },
  random: Random,
): number[] {
  if (requestRate === Infinity) return new Array<number>(count).fill(0);
  let at = 0;
  return Array.from({ length: count }, (_, i) => (at += i === 0 ? 0 : (1000 / requestRate) * random.gamma(burstiness)));
}
