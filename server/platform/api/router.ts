import type { ApiRoute } from './route';

interface Node {
  readonly children: Map<string, Node>;
  parameter: Node | undefined;
  readonly routes: Map<string, ApiRoute>;
  readonly names: Map<ApiRoute, readonly string[]>;
}

export interface Match {
  /** Routes of this path, by method. */
  readonly routes: ReadonlyMap<string, ApiRoute>;
  paramsOf(route: ApiRoute): Record<string, string>;
}

/** Finds routes by path segments. A literal segment takes precedence over a parameter. */
export class Router {
  readonly all: readonly ApiRoute[];
  readonly #root = newNode();

  /** Throws Error when two routes have the same method and path. */
  constructor(routes: readonly ApiRoute[]) {
    this.all = routes;
    for (const route of routes) this.#add(route);
  }

  /** Returns undefined when no route has this path. */
  find(path: string): Match | undefined {
    const segments = path.split('/').slice(1).map(decoded);
    if (segments.includes(undefined)) return undefined;
    const values: string[] = [];
    const node = walk(this.#root, segments as string[], 0, values);
    if (node === undefined) return undefined;
    return {
      routes: node.routes,
      paramsOf: (route) => Object.fromEntries((node.names.get(route) ?? []).map((name, i) => [name, values[i]])),
    };
  }

  #add(route: ApiRoute): void {
    let node = this.#root;
    const names: string[] = [];
    for (const segment of route.path.split('/').slice(1)) {
      const [, name] = /^\{(\w+)\}$/.exec(segment) ?? [];
      if (name === undefined) {
        const next = node.children.get(segment) ?? newNode();
        node.children.set(segment, next);
        node = next;
      } else {
        names.push(name);
        node = node.parameter ??= newNode();
      }
    }
    if (node.routes.has(route.method)) throw new Error(`duplicate route ${route.method} ${route.path}`);
    node.routes.set(route.method, route);
    node.names.set(route, names);
  }
}

function walk(node: Node, segments: readonly string[], depth: number, values: string[]): Node | undefined {
  if (depth === segments.length) return node.routes.size > 0 ? node : undefined;
  const segment = segments[depth];
  const child = node.children.get(segment);
  const found = child === undefined ? undefined : walk(child, segments, depth + 1, values);
  if (found !== undefined || node.parameter === undefined || segment === '') return found;
  values.push(segment);
  const below = walk(node.parameter, segments, depth + 1, values);
  if (below === undefined) values.pop();
  return below;
}

function newNode(): Node {
  return { children: new Map(), parameter: undefined, routes: new Map(), names: new Map() };
}

/** Decodes a path segment. Returns undefined for invalid UTF-8 or a NUL, which no name contains. */
function decoded(segment: string): string | undefined {
  try {
    const text = decodeURIComponent(segment);
    return text.includes('\0') ? undefined : text;
  } catch {
    return undefined;
  }
}
