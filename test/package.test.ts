/** The package as others take it: by `import`, by `require`, and copied into a bundle. */
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

test('import and require give the same names and things', () => {
  const program =
    'import * as imported from "capstan"; import { createRequire } from "node:module"; const required = createRequire(import.meta.url)("capstan");' +
    ' console.log(JSON.stringify([Object.keys(required).sort(), Object.keys(imported).filter((name) => imported[name] === required[name]).sort()]));';
  const [required, imported] = JSON.parse(
    execFileSync(process.execPath, ['--input-type=module', '--eval', program], { cwd: root, encoding: 'utf8' }),
  ) as string[][];
  expect(required).toContain('Engine');
  expect(imported).toEqual(required);
});

test.each(['below another package', 'below none'])(
  'a copy of the code %s says that the package has to stay out of bundles',
  (where) => {
    const dir = mkdtempSync(join(tmpdir(), 'capstan-bundle-'));
    mkdirSync(join(dir, 'out'));
    for (const name of ['package-root.js', 'errors.js']) cpSync(join(root, 'dist/ts', name), join(dir, 'out', name));
    if (where === 'below another package') writeFileSync(join(dir, 'package.json'), '{"name": "app"}');
    const { stderr } = spawnSync(process.execPath, ['--eval', 'require("./out/package-root").packageRoot()'], {
      cwd: dir,
      encoding: 'utf8',
    });
    expect(stderr).toMatch(/CapstanError: .*out: expected Capstan's own package above it[^]*--external:capstan/);
    expect(stderr).toContain("code: 'addon_not_found'");
  },
);

test('one signal may end many calls without a warning of Node', () => {
  const program =
    'const { Engine } = require("capstan"); const { signal } = new AbortController();' +
    ' Engine.load("demo").then((engine) => Promise.all(Array.from({ length: 30 }, () => engine.generate("Once", {}, { signal }).result())).then((results) => { console.log(results.length); return engine.close(); }));';
  const { stdout, stderr } = spawnSync(process.execPath, ['--eval', program], { cwd: root, encoding: 'utf8', env });
  expect(stdout).toBe('30\n');
  expect(stderr).not.toContain('MaxListeners');
});
