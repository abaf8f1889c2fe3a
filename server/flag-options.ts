import { type Command, Option } from 'commander';
import { UsageError } from './flag-values';
import { type FlagName, type FlagNames, Given, isSwitch } from './given';

/** What a command line says, and where its file is; filled when the command is parsed. */
export interface CommandLine {
  readonly commandLine: Given;
  configFile: string | undefined;
}

/** Gives a command its flags under all their names, and `--config`. @param configGroup Where the help lists `--config`. */
export function mountFlags(command: Command, flagNames: FlagNames, configGroup: string): CommandLine {
  const given: CommandLine = { commandLine: new Given(), configFile: undefined };
  command.addOption(
    new Option(
      '--config <file>',
      'a YAML file of flags, as "port: 8000"; the command line and the environment go before it',
    ).helpGroup(`${configGroup}:`),
  );
  command.on('option:config', (value: string) => {
    given.configFile = value;
  });
  for (const [name, flagName] of flagNames)
    if (name.startsWith('--')) addFlag(command, name, flagName, given.commandLine);
  return given;
}

/** The weakest first: the file, the environment, the command line. */
export async function gather(
  { commandLine, configFile }: CommandLine,
  flagNames: FlagNames,
  env: NodeJS.ProcessEnv = process.env,
): Promise<Given[]> {
  const { fromEnvironment } = await import('./environment.js');
  const sources = [fromEnvironment(env, flagNames), commandLine];
  const { CAPSTAN_CONFIG: fromVariable = '' } = env;
  if (configFile === undefined && fromVariable === '') return sources;
  // Here, as few starts need a YAML parser.
  const { fromConfigFile } = await import('./config-file.js');
  return [
    fromConfigFile(configFile ?? fromVariable, configFile === undefined ? 'CAPSTAN_CONFIG' : '--config', flagNames),
    ...sources,
  ];
}

function addFlag(command: Command, name: string, flagName: FlagName, given: Given): void {
  const { flag } = flagName;
  const option = new Option(name + valuePart(flagName), 'help' in flag ? flag.help : '');
  if (name === `--${flag.name}` && 'group' in flag && !flag.isHidden) option.helpGroup(`${flag.group}:`);
  else option.hideHelp();
  command.addOption(option);
  command.on(`option:${option.name()}`, (value: string | null) => {
    if (value === '' && !isSwitch(flag)) throw new UsageError(`${name}: expected a value, got nothing`);
    given.add(flagName, isSwitch(flag) ? 'true' : (value ?? ''), name);
  });
}

function valuePart({ flag }: FlagName): string {
  if (isSwitch(flag)) return '';
  if ('takes' in flag) return flag.takes === 'values' ? ' <values...>' : ' <value>';
  return ` ${flag.value}`;
}
