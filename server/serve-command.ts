import { type Command, Option } from 'commander';
import { UsageError } from './flag-values';
import { FLAG_GROUPS, SERVE_FLAGS } from './flags';
import { FLAG_NAMES, type FlagName, Given, isSwitch, resolveServeOptions } from './given';

/** Mounts `capstan serve`. @param onExit Hears the exit code once the server has ended. */
export function addServeCommand(program: Command, onExit: (exitCode: number) => void): void {
  const commandLine = new Given();
  let configFile: string | undefined;
  const serve = program
    .command('serve')
    .description('serve a model over HTTP, as OpenAI\'s clients expect it')
    .argument('[model]', 'a model directory in Hugging Face\'s layout, or demo, the model that ships with Capstan (default: demo)')
    .helpOption('-h, --help', 'print this help')
    .showHelpAfterError('(capstan serve --help says more)')
    .addHelpText('after', HELP_TAIL);
  serve.addOption(new Option('--config <file>', 'a YAML file of flags, as "max-model-len: 8K"; the command line and the environment go before it').helpGroup(`${FLAG_GROUPS[0]}:`));
  serve.on('option:config', (value: string) => { configFile = value; });
  for (const [name, flagName] of FLAG_NAMES) if (name.startsWith('--')) addFlag(serve, name, flagName, commandLine);
  serve.action(async (model: string | undefined) => {
    if (model !== undefined) commandLine.add(FLAG_NAMES.get('--model')!, model, 'the model');
    const { CAPSTAN_CONFIG: fromVariable = '' } = process.env;
    const { fromEnvironment } = await import('./environment.js');
    const sources = [fromEnvironment(process.env), commandLine];
    if (configFile !== undefined || fromVariable !== '') {
      // Here, as few starts need a YAML parser.
      const { fromConfigFile } = await import('./config-file.js');
      sources.unshift(fromConfigFile(configFile ?? fromVariable, configFile === undefined ? 'CAPSTAN_CONFIG' : '--config'));
    }
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

function addFlag(command: Command, name: string, flagName: FlagName, given: Given): void {
  const { flag } = flagName;
  const option = new Option(name + valuePart(flagName), 'help' in flag ? flag.help : '');
  if (name === `--${flag.name}` && 'group' in flag && !flag.isHidden) option.helpGroup(`${flag.group}:`);
  else option.hideHelp();
  command.addOption(option);
  command.on(`option:${option.name()}`, (value: string | null) => {
    if (value === '' && !isSwitch(flag)) throw new UsageError(`${name}: expected a value, got nothing`);
    given.add(flagName, isSwitch(flag) ? 'true' : value ?? '', name);
  });
}

function valuePart({ flag }: FlagName): string {
  if (isSwitch(flag)) return '';
  if ('takes' in flag) return flag.takes === 'values' ? ' <values...>' : ' <value>';
  return ` ${flag.value}`;
}

/** Names that a mistyped one may have meant. */
export const SERVE_FLAG_NAMES: readonly string[] = ['--config', ...SERVE_FLAGS.filter(({ isHidden }) => !isHidden).map(({ name }) => `--${name}`)];

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
