/** Computes the shape of a response, which is the kinds of values at each path, and the differences of two shapes. */

/** Kinds of values by path. */
export type Shape = Map<string, Set<string>>;

/** Objects whose keys are tokens or token ids. */
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

/** Returns the paths with different kinds. Paths below a difference are left out. */
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
