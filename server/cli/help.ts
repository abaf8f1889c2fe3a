import type { Command, HelpConfiguration, Option } from 'commander';

/** Returns the help of an option, with its default. Switches are off by default, so theirs is not shown. */
export function optionHelp({ description, defaultValue }: Option): string {
  const isShown = defaultValue !== undefined && typeof defaultValue !== 'boolean';
  return isShown ? `${description} (default: ${String(defaultValue)})` : description;
}

/** The descriptions are wrapped even beside long flags on a terminal of 80 columns. */
const HELP: HelpConfiguration = { optionDescription: optionHelp, minWidthToWrap: 24 };

const MODELS = 'Models and servers:';
const TOOLS = 'Tools:';
/** Sections of the help of `capstan`. A command that is not here belongs to the deployment service. */
const SECTIONS: Readonly<Record<string, string>> = {
  serve: MODELS,
  chat: MODELS,
  run: MODELS,
  pull: MODELS,
  models: MODELS,
  quantize: MODELS,
  bench: MODELS,
  keys: MODELS,
  doctor: TOOLS,
  health: TOOLS,
  completion: TOOLS,
  help: TOOLS,
};

export function groupCommands(program: Command): void {
  for (const command of program.commands) command.helpGroup(SECTIONS[command.name()] ?? 'Deployment service:');
}

/** Makes errors of each command name its help. */
export function nameHelpInErrors(command: Command, path: string): void {
  command.showHelpAfterError(`(see ${path} --help)`);
  for (const subcommand of command.commands) nameHelpInErrors(subcommand, `${path} ${subcommand.name()}`);
}

/** Sets the style of the help of a program and of the commands that are added later. */
export function configureHelp(program: Command): Command {
  return program
    .configureHelp(HELP)
    .helpOption('-h, --help', 'print this help')
    .helpCommand('help [command]', 'print the help of a command');
}
