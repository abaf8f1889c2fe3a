/** Tests the package from the outside: `import`, `require`, and a copy of its code in a bundle. */
import { execFileSync, spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { prepare } from './fakes/server-process';

const root = join(__dirname, '..');

const env = { ...process.env };

beforeAll(() => {
  Object.assign(env, prepare());
});

test('import and require return the same exports', () => {
  const program =
    'import * as imported from "capstan"; import { createRequire } from "node:module"; const required = createRequire(import.meta.url)("capstan");' +
    ' console.log(JSON.stringify([Object.keys(required).sort(), Object.keys(imported).filter((name) => imported[name] === required[name]).sort()]));';
  const [required, imported] = JSON.parse(
    execFileSync(process.execPath, ['--input-type=module', '--eval', program], { cwd: root, encoding: 'utf8' }),
  ) as string[][];
  expect(required).toContain('Engine');
  expect(imported).toEqual(required);
});

test.each(['inside another package', 'outside of any package'])(
  'a bundled copy %s fails and explains how to exclude the package from the bundle',
  (where) => {
    const dir = mkdtempSync(join(tmpdir(), 'capstan-bundle-'));
    mkdirSync(join(dir, 'out'));
    for (const name of ['package-root.js', 'errors.js']) cpSync(join(root, 'dist/ts', name), join(dir, 'out', name));
    if (where === 'inside another package') writeFileSync(join(dir, 'package.json'), '{"name": "app"}');
    const { stderr } = spawnSync(process.execPath, ['--eval', 'require("./out/package-root").packageRoot()'], {
      cwd: dir,
      encoding: 'utf8',
    });
    expect(stderr).toMatch(/CapstanError: .*out: expected Capstan's own package above it[^]*--external:capstan/);
    expect(stderr).toContain("code: 'addon_not_found'");
  },
);

test('one signal for many calls causes no MaxListeners warning', () => {
  const program =
    'const { Engine } = require("capstan"); const { signal } = new AbortController();' +
    ' Engine.load("demo").then((engine) => Promise.all(Array.from({ length: 30 }, () => engine.generate("Once", {}, { signal }).result())).then((results) => { console.log(results.length); return engine.close(); }));';
  const { stdout, stderr } = spawnSync(process.execPath, ['--eval', program], { cwd: root, encoding: 'utf8', env });
  expect(stdout).toBe('30\n');
  expect(stderr).not.toContain('MaxListeners');
});
