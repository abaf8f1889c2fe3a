/** Texts of other runtimes have about this many bytes per token. The body is longer than its texts. */
const BYTES_PER_PROMPT_TOKEN = 3;
const BYTES_PER_OUTPUT_TOKEN = 4;
/** An event has about one token, and some servers send several together. */
const EVENT_BYTES_PER_TOKEN = 64;

/** Estimates the tokens of a prompt from the bytes of its request. */
export function promptTokensIn(numBytes: number): number {
  return Math.ceil(numBytes / BYTES_PER_PROMPT_TOKEN);
}

/** Estimates the tokens of a response. @param numEvents 0: no stream. */
export function outputTokensIn({ numBytes, numEvents }: { numBytes: number; numEvents: number }): number {
  return Math.ceil(
    numEvents > 0 ? Math.max(numEvents, numBytes / EVENT_BYTES_PER_TOKEN) : numBytes / BYTES_PER_OUTPUT_TOKEN,
  );
}
