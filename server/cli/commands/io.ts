/** The environment, clock and output of a command. Tests replace them. */
export interface CommandIo {
  env: NodeJS.ProcessEnv;
  now: () => number;
  out: (text: string) => void;
  err: (text: string) => void;
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
  err: (text) => {
    process.stderr.write(text);
  },
};
