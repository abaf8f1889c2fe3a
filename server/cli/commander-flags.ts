import { type Command, Option } from 'commander';
import { UsageError } from '../base/usage-error';
import { type FlagName, type FlagNames, FlagValues, isSwitch } from './flag-sources';

/** The flags on a command line and its configuration file. Filled when commander parses the command. */
export interface CommandLine {
  readonly values: FlagValues;
  configFile: string | undefined;
}

/**
 * Adds flags to a command, under all their names, and `--config`.
 * @param configGroup The help group of `--config`.
 */
export function addFlags(command: Command, flagNames: FlagNames, configGroup: string): CommandLine {
  const commandLine: CommandLine = { values: new FlagValues(), configFile: undefined };
  command.addOption(
    new Option(
      '--config <file>',
      'YAML file with flags, for example "port: 8000"; the command line and the environment override it',
    ).helpGroup(`${configGroup}:`),
  );
  command.on('option:config', (value: string) => {
    commandLine.configFile = value;
  });
  for (const [name, flagName] of flagNames)
    if (name.startsWith('--')) addFlag(command, name, flagName, configGroup, commandLine.values);
  return commandLine;
}

/** Returns the configuration file, the environment and the command line, lowest priority first. */
export async function readFlagSources(
  { values, configFile }: CommandLine,
  flagNames: FlagNames,
  env: NodeJS.ProcessEnv = process.env,
): Promise<FlagValues[]> {
  const { fromEnvironment } = await import('./environment.js');
  const sources = [fromEnvironment(env, flagNames), values];
  const { CAPSTAN_CONFIG: fromVariable = '' } = env;
  if (configFile === undefined && fromVariable === '') return sources;
  // Imported on demand: most starts need no YAML parser.
  const { fromConfigFile } = await import('./config-file.js');
  return [
    fromConfigFile(configFile ?? fromVariable, configFile === undefined ? 'CAPSTAN_CONFIG' : '--config', flagNames),
    ...sources,
  ];
}

function addFlag(command: Command, name: string, flagName: FlagName, configGroup: string, values: FlagValues): void {
  const { flag } = flagName;
  const option = new Option(name + valuePart(flagName), 'help' in flag ? flag.help : '');
  // Hidden flags have a group too: commander would put the default group before those of later flags.
  option.helpGroup(`${'group' in flag ? flag.group : configGroup}:`);
  if (name !== `--${flag.name}` || !('group' in flag) || flag.isHidden) option.hideHelp();
  command.addOption(option);
  command.on(`option:${option.name()}`, (value: string | null) => {
    if (value === '' && !isSwitch(flag)) throw new UsageError(`${name}: expected a value, got nothing`);
    values.add(flagName, isSwitch(flag) ? 'true' : (value ?? ''), name);
  });
}

function valuePart({ flag }: FlagName): string {
  if (isSwitch(flag)) return '';
  if ('takes' in flag) return flag.takes === 'values' ? ' <values...>' : ' <value>';
  return ` ${flag.value}`;
}
