import { Command } from 'commander';
import { addMissingServiceCommands, SERVICE_COMMANDS } from '../../../server/cli/service-package';
import { addServiceCommands } from '../../../server/platform';

function makeProgram(): Command {
  return new Command('capstan').exitOverride().configureOutput({ writeOut: () => {}, writeErr: () => {} });
}

test('the list of the commands of @capstan/service is complete', () => {
  const program = makeProgram();
  addServiceCommands(program, () => {});
  expect(program.commands.map((command) => command.name()).sort()).toEqual([...SERVICE_COMMANDS].sort());
});

test.each([
  ['up'],
  ['up', '--data-dir', 'x'],
  ['deploy', 'chat', '--wait'],
  ['deployments', 'list'],
  ['logs', '--help'],
])('without @capstan/service, capstan %s says how to install it', async (...args) => {
  const program = makeProgram();
  addMissingServiceCommands(program);
  await expect(program.parseAsync(args, { from: 'user' })).rejects.toMatchObject({
    message: expect.stringMatching(
      new RegExp(`^capstan ${args[0]} needs .*@capstan/service.* npm install @capstan/service@\\d`),
    ) as string,
  });
});

test('without @capstan/service, the help names the package', () => {
  const program = makeProgram();
  addMissingServiceCommands(program);
  let help = '';
  program.configureOutput({ writeOut: (text) => (help += text) }).outputHelp();
  expect(help).toMatch(/npm install @capstan\/service@/);
  expect(help).not.toMatch(/^ {2}up\b/m);
});
