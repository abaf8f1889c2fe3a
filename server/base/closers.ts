/** Clean-up functions. The newest runs first. */
export type Closers = (() => Promise<void> | void)[];

/** Runs all functions, also after one that failed. @throws Error with the messages of all that failed */
export async function closeAll(closers: Closers): Promise<void> {
  const errors = await collectErrors(closers);
  if (errors.length === 1) throw errors[0];
  if (errors.length > 1) throw new AggregateError(errors, errors.map(({ message }) => message).join('; '));
}

/**
 * Runs a program and then the functions that it added to `closers`. Resolves with its exit code, or with 1 if one of
 * them failed. If the program throws, its error is rethrown.
 */
export async function runAndClose(
  run: (closers: Closers) => Promise<number>,
  onCloseError: (error: Error) => void,
): Promise<number> {
  const closers: Closers = [];
  let errors: Error[] = [];
  let code: number;
  try {
    code = await run(closers);
  } finally {
    errors = await collectErrors(closers);
    errors.forEach(onCloseError);
  }
  return errors.length === 0 ? code : 1;
}

async function collectErrors(closers: Closers): Promise<Error[]> {
  const errors: Error[] = [];
  for (const close of closers.splice(0).reverse())
    try {
      await close();
    } catch (error) {
      errors.push(error as Error);
    }
  return errors;
}
