/** The shape of an answer: which kinds of value stand at which path; and how two shapes differ. */

/** Path to the kinds that stand there, `absent` where an object of the same array lacks it. */
export type Shape = Map<string, Set<string>>;

/** Objects whose keys are data: tokens, or ids of tokens. */
const MAPS = /(^|\.)(prompt_logprobs\[\]|top_logprobs\[\])$/;

export function shapeOf(value: unknown): Shape {
  const shape: Shape = new Map();
  walk(value, '', shape);
  return shape;
}

function walk(value: unknown, path: string, shape: Shape): void {
  const kind = value === null ? 'null' : Array.isArray(value) ? 'array' : typeof value;
  const kinds = shape.get(path) ?? new Set();
  shape.set(path, kinds.add(kind));
  if (Array.isArray(value)) {
    const items = value as unknown[];
    for (const item of items) walk(item, `${path}[]`, shape);
  } else if (kind === 'object') {
    const isMap = MAPS.test(path);
    for (const [key, item] of Object.entries(value as object))
      walk(item, isMap ? `${path}.*` : path === '' ? key : `${path}.${key}`, shape);
  }
}

export interface Difference {
  path: string;
  theirs: string;
  ours: string;
}

/** Of paths below one that is missing or of another kind only that one is told. */
export function differences(theirs: Shape, ours: Shape): Difference[] {
  const kinds = (shape: Shape, path: string) => [...(shape.get(path) ?? ['absent'])].sort().join(' or ');
  const found: Difference[] = [];
  for (const path of [...new Set([...theirs.keys(), ...ours.keys()])].sort()) {
    if (found.some((difference) => path.startsWith(`${difference.path}.`) || path.startsWith(`${difference.path}[`)))
      continue;
    const difference = { path, theirs: kinds(theirs, path), ours: kinds(ours, path) };
    if (difference.theirs !== difference.ours) found.push(difference);
  }
  return found;
}
