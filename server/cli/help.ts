import type { Command, HelpConfiguration, Option } from 'commander';

/** Returns the help of an option, with its default. Switches are off by default, so theirs is not shown. */
export function optionHelp({ description, defaultValue }: Option): string {
  const isShown = defaultValue !== undefined && typeof defaultValue !== 'boolean';
  return isShown ? `${description} (default: ${String(defaultValue)})` : description;
}

/** The descriptions are wrapped even beside long flags on a terminal of 80 columns. */
const HELP: HelpConfiguration = { optionDescription: optionHelp, minWidthToWrap: 24 };

/** Sets the style of the help of a program and of the commands that are added later. */
export function configureHelp(program: Command): Command {
  return program
    .configureHelp(HELP)
    .helpOption('-h, --help', 'print this help')
    .helpCommand('help [command]', 'print the help of a command');
}
