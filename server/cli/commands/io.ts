/** Asks the user a question on the terminal. `isSecret` hides the answer. @throws UsageError if the user cancels */
export type Ask = (question: string, options?: { isSecret?: boolean }) => Promise<string>;

/** The environment, clock, input and output of a command. Tests replace them. */
export interface CommandIo {
  env: NodeJS.ProcessEnv;
  now: () => number;
  out: (text: string) => void;
  /** Whether `out` writes to a terminal. Default: false. */
  isOutTerminal?: boolean;
  /** Returns a signal that aborts when `out` has no reader any more. */
  watchOut?: () => AbortSignal;
  err: (text: string) => void;
  /** Undefined without a terminal. */
  ask?: Ask;
  /** Reads standard input to its end. */
  readInput?: () => Promise<string>;
  fetch?: typeof fetch;
  /** Aborted by Ctrl-C. */
  signal?: AbortSignal;
}

export const PROCESS_IO: CommandIo = {
  env: process.env,
  now: Date.now,
  out: (text) => {
    process.stdout.write(text);
  },
  watchOut: () => {
    const gone = new AbortController();
    process.stdout.once('error', () => gone.abort());
    return gone.signal;
  },
  err: (text) => {
    process.stderr.write(text);
  },
  get isOutTerminal() {
    return process.stdout.isTTY;
  },
  // Standard output may be a pipe, as in KEY=$(capstan keys create …): questions go to standard error.
  get ask() {
    return process.stdin.isTTY && process.stderr.isTTY ? askTerminal : undefined;
  },
  readInput: async () => {
    const chunks: Buffer[] = [];
    for await (const chunk of process.stdin) chunks.push(chunk as Buffer);
    return Buffer.concat(chunks).toString('utf8');
  },
};

async function askTerminal(question: string, { isSecret = false }: { isSecret?: boolean } = {}): Promise<string> {
  const [{ createInterface }, { Writable }, { UsageError }] = await Promise.all([
    import('node:readline/promises'),
    import('node:stream'),
    import('../../base/usage-error.js'),
  ]);
  process.stderr.write(question);
  const echo = new Writable({
    write: (chunk: Buffer, _encoding, done) => {
      if (!isSecret) process.stderr.write(chunk);
      done();
    },
  });
  const prompt = createInterface({ input: process.stdin, output: echo, terminal: true });
  const cancelled = new AbortController();
  prompt.once('SIGINT', () => cancelled.abort()).once('close', () => cancelled.abort());
  try {
    return await prompt.question('', { signal: cancelled.signal });
  } catch {
    throw new UsageError('cancelled: nothing was changed');
  } finally {
    prompt.close();
    if (isSecret) process.stderr.write('\n');
  }
}
