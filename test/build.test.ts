/** Tests native/build.js in a small project, because compiling the real addon takes minutes. */
import { spawnSync } from 'node:child_process';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const root = join(__dirname, '..');

/** Includes the C header only: <napi.h> takes a second to compile. */
const SOURCE = '#include <node_api.h>\nNAPI_MODULE_INIT() { return exports; }\n';
const GYP = {
  targets: [
    {
      target_name: 'capstan',
      sources: ['native/addon.cpp'],
      defines: ['NAPI_VERSION=8'],
    },
  ],
};

function makeProject(): string {
  const dir = mkdtempSync(join(tmpdir(), 'capstan-build-'));
  mkdirSync(join(dir, 'native'));
  for (const name of ['build.js', 'node-headers.js', 'sources.js'])
    cpSync(join(root, 'native', name), join(dir, 'native', name));
  symlinkSync(join(root, 'node_modules'), join(dir, 'node_modules'));
  writeFileSync(join(dir, 'package.json'), '{"name": "capstan"}');
  writeFileSync(join(dir, 'native/addon.cpp'), SOURCE);
  writeFileSync(join(dir, 'binding.gyp'), JSON.stringify(GYP));
  return dir;
}

function build(
  dir: string,
  args: string[] = [],
  env: NodeJS.ProcessEnv = process.env,
): { status: number | null; stdout: string; stderr: string } {
  return spawnSync(process.execPath, ['native/build.js', ...args], { cwd: dir, env, encoding: 'utf8' });
}

test('compiles when a source has changed or the addon is missing', () => {
  const dir = makeProject();
  const addon = join(dir, 'build/Release/capstan.node');
  const first = build(dir);
  expect([first.status, first.stderr]).toEqual([0, '']);
  expect(first.stdout).toMatch(/compiling the native addon: 1 files[^]*ready after \d+ s/);
  const built = statSync(addon).mtimeMs;
  expect(build(dir)).toMatchObject({ status: 0, stdout: '' });
  expect(statSync(addon).mtimeMs).toBe(built);
  writeFileSync(join(dir, 'native/addon.cpp'), `${SOURCE}// changed\n`);
  expect(build(dir).stdout).toContain('ready');
  expect(statSync(addon).mtimeMs).toBeGreaterThan(built);
  rmSync(addon);
  expect(build(dir).stdout).toContain('ready');
  expect(existsSync(addon)).toBe(true);
});

test('a failed compile prints the end of the log and exits with 1', () => {
  const dir = makeProject();
  writeFileSync(join(dir, 'native/addon.cpp'), 'this is not C++\n');
  const { status, stderr } = build(dir);
  expect(status).toBe(1);
  expect(stderr).toMatch(/^capstan: the addon does not compile; the log is build\/build\.log and ends with:\n/);
  expect(stderr).toContain('addon.cpp:1:1: error');
  expect(readFileSync(join(dir, 'build/build.log'), 'utf8')).toContain('error');
  expect(build(dir).status).toBe(1);
});

test('without compiler, make or Python it prints what to install', () => {
  const { status, stdout, stderr } = build(makeProject(), [], { PATH: '/nonexistent' });
  expect([status, stdout]).toEqual([1, '']);
  expect(stderr).toBe(
    'capstan: python3, g++, make not found: compiling the addon needs python3, make and g++ 12 or newer (Debian, Ubuntu: apt-get install -y python3 make g++), then run: npm run build:addon\n',
  );
});

test('uses a prebuild that loads, and compiles if it does not', () => {
  const dir = makeProject();
  build(dir);
  const prebuilds = join(dir, 'prebuilds', `${process.platform}-${process.arch}`);
  mkdirSync(prebuilds, { recursive: true });
  cpSync(join(dir, 'build/Release/capstan.node'), join(prebuilds, 'capstan.node'));
  rmSync(join(dir, 'build'), { recursive: true });
  expect(build(dir)).toMatchObject({ status: 0, stdout: '', stderr: '' });
  expect(existsSync(join(dir, 'build'))).toBe(false);
  writeFileSync(join(prebuilds, 'capstan.node'), 'not a library');
  expect(build(dir).stdout).toMatch(/compiling the addon, because the prebuilt one does not load \(.*\)[^]*ready/);
});
