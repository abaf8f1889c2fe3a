/** What was seen of one request. Times are milliseconds of one monotonic clock. */
export interface Outcome {
  /** When the arrival process wanted it sent. */
  dueAt: number;
  sentAt: number;
  /** When each piece of text came, of which one may hold several tokens. */
  chunkTimes: number[];
  endedAt: number;
  promptTokens: number;
  cachedTokens: number;
  completionTokens: number;
  /** Absent when it was answered to the end; else a short name to count by, as `http 429 queue_full`. */
  errorKind?: string;
  /** Of the first of its kind. */
  errorMessage?: string;
}

/** Milliseconds to the first text. */
export function ttftOf({ sentAt, chunkTimes, endedAt }: Outcome): number {
  return (chunkTimes[0] ?? endedAt) - sentAt;
}

export function e2elOf({ sentAt, endedAt }: Outcome): number {
  return endedAt - sentAt;
}

/** Milliseconds per token after the first; undefined when there was only one. */
export function tpotOf(outcome: Outcome): number | undefined {
  return outcome.completionTokens < 2
    ? undefined
    : (e2elOf(outcome) - ttftOf(outcome)) / (outcome.completionTokens - 1);
}

/** Milliseconds between pieces of text that follow one another. */
export function itlsOf({ chunkTimes }: Outcome): number[] {
  return chunkTimes.slice(1).map((time, i) => time - chunkTimes[i]);
}
