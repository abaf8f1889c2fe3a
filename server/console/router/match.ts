/** What a pattern such as `/deployments/:id` takes from an address. */
export type Params = Readonly<Record<string, string>>;

/** The parts that the pattern names, or undefined where the address is another. A slash at the end means nothing. */
export function matchPath(pattern: string, path: string): Params | undefined {
  const wanted = partsOf(pattern);
  const given = partsOf(path);
  if (wanted.length !== given.length) return undefined;
  const params: Record<string, string> = {};
  for (const [i, part] of wanted.entries()) {
    if (!part.startsWith(':')) {
      if (part !== given[i]) return undefined;
      continue;
    }
    const value = decode(given[i]);
    if (value === undefined) return undefined;
    params[part.slice(1)] = value;
  }
  return params;
}

/** The first route whose pattern fits. */
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

/** An address of ours to come back to after signing in; anything that leads elsewhere becomes the start page. */
export function safeReturn(value: string | null): string {
  if (value === null || !value.startsWith('/') || /^\/[/\\]/.test(value) || /[\p{Cc}\\]/u.test(value)) return '/';
  return value;
}

/** An address with what is set of the query; values that are empty are left out. */
export function withQuery(path: string, query: Readonly<Record<string, string | number | null | undefined>>): string {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== '');
  return given.length === 0
    ? path
    : `${path}?${given.map(([name, value]) => `${encodeURIComponent(name)}=${encodeURIComponent(String(value))}`).join('&')}`;
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
