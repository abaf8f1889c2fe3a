/** The browser and system of a user agent string, or undefined if the string is empty. */
export function agentName(userAgent: string | null): string | undefined {
  if (userAgent === null || userAgent === '') return undefined;
  const browser = [
    ['Edge', /\bEdg\//],
    ['Opera', /\bOPR\//],
    ['Firefox', /\bFirefox\//],
    ['Chrome', /\b(?:Headless)?Chrom(?:e|ium)\//],
    ['Safari', /\bSafari\//],
    ['curl', /^curl\//],
  ] as const;
  const system = [
    ['Android', /Android/],
    ['iOS', /iPhone|iPad/],
    ['macOS', /Mac OS X/],
    ['Windows', /Windows/],
    ['Linux', /Linux/],
  ] as const;
  const find = (list: readonly (readonly [string, RegExp])[]) =>
    list.find(([, pattern]) => pattern.test(userAgent))?.[0];
  const parts = [find(browser), find(system)].filter((part) => part !== undefined);
  return parts.length === 0 ? userAgent.slice(0, 40) : parts.join(' · ');
}
