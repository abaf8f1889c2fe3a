import { Command, CommanderError } from 'commander';
import { redactKeys } from './access/key-format';
import { addBenchCommand } from './bench/cli';
import { UsageError } from './flag-values';
import { addServeCommand, normalize } from './serve-command';
import { addUpCommand } from './up/command';
import { packageVersion } from './version';

/** Runs one command; resolves with the exit code, or undefined while a server goes on. Errors are written, never thrown. */
export async function run(args: readonly string[]): Promise<number | undefined> {
  let exitCode: number | undefined;
  const program = new Command('capstan')
    .description('Native LLM inference for Node.js, and a service that runs deployments')
    .exitOverride()
    .showHelpAfterError('(capstan --help says more)')
    // What is wrong may hold a key that was pasted into the wrong place.
    .configureOutput({ outputError: (text, write) => write(redactKeys(text)) });
  program.version(packageVersion(), '-v, --version', 'print the version');
  addServeCommand(program, (code) => {
    exitCode = code;
  });
  addUpCommand(program, (code) => {
    exitCode = code;
  });
  if (args[0] !== 'serve') {
    // Here, as a server without keys needs no database library.
    const [{ addKeysCommand }, { addServiceCommands }, { openRemoteKeys }] = await Promise.all([
      import('./access/cli.js'),
      import('./commands/index.js'),
      import('./commands/remote-keys.js'),
    ]);
    addServiceCommands(program);
    addKeysCommand(program, undefined, openRemoteKeys);
  }
  addBenchCommand(program, (code) => {
    exitCode = code;
  });
  try {
    await program.parseAsync(args[0] === 'serve' ? normalize(args) : args.map(withDashes), { from: 'user' });
    return exitCode;
  } catch (error) {
    return report(error);
  }
}

/** 2 for a command line that is wrong, 0 after help and version, 1 for anything else. */
function report(error: unknown): number {
  if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : 2;
  const { message, stack, code } = error as Error & { code?: unknown };
  const isUsage =
    error instanceof UsageError ||
    (error instanceof Error &&
      'code' in error &&
      (error.code === 'invalid_argument' || error.code === 'invalid_request'));
  const isExpected = isUsage || typeof code === 'string';
  process.stderr.write(`error: ${redactKeys(isExpected ? message : (stack ?? message))}\n`);
  return isUsage ? 2 : 1;
}

/** Underscores in a flag's name stand for dashes. */
function withDashes(arg: string): string {
  const [name] = arg.split('=', 1);
  return name.startsWith('--') ? name.replaceAll('_', '-') + arg.slice(name.length) : arg;
}
