/** An error in the command line, environment or configuration file. Shown without a stack. Exit code 2. */
export class UsageError extends Error {}
