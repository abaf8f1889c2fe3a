import { Command, CommanderError } from 'commander';
import { redactKeys } from '../base/key-format';
import { addBenchCommand } from './bench/command';
import { configureHelp, groupCommands, nameHelpInErrors } from './help';
import { UsageError } from '../base/usage-error';
import { addChatCommand } from './commands/chat';
import { addCompletionCommand } from './commands/completion';
import { addDoctorCommand } from './commands/doctor';
import { addHealthCommand } from './commands/health';
import { addModelCommands } from './commands/models';
import { addQuantizeCommand } from './commands/quantize';
import { addRunCommand } from './commands/run';
import { addServeCommand, normalize } from './commands/serve';
import { addMissingServiceCommands, loadService, requireService } from './service-package';
import { printable } from './terminal-style';
import { packageVersion } from '../base/version';

/** Returns the commands that these arguments can mean. */
export async function buildProgram(args: readonly string[], onExit: (code: number) => void): Promise<Command> {
  const program = configureHelp(new Command('capstan'))
    .description('Native LLM inference for Node.js, and a service that manages deployments')
    .exitOverride()
    // The wrong argument may be an access key, pasted into the wrong place.
    .configureOutput({ outputError: (text, write) => write(redactKeys(text)) });
  program.version(packageVersion(), '-v, --version', 'print the version');
  addServeCommand(program, onExit);
  addChatCommand(program, onExit);
  addRunCommand(program, onExit);
  addModelCommands(program, onExit);
  addQuantizeCommand(program, onExit);
  addBenchCommand(program, onExit);
  if (args[0] !== 'serve') {
    // Imported on demand: a server without keys does not load a database library.
    const [{ addKeysCommand }, service] = await Promise.all([import('./commands/keys.js'), loadService()]);
    if (service === undefined) addMissingServiceCommands(program);
    else service.addServiceCommands(program, onExit);
    addKeysCommand(program, undefined, service?.openRemoteKeys ?? (() => requireService('capstan keys --url')));
  }
  addDoctorCommand(program, onExit);
  addHealthCommand(program, onExit);
  addCompletionCommand(program);
  groupCommands(program);
  nameHelpInErrors(program, 'capstan');
  return program;
}

/**
 * Runs one command. Returns its exit code, or undefined if the process should keep running. Writes errors to stderr.
 */
export async function run(args: readonly string[]): Promise<number | undefined> {
  let exitCode: number | undefined;
  const program = await buildProgram(args, (code) => {
    exitCode = code;
  });
  try {
    await program.parseAsync(args[0] === 'serve' ? normalize(args) : args.map(withDashes), { from: 'user' });
    return exitCode;
  } catch (error) {
    return report(error);
  }
}

/** Returns 2 for a wrong command line, 0 after help and version, and 1 for anything else. */
function report(error: unknown): number {
  if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : 2;
  const { message, stack, code } = error as Error & { code?: unknown };
  const isUsage =
    error instanceof UsageError ||
    (error instanceof Error &&
      'code' in error &&
      (error.code === 'invalid_argument' || error.code === 'invalid_request'));
  const isExpected = isUsage || typeof code === 'string';
  process.stderr.write(`error: ${printable(redactKeys(isExpected ? message : (stack ?? message)))}\n`);
  return isUsage ? 2 : 1;
}

/** Replaces underscores with dashes in a flag's name. */
function withDashes(arg: string): string {
  const [name] = arg.split('=', 1);
  return name.startsWith('--') ? name.replaceAll('_', '-') + arg.slice(name.length) : arg;
}
