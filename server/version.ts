/** Of the package, the native part apart. */
export function packageVersion(): string {
  // Found by name, from wherever the compiled output lies.
  // eslint-disable-next-line @typescript-eslint/no-require-imports
  return (require('capstan/package.json') as { version: string }).version;
}
