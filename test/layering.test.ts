/**
 * Reads the imports and includes of all sources and fails on a forbidden one. The rules are in docs/architecture.md,
 * "Which folders may import which".
 */
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join, normalize } from 'node:path';

const root = join(__dirname, '..');
const files = execFileSync('git', ['ls-files', '--cached', '--others', '--exclude-standard'], {
  cwd: root,
  encoding: 'utf8',
})
  .trim()
  .split('\n')
  .filter((file) => existsSync(join(root, file)));

interface Use {
  file: string;
  /** A path from the root for our own files, else as written. */
  target: string;
}

function isCpp(file: string): boolean {
  return /\.(c|cpp|cc|h|hpp|inl|cu|cuh)$/.test(file);
}

function isTypeScript(file: string): boolean {
  return /\.(ts|tsx|mts)$/.test(file);
}

function usesOf(file: string): Use[] {
  const text = readFileSync(join(root, file), 'utf8');
  if (isCpp(file))
    return [...text.matchAll(/^\s*#\s*include\s*[<"]([^>"]+)[>"]/gm)].map(([, name]) => ({
      file,
      target: ownHeader(file, name) ?? name,
    }));
  const specifiers = [
    ...text.matchAll(
      /(?:\bfrom|\bimport|\brequire|\bimport\s*\(|\brequire\s*\(|\brequire\.resolve\s*\()\s*['"]([^'"]+)['"]/g,
    ),
  ].map(([, name]) => name);
  return specifiers.map((name) => ({ file, target: name.startsWith('.') ? ownModule(file, name) : name }));
}

function ownHeader(file: string, name: string): string | undefined {
  return [name, normalize(join(dirname(file), name))].find((path) => files.includes(path));
}

function ownModule(file: string, name: string): string {
  const path = normalize(join(dirname(file), name)).replace(/\.m?js$/, '');
  return (
    [`${path}.ts`, `${path}.tsx`, `${path}.mts`, `${path}/index.ts`, path].find((candidate) =>
      files.includes(candidate),
    ) ?? path
  );
}

const uses = files
  .filter((file) => (isCpp(file) || isTypeScript(file)) && /^(native|cuda|ts|server|test|benchmarks)\//.test(file))
  .flatMap(usesOf);
const product = uses.filter(({ file }) => /^(native|cuda|ts|server)\//.test(file));

function violations(from: RegExp, isForbidden: (target: string) => boolean): string[] {
  return product
    .filter(({ file, target }) => from.test(file) && isForbidden(target))
    .map(({ file, target }) => `${file} -> ${target}`);
}

/** Returns a chain of includes from `file` to each header that it reaches, directly or indirectly. */
function includeChains(file: string): string[][] {
  const reached = new Set<string>();
  const chains: string[][] = [];
  const visit = (chain: string[]): void => {
    for (const { file: from, target } of product) {
      if (from !== chain.at(-1) || reached.has(target)) continue;
      reached.add(target);
      chains.push([...chain, target]);
      visit([...chain, target]);
    }
  };
  visit([file]);
  return chains;
}

const NODE_API = /^(napi\.h|node_api\.h|js_native_api\.h|node\.h|uv\.h|v8\.h)$/;
const CUDA = /^(cuda|cublas|nccl|cooperative_groups)/;

describe('native code', () => {
  test.each<[folder: string, may: string[]]>([
    ['native/base', ['native/base']],
    ['native/backend', ['native/base', 'native/backend', 'native/comm']],
    ['native/comm', ['native/base', 'native/backend', 'native/comm']],
    ['native/disk', ['native/base', 'native/disk']],
    ['native/grammar', ['native/base', 'native/grammar']],
    ['native/model', ['native/base', 'native/backend', 'native/comm', 'native/model']],
    [
      'native/engine',
      [
        'native/base',
        'native/backend',
        'native/comm',
        'native/disk',
        'native/grammar',
        'native/model',
        'native/engine',
      ],
    ],
    ['native/bench', ['native/base', 'native/backend', 'native/comm', 'native/bench']],
    ['native/sandbox', ['native/sandbox']],
    ['native/binding', ['native']],
    ['cuda', ['native/base', 'native/backend', 'native/comm', 'cuda']],
  ])('%s includes only the folders below it', (folder, may) => {
    const isOwn = (target: string) => /^(native|cuda|ts|server|test)\//.test(target);
    expect(
      violations(
        new RegExp(`^${folder}/`),
        (target) => isOwn(target) && !may.some((allowed) => target.startsWith(`${allowed}/`)),
      ),
    ).toEqual([]);
  });

  test('only native/binding includes Node-API headers', () => {
    expect(violations(/^(native\/(?!binding\/)|cuda\/)/, (target) => NODE_API.test(target))).toEqual([]);
  });

  test('only cuda/ includes CUDA headers', () => {
    expect(violations(/^native\//, (target) => CUDA.test(target))).toEqual([]);
  });

  test('engine and model include no header of a backend', () => {
    expect(violations(/^native\/(engine|model)\//, (target) => target.startsWith('native/backend/cpu/'))).toEqual([]);
  });

  test('scheduling includes no tensor, device, model or grammar header, not even indirectly', () => {
    const scheduling = files.filter((file) =>
      /^native\/engine\/(scheduler|block_manager|sequence|step_plan)\.(h|cpp)$/.test(file),
    );
    expect(scheduling.length).toBeGreaterThan(4);
    const chains = scheduling.flatMap((file) => includeChains(file));
    expect(chains.filter((chain) => /^native\/(backend|model|comm|grammar)\//.test(chain.at(-1)!))).toEqual([]);
  });
});

describe('scripts', () => {
  test('ts/ imports neither the server nor uWebSockets.js', () => {
    expect(violations(/^ts\//, (target) => target.startsWith('server/') || target === 'uWebSockets.js')).toEqual([]);
  });

  test('only ts/addon.ts loads the addon', () => {
    expect(
      violations(
        /^(ts|server)\/(?!addon\.ts$)/,
        (target) => target === 'node-gyp-build' || /^build\/|\.node$/.test(target),
      ),
    ).toEqual([]);
  });

  test('the server imports the library only through ts/index.ts, and what both need internally', () => {
    const shared = [
      'ts/benchmarks.ts',
      'ts/hub/revisions.ts',
      'ts/index.ts',
      'ts/make-folder.ts',
      'ts/nearest.ts',
      'ts/text-limits.ts',
      'ts/thread-calls.ts',
    ];
    expect(
      violations(
        /^server\/(?!internal(-cli)?\.ts$|base\/native-require\.ts$)/,
        (target) => target.startsWith('ts/') && !shared.includes(target),
      ),
    ).toEqual([]);
  });

  test('only server/http imports uWebSockets.js', () => {
    expect(violations(/^server\/(?!http\/)/, (target) => target.startsWith('uWebSockets.js'))).toEqual([]);
  });

  test('the console imports only the wire types and the example requests, and no other folder imports the console', () => {
    const isAllowed = (target: string) =>
      target.startsWith('server/platform/console/') ||
      target === 'server/platform/api/objects.ts' ||
      target === 'server/platform/api/task-examples.ts';
    expect(
      violations(
        /^server\/platform\/console\//,
        (target) => /^(server|ts|native|node:)/.test(target) && !isAllowed(target),
      ),
    ).toEqual([]);
    expect(
      violations(/^server\/(?!platform\/console\/)/, (target) => target.startsWith('server/platform/console/')),
    ).toEqual([]);
  });

  test('the domain of the platform imports neither the API nor the console', () => {
    expect(
      violations(
        /^server\/platform\/(deployments|control|accounts|sign-in|webhooks|usage|store|driver|gateway|outbound|upstreams)\//,
        (target) => /^server\/platform\/(api|console|up|cli)\//.test(target),
      ),
    ).toEqual([]);
  });

  test.each<[folder: string, may: RegExp]>([
    ['driver', /^driver\//],
    ['accounts', /^(accounts|store)\//],
    ['gateway', /^(gateway|driver)\/|^deployments\/deployment-state\.ts$|^outbound\/public-address\.ts$/],
    ['outbound', /^(outbound|store)\//],
  ])('server/platform/%s imports only the folders below it', (folder, may) => {
    expect(
      violations(
        new RegExp(`^server/platform/${folder}/`),
        (target) => target.startsWith('server/platform/') && !may.test(target.replace('server/platform/', '')),
      ),
    ).toEqual([]);
  });

  test('handlers import no socket modules', () => {
    expect(
      violations(/^server\/(inference|platform\/api)\//, (target) => /^(node:)?(http|https|net|tls)$/.test(target)),
    ).toEqual([]);
  });

  test.each<[folder: string, may: string[]]>([
    ['base', ['ts']],
    ['http', ['base']],
    ['access', ['base', 'http', 'ts']],
    ['storage', ['base', 'http', 'access']],
    ['inference', ['base', 'http', 'access', 'storage', 'ts']],
    ['bench', ['base', 'ts']],
    ['cli', ['base', 'http', 'access', 'storage', 'inference', 'bench', 'ts']],
    ['main.ts', ['cli']],
    ['index.ts', ['inference']],
    // The service converts between the interfaces for its upstreams.
    ['internal.ts', ['base', 'http', 'access', 'storage', 'cli', 'inference', 'ts']],
    ['internal-cli.ts', ['base', 'http', 'access', 'storage', 'cli', 'ts']],
    // A separate package: it imports the other one as `capstan/internal` and `capstan/internal/cli`.
    ['platform', []],
  ])('server/%s imports only the folders below it', (folder, may) => {
    const topFolder = (target: string) => target.replace(/^server\//, '').split('/')[0];
    expect(
      violations(
        new RegExp(`^server/${folder}(/|$)`),
        (target) => /^(server|ts)\//.test(target) && topFolder(target) !== folder && !may.includes(topFolder(target)),
      ),
    ).toEqual([]);
  });

  test('server/ holds only entry files, and each folder at most 40 files', () => {
    const sources = files.filter((file) => file.startsWith('server/'));
    expect(sources.filter((file) => dirname(file) === 'server')).toEqual([
      'server/index.mts',
      'server/index.ts',
      'server/internal-cli.ts',
      'server/internal.ts',
      'server/main.ts',
    ]);
    const sizes = new Map<string, number>();
    for (const file of sources) sizes.set(dirname(file), (sizes.get(dirname(file)) ?? 0) + 1);
    expect([...sizes].filter(([, size]) => size > 40)).toEqual([]);
  });
});

test('nothing in the product imports tests or benchmarks', () => {
  expect(violations(/./, (target) => /^(test|benchmarks)\//.test(target))).toEqual([]);
});

test('there are no cycles', () => {
  const graph = new Map<string, string[]>();
  for (const { file, target } of product)
    if (files.includes(target)) graph.set(file, [...(graph.get(file) ?? []), target]);
  const done = new Set<string>();
  const cycles: string[] = [];
  const visit = (file: string, path: string[]): void => {
    if (path.includes(file)) return void cycles.push([...path.slice(path.indexOf(file)), file].join(' -> '));
    if (done.has(file)) return;
    for (const target of graph.get(file) ?? []) visit(target, [...path, file]);
    done.add(file);
  };
  for (const file of graph.keys()) visit(file, []);
  expect(cycles).toEqual([]);
});

test('no folder has a meaningless name', () => {
  const folders = new Set(files.flatMap((file) => dirname(file).split('/')));
  expect([...folders].filter((name) => /^(utils?|common|helpers?|misc)$/.test(name))).toEqual([]);
});

test('the top level holds what the architecture lists', () => {
  const allowed = new Set([
    '.ci',
    '.clang-format',
    '.git-blame-ignore-revs',
    '.github',
    '.gitignore',
    '.prettierignore',
    '.prettierrc.json',
    'LICENSE',
    'README.md',
    'CHANGELOG.md',
    'CONTRIBUTING.md',
    'SECURITY.md',
    'THIRD-PARTY.md',
    'benchmarks',
    'binding.gyp',
    'cuda',
    'docs',
    'examples',
    'models',
    'native',
    'package.json',
    'packaging',
    'package-lock.json',
    'packaging',
    'server',
    'test',
    'ts',
    'tsconfig.json',
    'tsconfig.lint.json',
    'eslint.config.mjs',
    'jest.config.js',
    'knip.json',
  ]);
  expect([...new Set(files.map((file) => file.split('/')[0]))].filter((name) => !allowed.has(name))).toEqual([]);
});

test('finds the imports of the product', () => {
  expect(product.length).toBeGreaterThan(100);
  expect(product.some(({ file, target }) => file === 'server/inference/app.ts' && target === 'ts/index.ts')).toBe(true);
  expect(
    product.some(({ file, target }) => file.startsWith('native/engine/') && target.startsWith('native/base/')),
  ).toBe(true);
});
