import { shapeOf } from './top-level';

/** Recursive functions overflow the stack on deeper values. No real request nests like this. */
export const MAX_DEPTH = 256;
/** Each takes time and memory to parse: 8 MiB of brackets take seconds. */
const MAX_NODES = 100_000;
/** A response with log-probabilities has about 100 for each token. */
const MAX_REPLY_NODES = 500_000;

/** Shorter texts take little time in any case. Most events of streams are. */
const SHORT_TEXT = 4_096;

/** What {@link isLight} expects. */
export const LIGHT = `at most ${MAX_DEPTH} levels, and ${MAX_NODES} fields, lists and objects`;

/** Whether the JSON of a request can be parsed in the thread that serves all clients. */
export function isLight(bytes: Buffer, maxNodes = MAX_NODES): boolean {
  return hasAtMost(maxNodes, bytes);
}

/** As {@link isLight}, for a response or an event of one. */
export function isLightReply(json: string | Buffer): boolean {
  return json.length <= SHORT_TEXT || hasAtMost(MAX_REPLY_NODES, typeof json === 'string' ? Buffer.from(json) : json);
}

function hasAtMost(maxNodes: number, bytes: Buffer): boolean {
  const { numFields, numContainers, depth } = shapeOf(bytes);
  return depth <= MAX_DEPTH && numFields + numContainers <= maxNodes;
}
