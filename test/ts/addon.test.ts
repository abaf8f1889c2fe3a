import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { CapstanError } from '../../ts/errors';

const folder = mkdtempSync(join(tmpdir(), 'capstan-addon-'));
const { CAPSTAN_ADDON } = process.env;
const { platform } = process;

afterEach(() => {
  if (CAPSTAN_ADDON === undefined) delete process.env.CAPSTAN_ADDON;
  else process.env.CAPSTAN_ADDON = CAPSTAN_ADDON;
  Object.defineProperty(process, 'platform', { value: platform });
  jest.dontMock('../../ts/package-root');
  jest.resetModules();
});
afterAll(() => rmSync(folder, { recursive: true }));

/** Returns the error of loading the addon in a new copy of the modules. */
async function errorOfLoading(): Promise<CapstanError> {
  jest.resetModules();
  const { loadAddon } = await import('../../ts/addon.js');
  try {
    loadAddon();
  } catch (error) {
    return error as CapstanError;
  }
  throw new Error('the addon was loaded');
}

/** Makes the modules find no addon under `root`, and `installed` as the folder of every package. */
function mockRoot(root: string, installed?: string): void {
  jest.doMock('../../ts/package-root', () => ({
    packageRoot: () => root,
    requireNative: (id: string) => jest.requireActual(id),
    resolveNative: () => {
      if (installed === undefined) throw new Error('not installed');
      return join(installed, 'package.json');
    },
  }));
}

test('a missing file is named', async () => {
  process.env.CAPSTAN_ADDON = join(folder, 'missing.node');
  const { code, message } = await errorOfLoading();
  expect(code).toBe('addon_not_found');
  expect(message).toContain(`${join(folder, 'missing.node')} does not exist`);
  expect(message).toContain('npm run build:addon');
});

test('a file that is no addon is named, with the reason of the loader', async () => {
  process.env.CAPSTAN_ADDON = join(folder, 'text.node');
  writeFileSync(process.env.CAPSTAN_ADDON, 'not an addon');
  const { code, message } = await errorOfLoading();
  expect(code).toBe('addon_not_found');
  expect(message).toMatch(/text\.node does not load: .+/);
});

test.each([
  ['a platform with a package', 'linux', undefined, 'which --omit=optional leaves out'],
  ['an old glibc', 'linux', folder, 'the package needs glibc 2.28 or newer'],
  ['a platform without a package', 'sunos', undefined, `There is no package for @capstan/sunos-${process.arch}`],
])('the next step on %s', async (_name, os, installed, step) => {
  delete process.env.CAPSTAN_ADDON;
  Object.defineProperty(process, 'platform', { value: os });
  mockRoot(folder, installed);
  const { code, message } = await errorOfLoading();
  expect(code).toBe('addon_not_found');
  expect(message).toContain('there is no build for this platform');
  expect(message).toContain(`Tried: ${join(folder, 'build/Release')}`);
  expect(message).toContain(step);
});
