import { withFlagNames } from '../engine-option-flags';
import type { Command } from 'commander';
import { addFlags, readFlagSources } from '../commander-flags';
import { FLAG_GROUPS } from '../serve-flags';
import { FLAG_NAMES, isSwitch, resolveServeOptions } from '../flag-sources';
import { MODEL_ARGUMENT } from '../model-argument';

/** Adds `capstan serve`. @param onExit Receives the exit code when the server has ended. */
export function addServeCommand(program: Command, onExit: (exitCode: number) => void): void {
  const serve = program
    .command('serve')
    .description('serve one model or several over an OpenAI-compatible HTTP API')
    .argument('[models...]', `${MODEL_ARGUMENT}; several are loaded on demand`)
    .addHelpText('after', HELP_TAIL);
  const commandLine = addFlags(serve, FLAG_NAMES, FLAG_GROUPS[0]);
  serve.action(async (models: string[]) => {
    if (models.length === 1) commandLine.values.add(FLAG_NAMES.get('--model')!, models[0], 'the model');
    if (models.length > 1)
      commandLine.values.add(
        FLAG_NAMES.get('--models')!,
        JSON.stringify(models.map((model) => ({ model }))),
        'the models',
      );
    const sources = await readFlagSources(commandLine, FLAG_NAMES);
    const { serve: runServer } = await import('../../inference/serve.js');
    onExit(
      await runServer(resolveServeOptions(sources, process.env)).catch((error: unknown) => {
        throw withFlagNames(error);
      }),
    );
  });
}

/**
 * Rewrites arguments that vLLM's parser accepts and commander does not: underscores for dashes, single-dash names of
 * several letters, `--switch=false`, `--name.key=value`, `-O3`.
 */
export function normalize(args: readonly string[]): string[] {
  return args.flatMap((arg) => {
    if (!arg.startsWith('-') || arg === '-' || arg === '--') return [arg];
    const [spelling] = arg.replace(/^-O(\d)$/, '-O=$1').split('=', 1);
    const rest = arg.replace(/^-O(\d)$/, '-O=$1').slice(spelling.length);
    const [whole] = spelling.split('.', 1);
    const name = whole.startsWith('--') ? whole.replaceAll('_', '-') : whole;
    const known = FLAG_NAMES.get(name);
    if (known === undefined) return [name + spelling.slice(whole.length) + rest];
    const long = known.isNegation || name.startsWith('--') ? name : `--${known.flag.name}`;
    if (!isSwitch(known.flag) || !/^=(true|false)$/i.test(rest)) return [long + rest];
    const isOn = (rest.toLowerCase() === '=true') !== known.isNegation;
    return [isOn ? `--${known.flag.name}` : `--no-${known.flag.name}`];
  });
}

const HELP_TAIL = `
--no-NAME turns a switch off. --name=value works too, and so do underscores
instead of dashes. Each flag is also an environment variable
(CAPSTAN_MAX_MODEL_LEN=8K for --max-model-len 8K) and a line of the --config
file. The command line overrides the environment, and the environment overrides
the file.

vLLM flags that have no effect here are ignored with a warning. vLLM flags that
would change responses or capacity are refused.

Examples:
  capstan serve                                           the embedded model on http://127.0.0.1:8080
  capstan serve Qwen3-4B-Q4_K_M.gguf                      a GGUF file
  capstan serve /models/Qwen2.5-0.5B-Instruct --port 8000 --max-model-len 8K
  capstan serve Qwen/Qwen2.5-0.5B-Instruct                a model from the hub, downloaded once
  capstan serve Qwen3-4B-Q4_K_M.gguf BAAI/bge-m3 --alias fast=Qwen3-4B-Q4_K_M
  capstan serve DIR --access-control --admin-port 9090    requires a key (capstan keys create); probes on port 9090
  capstan serve DIR --ssl-keyfile key.pem --ssl-certfile cert.pem
  PLATFORM_SERVING_PRODUCTION=1 capstan serve DIR         port 80 on all addresses
`;
