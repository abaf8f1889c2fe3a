/** Tests the package from the outside: `import`, `require`, and a copy of its code in a bundle. */
import { execFileSync, spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
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

const { version: installed } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string };

/** Copies code to another package, as a bundler does, and prints the root that it finds there. */
function runBundle(prepareApp: (folder: string) => void, version = installed) {
  const folder = mkdtempSync(join(tmpdir(), 'capstan-bundle-'));
  mkdirSync(join(folder, 'out'));
  for (const name of ['package-root.js', 'errors.js']) cpSync(join(root, 'dist/ts', name), join(folder, 'out', name));
  // A bundler inlines the version.
  const file = join(folder, 'out', 'package-root.js');
  const code = readFileSync(file, 'utf8').replace("require('capstan/package.json')", `{ version: '${version}' }`);
  expect(code).toContain(`'${version}'`);
  writeFileSync(file, code);
  prepareApp(folder);
  return spawnSync(process.execPath, ['--eval', 'console.log(require("./out/package-root").packageRoot())'], {
    cwd: folder,
    encoding: 'utf8',
  });
}

test('a bundle uses the installed package', () => {
  const { stdout } = runBundle((folder) => {
    writeFileSync(join(folder, 'package.json'), '{"name": "app"}');
    mkdirSync(join(folder, 'node_modules'));
    symlinkSync(root, join(folder, 'node_modules/capstan'));
  });
  expect(stdout).toBe(`${root}\n`);
});

test('a bundle of another version than the installed package fails and says what to install', () => {
  const { stderr } = runBundle((folder) => {
    mkdirSync(join(folder, 'node_modules'));
    symlinkSync(root, join(folder, 'node_modules/capstan'));
  }, '9.9.9');
  expect(stderr).toMatch(
    /expected capstan 9\.9\.9, which is in the bundle, got \d+\.\d+\.\d[^]*npm install capstan@9\.9\.9/,
  );
});

test.each(['inside another package', 'outside of any package'])(
  'a bundle %s, without the installed package, fails and says what to install',
  (where) => {
    const { stderr } = runBundle((folder) => {
      if (where === 'inside another package') writeFileSync(join(folder, 'package.json'), '{"name": "app"}');
    });
    expect(stderr).toMatch(
      /CapstanError: .*out: expected the package capstan in node_modules[^]*install capstan where/,
    );
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
