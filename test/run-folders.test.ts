/** The temporary folders of a run of Jest. */
import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { temporaryFolder } from './fakes/temporary-folder';

const MODULE = join(__dirname, 'run-folders.js');

/** Runs a script that makes its folders in `root`. Returns what it prints. */
function run(root: string, script: string): string {
  return execFileSync(
    process.execPath,
    ['-e', `const { makeRunFolders, removeRunFolders } = require(${JSON.stringify(MODULE)}); ${script}`],
    { env: { ...process.env, TMPDIR: root }, encoding: 'utf8' },
  );
}

test('a run has its own folders, and removes them at its end', () => {
  const root = temporaryFolder('runs');
  const script = `
    makeRunFolders();
    const { TMPDIR, CAPSTAN_TEST_DATABASES } = process.env;
    require('node:fs').writeFileSync(TMPDIR + '/left-behind', '');
    console.log([TMPDIR, CAPSTAN_TEST_DATABASES].map(require('node:fs').existsSync).join(), CAPSTAN_TEST_DATABASES);
    removeRunFolders();`;
  const [existed, databases] = run(root, script).trim().split(' ');
  expect([existed, existsSync(databases), readdirSync(root)]).toEqual(['true,true', false, []]);
});

test('the next run removes those of a run that was killed, and no others', () => {
  const root = temporaryFolder('runs');
  run(root, 'makeRunFolders();');
  const [killed] = readdirSync(root);
  run(root, `require('node:fs').mkdirSync(${JSON.stringify(join(root, `capstan-tests-${process.pid}`))});`);
  run(root, 'makeRunFolders();');
  const left = readdirSync(root);
  expect(left).toHaveLength(2);
  expect(left).toContain(`capstan-tests-${process.pid}`);
  expect(left).not.toContain(killed);
});

test('this run has one', () => expect(tmpdir()).toMatch(/\/capstan-tests-\d+$/));
