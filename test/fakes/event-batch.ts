import type { NativeEvent, NativeEventDetails, NativeEventSink } from '../../ts/addon-types';

/** Passes events as the addon does. */
export function sendEvents(sink: NativeEventSink, events: readonly NativeEvent[]): void {
  const words: number[] = [];
  const details: NativeEventDetails[] = [];
  let text = '';
  for (const { id, index, textDelta, tokenIds, logprobs, promptLogprobs, finish } of events) {
    const hasDetails = logprobs !== null || promptLogprobs !== null || finish !== null;
    words.push(id | 0, Math.floor(id / 2 ** 32), index, textDelta.length, tokenIds.length, Number(hasDetails));
    words.push(...tokenIds);
    text += textDelta;
    if (hasDetails) details.push({ logprobs, promptLogprobs, finish });
  }
  sink(Int32Array.from(words), text, details);
}
