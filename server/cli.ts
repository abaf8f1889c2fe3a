import { Command, CommanderError } from 'commander';
import { addBenchCommand } from './bench/cli';
import { defaultServeOptions, type Flag, SERVE_FLAGS, type ServeOptions, UsageError } from './flags';
import { packageVersion } from './version';

/** Runs one command; resolves with the exit code, or undefined while a server goes on. Errors are written, never thrown. */
export async function run(args: readonly string[]): Promise<number | undefined> {
  let exitCode: number | undefined;
  const program = new Command('capstan').description('Native LLM inference for Node.js').exitOverride().showHelpAfterError('(capstan --help says more)');
  program.version(packageVersion(), '-v, --version', 'print the version');
  addServe(program, (code) => { exitCode = code; });
  addBenchCommand(program, (code) => { exitCode = code; });
  try {
    await program.parseAsync(normalize(args), { from: 'user' });
    return exitCode;
  } catch (error) {
    return report(error);
  }
}

/** 2 for a command line that is wrong, 0 after help and version, 1 for anything else. */
function report(error: unknown): number {
  if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : 2;
  const { message, stack, code } = error as Error & { code?: unknown };
  const isExpected = error instanceof UsageError || typeof code === 'string';
  process.stderr.write(`error: ${isExpected ? message : stack}\n`);
  return error instanceof UsageError ? 2 : 1;
}

function addServe(program: Command, onExit: (exitCode: number) => void): void {
  const options = { value: undefined as ServeOptions | undefined };
  const serve = program
    .command('serve')
    .description('serve a model over HTTP, as OpenAI\'s clients expect it')
    .argument('[model]', 'a model directory in Hugging Face\'s layout, or demo, the model that ships with Capstan (default: demo)')
    .helpOption('-h, --help', 'print this help')
    .showHelpAfterError('(capstan serve --help says more)')
    .addHelpText('after', HELP_TAIL);
  for (const flag of SERVE_FLAGS) for (const spelling of spellings(flag)) addFlag(serve, spelling, flag, options);
  serve.action(async (model: string | undefined) => {
    options.value ??= defaultServeOptions(process.env);
    if (model !== undefined) options.value.model = model;
    const { serve: runServer } = await import('./serve.js');
    onExit(await runServer(options.value));
  });
}

/** Flags apply in the order they are given, so that the last one wins. */
function addFlag(command: Command, spelling: string, flag: Flag, options: { value: ServeOptions | undefined }): void {
  const option = command.createOption(spelling, flag.help);
  if (spelling !== flag.spelling) option.hideHelp();
  const name = option.long ?? spelling;
  command.addOption(option);
  command.on(`option:${option.name()}`, (value: string | null) => {
    options.value ??= defaultServeOptions(process.env);
    if (flag.apply === undefined) options.value.ignored.push(name);
    else flag.apply(options.value, value ?? '', name);
  });
}

/** Every alias with the value part of the flag. */
function spellings({ spelling, aliases = [] }: Flag): string[] {
  const value = spelling.slice(spelling.split(' ')[0].length);
  return [spelling, ...aliases.filter((alias) => alias.startsWith('--')).map((alias) => alias + value)];
}

/** As vLLM's parser does: underscores for dashes, and one-dash names of several letters. */
function normalize(args: readonly string[]): string[] {
  const shortNames = new Map(SERVE_FLAGS.flatMap(({ spelling, aliases = [] }) => aliases.map((alias) => [alias, spelling.split(' ')[0]] as const)));
  return args.map((arg) => {
    const [name] = arg.split('=', 1);
    const rest = arg.slice(name.length);
    if (!name.startsWith('--')) return (shortNames.get(name) ?? name) + rest;
    return name.replaceAll('_', '-') + rest;
  });
}

const HELP_TAIL = `
Examples:
  capstan serve                                   the demo model on http://127.0.0.1:8080
  capstan serve /models/Qwen2.5-0.5B-Instruct --port 8000 --max-model-len 8K
  PLATFORM_SERVING_PRODUCTION=1 capstan serve DIR port 80 on all addresses

PLATFORM_SERVING_HOST and PLATFORM_SERVING_PORT stand in for --host and --port.
`;
