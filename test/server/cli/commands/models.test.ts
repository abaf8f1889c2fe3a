import { mkdirSync, mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Command } from 'commander';
import { addModelCommands } from '../../../../server/cli/commands/models';

const COMMIT = 'ab'.repeat(20);

test('models rm shows the full commit of the revision that it would delete', async () => {
  const home = mkdtempSync(join(tmpdir(), 'capstan-models-'));
  const folder = join(home, 'hub', 'models--acme--tiny');
  mkdirSync(join(folder, 'refs'), { recursive: true });
  mkdirSync(join(folder, 'snapshots', COMMIT), { recursive: true });
  writeFileSync(join(folder, 'refs', 'main'), COMMIT);
  process.env.HF_HOME = home;
  const questions: string[] = [];
  const ask = (question: string): Promise<string> => {
    questions.push(question);
    return Promise.resolve('n');
  };
  const program = new Command().exitOverride();
  addModelCommands(program, () => {}, { out: () => {}, err: () => {}, now: Date.now, ask } as never);
  for (const revision of ['main', COMMIT.slice(0, 7)])
    await expect(program.parseAsync(['node', 'capstan', 'models', 'rm', `acme/tiny@${revision}`])).rejects.toThrow(
      'cancelled',
    );
  const shown = (revision: string): string =>
    `Delete acme/tiny@${revision} (commit ${COMMIT}) and the files that only it uses? ` +
    'Other programs may use it. [y/N] ';
  expect(questions).toEqual([shown('main'), shown(COMMIT.slice(0, 7))]);
});
