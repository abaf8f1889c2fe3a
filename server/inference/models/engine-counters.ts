import type { EngineStats } from '../../../ts';

/** The statistics of an engine that only grow. */
export type Counters = Pick<EngineStats, (typeof NUMBERS)[number] | 'numAcceptedTokens' | 'numFinished'>;

const NUMBERS = [
  'promptTokens',
  'completionTokens',
  'cachedTokens',
  'numSnapshotHits',
  'numEvictions',
  'numPreemptions',
  'numDrafts',
  'numDraftTokens',
  'numSteps',
  'numDiskHits',
  'numDiskDeclined',
  'diskCachedTokens',
  'diskBytesRead',
  'diskBytesWritten',
  'numDiskEvictions',
  'numDiskSkipped',
  'numDiskDamaged',
] as const;

export const NO_COUNTERS: Counters = {
  ...(Object.fromEntries(NUMBERS.map((name) => [name, 0])) as Record<(typeof NUMBERS)[number], number>),
  numAcceptedTokens: [],
  numFinished: { stop: 0, length: 0, abort: 0, error: 0 },
};

/** Adds the statistics of an engine to those of the engines before it, so that no counter falls at a new load. */
export function addCounters(past: Counters, stats: EngineStats): Counters {
  const length = Math.max(past.numAcceptedTokens.length, stats.numAcceptedTokens.length);
  return {
    ...(Object.fromEntries(NUMBERS.map((name) => [name, past[name] + stats[name]])) as Record<
      (typeof NUMBERS)[number],
      number
    >),
    numAcceptedTokens: Array.from(
      { length },
      (_, i) => (past.numAcceptedTokens[i] ?? 0) + (stats.numAcceptedTokens[i] ?? 0),
    ),
    numFinished: {
      stop: past.numFinished.stop + stats.numFinished.stop,
      length: past.numFinished.length + stats.numFinished.length,
      abort: past.numFinished.abort + stats.numFinished.abort,
      error: past.numFinished.error + stats.numFinished.error,
    },
  };
}
