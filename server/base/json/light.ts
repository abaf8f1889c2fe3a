import { shapeOf } from './top-level';

/** Recursive functions overflow the stack on deeper values. No real request nests like this. */
const MAX_DEPTH = 256;
/** Each takes time and memory to parse: 8 MiB of brackets take seconds. */
const MAX_NODES = 100_000;

/** Shorter texts take little time in any case. Most events of streams are. */
const SHORT_TEXT = 4_096;

/** What {@link isLight} expects. */
export const LIGHT = `at most ${MAX_DEPTH} levels, and ${MAX_NODES} fields, lists and objects`;

/** Whether JSON can be parsed in the thread that serves all clients. */
export function isLight(bytes: Buffer): boolean {
  const { numFields, numContainers, depth } = shapeOf(bytes);
  return depth <= MAX_DEPTH && numFields + numContainers <= MAX_NODES;
}

/** As {@link isLight}, for a text that has been decoded. */
export function isLightText(text: string): boolean {
  return text.length <= SHORT_TEXT || isLight(Buffer.from(text));
}
