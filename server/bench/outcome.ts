/** The measurements of one request. Times are milliseconds of a monotonic clock. */
export interface Outcome {
  /** The scheduled send time. */
  dueAt: number;
  sentAt: number;
  /** Arrival times of the chunks with text. A chunk may hold several tokens. */
  chunkTimes: number[];
  endedAt: number;
  promptTokens: number;
  cachedTokens: number;
  completionTokens: number;
  /** Category of the failure, for example `http 429 queue_full`. Undefined if the response is complete. */
  errorKind?: string;
  errorMessage?: string;
}

/** Returns the time to the first chunk with text, in milliseconds. */
export function ttftOf({ sentAt, chunkTimes, endedAt }: Outcome): number {
  return (chunkTimes[0] ?? endedAt) - sentAt;
}

/** Returns the end-to-end latency, in milliseconds. */
export function e2elOf({ sentAt, endedAt }: Outcome): number {
  return endedAt - sentAt;
}

/** Returns the milliseconds per token after the first, or undefined if there is only one token. */
export function tpotOf(outcome: Outcome): number | undefined {
  return outcome.completionTokens < 2
    ? undefined
    : (e2elOf(outcome) - ttftOf(outcome)) / (outcome.completionTokens - 1);
}

/** Returns the milliseconds between consecutive chunks with text. */
export function itlsOf({ chunkTimes }: Outcome): number[] {
  return chunkTimes.slice(1).map((time, i) => time - chunkTimes[i]);
}
