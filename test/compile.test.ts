/** Tests ts/build.js in a small project. */
import { spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const root = join(__dirname, '..');

test('removes the outputs of deleted sources', () => {
  const dir = mkdtempSync(join(tmpdir(), 'capstan-compile-'));
  for (const folder of ['ts', 'server']) mkdirSync(join(dir, folder));
  cpSync(join(root, 'ts/build.js'), join(dir, 'ts/build.js'));
  symlinkSync(join(root, 'node_modules'), join(dir, 'node_modules'));
  const compilerOptions = {
    target: 'es2022',
    lib: ['es5'],
    module: 'node16',
    rootDir: '.',
    outDir: 'dist',
    types: [],
    skipLibCheck: true,
  };
  writeFileSync(join(dir, 'tsconfig.json'), JSON.stringify({ compilerOptions, include: ['ts', 'server'] }));
  writeFileSync(join(dir, 'server/main.ts'), 'export const name = "main";\n');
  writeFileSync(join(dir, 'ts/format.ts'), 'export const format = "a file";\n');
  const build = () =>
    expect(spawnSync(process.execPath, ['ts/build.js'], { cwd: dir, encoding: 'utf8' })).toMatchObject({
      status: 0,
      stdout: '',
      stderr: '',
    });

  build();
  expect(existsSync(join(dir, 'dist/ts/format.js'))).toBe(true);
  mkdirSync(join(dir, 'ts/format'));
  writeFileSync(join(dir, 'ts/format/index.ts'), 'export const format = "a folder";\n');
  rmSync(join(dir, 'ts/format.ts'));
  build();
  expect(existsSync(join(dir, 'dist/ts/format.js'))).toBe(false);
  expect(readFileSync(join(dir, 'dist/ts/format/index.js'), 'utf8')).toContain('a folder');

  // Only the time of the folder changes here.
  rmSync(join(dir, 'ts/format'), { recursive: true });
  build();
  expect(existsSync(join(dir, 'dist/ts/format/index.js'))).toBe(false);
  expect(existsSync(join(dir, 'dist/server/main.js'))).toBe(true);
});
