/** Returns the version in package.json. */
export function packageVersion(): string {
  // Resolved by package name, because the path differs between sources and compiled output.
  // eslint-disable-next-line @typescript-eslint/no-require-imports
  return (require('capstan/package.json') as { version: string }).version;
}
