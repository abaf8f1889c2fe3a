import { type Command, Option } from 'commander';
import { parseChoice } from '../flag-values';
import { type CommandIo, PROCESS_IO } from './io';

const SHELLS = ['bash', 'zsh', 'fish'] as const;

/** A command, its place below `capstan`, and what may follow it. */
interface Entry {
  path: string[];
  words: { name: string; description: string }[];
}

/** Adds `capstan completion`, which knows the commands of `program`. */
export function addCompletionCommand(program: Command, io: CommandIo = PROCESS_IO): void {
  program
    .command('completion')
    .description('print a script that completes commands and flags in a shell')
    .argument('<shell>', SHELLS.join(', '))
    .addHelpText('after', HELP)
    .action((shell: string) => {
      const entries = listEntries(program, []);
      const script = parseChoice(shell, 'the shell', SHELLS) === 'fish' ? fishScript(entries) : bashScript(entries);
      io.out(shell === 'zsh' ? `autoload -U +X bashcompinit && bashcompinit\n${script}` : script);
    });
}

function listEntries(command: Command, path: string[]): Entry[] {
  const { commands, flags } = visibleOf(command);
  const words = [...commands, ...flags];
  return [
    {
      path,
      words: words.map((word) => ({
        name: word instanceof Option ? (word.long ?? word.short!) : word.name(),
        description: firstPart(word instanceof Option ? word.description : word.description()),
      })),
    },
    ...commands.filter((sub) => sub.name() !== 'help').flatMap((sub) => listEntries(sub, [...path, sub.name()])),
  ];
}

function visibleOf(command: Command): { commands: Command[]; flags: Option[] } {
  const help = command.createHelp();
  return {
    commands: help.visibleCommands(command),
    flags: help.visibleOptions(command),
  };
}

/** Completions show one line. */
function firstPart(description: string): string {
  return description.split(/[;:(]|\. /, 1)[0].trim();
}

function bashScript(entries: readonly Entry[]): string {
  const quote = (path: readonly string[]): string => `'${['capstan', ...path].join(' ')}'`;
  const known = entries.filter(({ path }) => path.length > 0).map(({ path }) => quote(path));
  const cases = entries.map(
    ({ path, words }) => `    ${quote(path)}) words='${words.map(({ name }) => name).join(' ')}' ;;`,
  );
  return `# Completion of capstan. Load it with: source <(capstan completion bash)
_capstan() {
  local command=capstan words= word
  for word in "\${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$command $word" in
      ${known.join(' | ')}) command="$command $word" ;;
    esac
  done
  case $command in
${cases.join('\n')}
  esac
  COMPREPLY=($(compgen -W "$words" -- "\${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _capstan capstan
`;
}

function fishScript(entries: readonly Entry[]): string {
  const quote = (text: string): string => `'${text.replace(/[\\']/g, '\\$&')}'`;
  const lines = entries.flatMap(({ path, words }) => {
    const subcommands = words.filter(({ name }) => !name.startsWith('-')).map(({ name }) => name);
    const seen = path.map((name) => `__fish_seen_subcommand_from ${name}`);
    const here = path.length === 0 ? ['__fish_use_subcommand'] : seen;
    const notBelow =
      path.length > 0 && subcommands.length > 0 ? [`not __fish_seen_subcommand_from ${subcommands.join(' ')}`] : [];
    const condition = quote([...here, ...notBelow].join('; and '));
    return words.map(({ name, description }) => {
      const word = name.startsWith('--') ? `-l ${name.slice(2)}` : `-a ${name}`;
      return `complete -c capstan -n ${condition} ${word} -d ${quote(description)}`;
    });
  });
  return `# Completion of capstan. Load it with: capstan completion fish | source\n${lines.join('\n')}\n`;
}

const HELP = `
Load it in each new shell:
  bash: echo 'source <(capstan completion bash)' >> ~/.bashrc
  zsh:  echo 'source <(capstan completion zsh)' >> ~/.zshrc
  fish: capstan completion fish > ~/.config/fish/completions/capstan.fish
`;
