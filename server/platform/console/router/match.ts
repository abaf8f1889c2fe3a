/** The values of the named parts of a pattern such as `/deployments/:id`. */
export type Params = Readonly<Record<string, string>>;

/** Returns the named parts of a path, or undefined if the path does not match. A trailing slash is ignored. */
export function matchPath(pattern: string, path: string): Params | undefined {
  const patternParts = partsOf(pattern);
  const pathParts = partsOf(path);
  if (patternParts.length !== pathParts.length) return undefined;
  const params: Record<string, string> = {};
  for (const [i, part] of patternParts.entries()) {
    if (!part.startsWith(':')) {
      if (part !== pathParts[i]) return undefined;
      continue;
    }
    const value = decode(pathParts[i]);
    if (value === undefined) return undefined;
    params[part.slice(1)] = value;
  }
  return params;
}

/** Returns the first route whose pattern matches. */
export function findRoute<R extends { path: string }>(
  routes: readonly R[],
  path: string,
): { route: R; params: Params } | undefined {
  for (const route of routes) {
    const params = matchPath(route.path, path);
    if (params !== undefined) return { route, params };
  }
  return undefined;
}

/** Adds a query to a path. Empty values are omitted. */
export function withQuery(path: string, query: Readonly<Record<string, string | number | null | undefined>>): string {
  const pairs = Object.entries(query)
    .filter(([, value]) => value !== undefined && value !== null && value !== '')
    .map(([name, value]) => `${encodeURIComponent(name)}=${encodeURIComponent(String(value))}`);
  return pairs.length === 0 ? path : `${path}?${pairs.join('&')}`;
}

function partsOf(path: string): string[] {
  return path.split('/').filter((part) => part !== '');
}

function decode(part: string): string | undefined {
  try {
    return decodeURIComponent(part);
  } catch {
    return undefined;
  }
}
