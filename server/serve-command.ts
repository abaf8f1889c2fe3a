import type { Command } from 'commander';
import { gather, mountFlags } from './flag-options';
import { FLAG_GROUPS, SERVE_FLAGS } from './flags';
import { FLAG_NAMES, isSwitch, resolveServeOptions } from './given';

/** Mounts `capstan serve`. @param onExit Hears the exit code once the server has ended. */
export function addServeCommand(program: Command, onExit: (exitCode: number) => void): void {
  const serve = program
    .command('serve')
    .description("serve a model over HTTP, as OpenAI's clients expect it")
    .argument(
      '[model]',
      "a model directory in Hugging Face's layout, or demo, the model that ships with Capstan (default: demo)",
    )
    .helpOption('-h, --help', 'print this help')
    .showHelpAfterError('(capstan serve --help says more)')
    .addHelpText('after', HELP_TAIL);
  const given = mountFlags(serve, FLAG_NAMES, FLAG_GROUPS[0]);
  serve.action(async (model: string | undefined) => {
    if (model !== undefined) given.commandLine.add(FLAG_NAMES.get('--model')!, model, 'the model');
    const sources = await gather(given, FLAG_NAMES);
    const { serve: runServer } = await import('./serve.js');
    onExit(await runServer(resolveServeOptions(sources, process.env)));
  });
}

/** As vLLM's parser does: underscores for dashes, one-dash names of several letters, `--switch=false`, `--name.key=value`, `-O3`. */
export function normalize(args: readonly string[]): string[] {
  return args.flatMap((arg) => {
    if (!arg.startsWith('-') || arg === '-' || arg === '--') return [arg];
    const [spelling] = arg.replace(/^-O(\d)$/, '-O=$1').split('=', 1);
    const rest = arg.replace(/^-O(\d)$/, '-O=$1').slice(spelling.length);
    const [whole] = spelling.split('.', 1);
    const name = whole.startsWith('--') ? whole.replaceAll('_', '-') : whole;
    const known = FLAG_NAMES.get(name);
    if (known === undefined) return [name + spelling.slice(whole.length) + rest];
    const long = known.isNegation ? name : name.startsWith('--') ? name : `--${known.flag.name}`;
    if (!isSwitch(known.flag) || !/^=(true|false)$/i.test(rest)) return [long + rest];
    const isOn = (rest.toLowerCase() === '=true') !== known.isNegation;
    return [isOn ? `--${known.flag.name}` : `--no-${known.flag.name}`];
  });
}

/** Names that a mistyped one may have meant. */
export const SERVE_FLAG_NAMES: readonly string[] = [
  '--config',
  ...SERVE_FLAGS.filter(({ isHidden }) => !isHidden).map(({ name }) => `--${name}`),
];

const HELP_TAIL = `
A switch is turned off by --no-NAME. Underscores may stand for dashes, and --name=value for --name value. Each flag is also a
variable, CAPSTAN_MAX_MODEL_LEN=8K for --max-model-len 8K, and a line of --config. The command line goes before the environment,
the environment before the file. vLLM's other flags are accepted with a warning where they have no effect here, and refused where
answers or capacity would differ.

Examples:
  capstan serve                                   the demo model on http://127.0.0.1:8080
  capstan serve /models/Qwen2.5-0.5B-Instruct --port 8000 --max-model-len 8K
  capstan serve DIR --access-control --deployment chat --admin-port 9090
                                                  with the keys of capstan keys create, probes on port 9090
  capstan serve DIR --ssl-keyfile key.pem --ssl-certfile cert.pem
  PLATFORM_SERVING_PRODUCTION=1 capstan serve DIR port 80 on all addresses
`;
