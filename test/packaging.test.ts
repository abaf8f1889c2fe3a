/** What a release contains and states, from package-lock.json and CHANGELOG.md. */
import { execFileSync } from 'node:child_process';
import { chmodSync, cpSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { temporaryFolder } from './fakes/temporary-folder';

const root = join(__dirname, '..');
const read = (name: string): string => readFileSync(join(root, name), 'utf8');
/* eslint-disable @typescript-eslint/no-require-imports */
const licences = require('../packaging/licences') as { render: () => string };
const { release } = require('../packaging/version') as {
  release: (text: string, version: string, date: string) => string;
};
const { shippedPackages, productionPackages } = require('../packaging/dependencies') as {
  shippedPackages: () => { name: string; license: string; where: string }[];
  productionPackages: () => { name: string }[];
};
/* eslint-enable @typescript-eslint/no-require-imports */

test('THIRD-PARTY.md lists what is shipped (write it with npm run licences)', () => {
  expect(read('THIRD-PARTY.md')).toBe(licences.render());
});

test('the list has the native libraries, the code of the console and what npm installs', () => {
  const where = new Map(shippedPackages().map((entry) => [entry.name, entry.where]));
  expect(where.get('tokenizers')).toBe('in the platform packages');
  expect(where.get('@libsql/linux-arm64-gnu')).toBe('in the platform packages');
  expect(where.get('preact')).toBe('in the console');
  expect(where.get('@lezer/common')).toBe('in the console');
  expect(where.get('pg-pool')).toBe('installed by npm, in the executable');
  expect([...where.keys()]).toEqual(expect.arrayContaining(productionPackages().map(({ name }) => name)));
  expect([...where.keys()].filter((name) => /jest|eslint|openai|vite/.test(name))).toEqual([]);
});

test('the bill of materials is CycloneDX, and names each shipped package once', () => {
  execFileSync(process.execPath, ['packaging/sbom.js', '--node', '24.21.0'], { cwd: root });
  const sbom = JSON.parse(read('build/sbom.cdx.json'));
  expect([sbom.bomFormat, sbom.specVersion, sbom.metadata.component.name]).toEqual(['CycloneDX', '1.5', 'capstan']);
  const names: string[] = sbom.components.map(({ name }: { name: string }) => name);
  expect(new Set(names).size).toBe(names.length);
  expect(names).toEqual(expect.arrayContaining(shippedPackages().map(({ name }) => name)));
  const purls: string[] = sbom.components.map(({ purl }: { purl: string }) => purl);
  expect(purls).toEqual(expect.arrayContaining(['pkg:generic/node@24.21.0', 'pkg:npm/%40codemirror/state@6.7.6']));
});

describe('npm version', () => {
  const text = '# Changelog\n\n## [Unreleased]\n\n### Added\n\n- A thing.\n\n## [1.0.0] - 2026-01-01\n\n- Old.\n';

  test('dates the changes of the changelog', () => {
    expect(release(text, '1.1.0', '2026-11-26')).toBe(
      text.replace('## [Unreleased]\n', '## [Unreleased]\n\n## [1.1.0] - 2026-11-26\n'),
    );
  });

  test('refuses an empty section, a version that exists and a changelog without the section', () => {
    const empty = text.replace('### Added\n\n- A thing.\n\n', '');
    expect(() => release(empty, '1.1.0', '2026-11-26')).toThrow(/expected changes under \[Unreleased\]/);
    expect(() => release(text, '1.0.0', '2026-11-26')).toThrow(/1\.0\.0 has been released/);
    expect(() => release('# Changelog\n', '1.1.0', '2026-11-26')).toThrow(/expected the heading \[Unreleased\]/);
  });

  test('all packages have the version of package.json', () => {
    const { version } = JSON.parse(read('package.json'));
    const lock = JSON.parse(read('package-lock.json'));
    expect([lock.version, lock.packages[''].version]).toEqual([version, version]);
    expect(read('ts/pack.js')).not.toMatch(/version: '\d/);
  });
});

describe('a release publishes', () => {
  /** Stands for npm. `PUBLISHED` has the versions of the registry, and `FAILS` the package that it refuses. */
  const NPM = `#!/bin/sh
case "$1" in
  view) case " $PUBLISHED " in *" $2 "*) echo "\${2##*@}" ;; *" \${2%@*}@"*) ;; *) echo E404 >&2; exit 1 ;; esac ;;
  pkg) ;;
  publish) for last; do :; done; echo "$last" >> "$CALLS"; [ "$last" != "$FAILS" ] ;;
esac
`;
  const folder = temporaryFolder('publish');
  const calls = join(folder, 'calls');
  const publish = (PUBLISHED: string, FAILS = ''): string[] => {
    writeFileSync(calls, '');
    const PATH = `${join(folder, 'bin')}:${process.env.PATH}`;
    const env = { ...process.env, PATH, CALLS: calls, PUBLISHED, FAILS, GITHUB_REPOSITORY: 'owner/name' };
    const run = () => execFileSync(join(folder, 'packaging/publish-packages.sh'), { env, stdio: 'pipe' });
    if (FAILS === '') run();
    else expect(run).toThrow();
    return readFileSync(calls, 'utf8').split('\n').filter(Boolean);
  };

  beforeAll(() => {
    for (const [place, name] of [
      ['linux-x64-gnu', '@capstan/linux-x64-gnu'],
      ['linux-arm64-gnu', '@capstan/linux-arm64-gnu'],
      ['capstan', 'capstan'],
      ['service', '@capstan/service'],
    ]) {
      const at = join(folder, 'build/packages', place);
      mkdirSync(at, { recursive: true });
      writeFileSync(join(at, 'package.json'), JSON.stringify({ name, version: '1.2.3' }));
    }
    cpSync(join(root, 'packaging/publish-packages.sh'), join(folder, 'packaging/publish-packages.sh'));
    mkdirSync(join(folder, 'bin'));
    writeFileSync(join(folder, 'bin/npm'), NPM);
    chmodSync(join(folder, 'bin/npm'), 0o755);
  });

  const at = (place: string) => `./build/packages/${place}`;

  test('what capstan depends on first, and stops at the first failure', () => {
    expect(publish('capstan@1.2.2')).toEqual(['linux-x64-gnu', 'linux-arm64-gnu', 'capstan', 'service'].map(at));
    expect(publish('', at('linux-arm64-gnu'))).toEqual(['linux-x64-gnu', 'linux-arm64-gnu'].map(at));
  });

  test('only the versions that the registry lacks', () => {
    expect(publish('@capstan/linux-x64-gnu@1.2.3 @capstan/linux-arm64-gnu@1.2.3 capstan@1.2.2')).toEqual(
      ['capstan', 'service'].map(at),
    );
  });

  test('by the script that the workflow runs', () => {
    expect(read('.github/workflows/release.yml')).toContain('run: packaging/publish-packages.sh\n');
  });
});
