import type { NativeEvent, NativeEventDetails } from './addon-types';

/** Words of an event before its token ids: the halves of its id, choice, UTF-16 units of text, tokens, has details. */
const HEAD_WORDS = 6;
const TWO_TO_32 = 2 ** 32;
const NO_DETAILS: NativeEventDetails = { logprobs: null, promptLogprobs: null, pooled: null, finish: null };

/** Returns the events of a batch: `native/binding/event_batch.cpp` writes it. */
export function readEvents(words: Int32Array, text: string, details: NativeEventDetails[]): NativeEvent[] {
  const events: NativeEvent[] = [];
  let textBegin = 0;
  let numDetails = 0;
  for (let at = 0; at < words.length;) {
    const tokensBegin = at + HEAD_WORDS;
    const tokensEnd = tokensBegin + words[at + 4];
    const textEnd = textBegin + words[at + 3];
    const { logprobs, promptLogprobs, pooled, finish } = words[at + 5] === 1 ? details[numDetails++] : NO_DETAILS;
    events.push({
      id: (words[at] >>> 0) + words[at + 1] * TWO_TO_32,
      index: words[at + 2],
      textDelta: text.slice(textBegin, textEnd),
      tokenIds: Array.from(words.subarray(tokensBegin, tokensEnd)),
      logprobs,
      promptLogprobs,
      pooled,
      finish,
    });
    textBegin = textEnd;
    at = tokensEnd;
  }
  return events;
}
