import { readFileSync } from 'node:fs';
import { join } from 'node:path';

interface Lock {
  packages: Record<
    string,
    { hasInstallScript?: boolean; dev?: boolean; optional?: boolean; optionalDependencies?: Record<string, string> }
  >;
}

const lock = JSON.parse(readFileSync(join(__dirname, '../package-lock.json'), 'utf8')) as Lock;

test('the lock file contains the optional packages of all platforms (add missing ones with node .ci/complete-lock.js)', () => {
  const missing = Object.entries(lock.packages).flatMap(([path, { optionalDependencies = {} }]) =>
    Object.keys(optionalDependencies).filter(
      (name) => !(`node_modules/${name}` in lock.packages) && !(`${path}/node_modules/${name}` in lock.packages),
    ),
  );
  expect(missing).toEqual([]);
});

test('no production dependency needs its install script', () => {
  const scripts = Object.entries(lock.packages)
    .filter(([path, { hasInstallScript, dev }]) => hasInstallScript === true && dev !== true && path !== '')
    .map(([path]) => path.replace(/^.*node_modules\//, ''));
  // Optional parts of a WebSocket client that is not used.
  expect(scripts.filter((name) => !['bufferutil', 'utf-8-validate'].includes(name))).toEqual([]);
});
