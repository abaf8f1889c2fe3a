/** Who may know whom: reads the imports and includes of all sources and fails on a forbidden one (architecture, "Folders and what they may know"). */
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

const NODE_API = /^(napi\.h|node_api\.h|js_native_api\.h|node\.h|uv\.h|v8\.h)$/;
const CUDA = /^(cuda|cublas|nccl|cooperative_groups)/;

describe('native code', () => {
  test.each<[folder: string, may: string[]]>([
    ['native/base', ['native/base']],
    ['native/backend', ['native/base', 'native/backend', 'native/comm']],
    ['native/comm', ['native/base', 'native/backend', 'native/comm']],
    ['native/grammar', ['native/base', 'native/grammar']],
    ['native/model', ['native/base', 'native/backend', 'native/comm', 'native/model']],
    [
      'native/engine',
      ['native/base', 'native/backend', 'native/comm', 'native/grammar', 'native/model', 'native/engine'],
    ],
    ['native/sandbox', ['native/sandbox']],
    ['native/binding', ['native']],
    ['cuda', ['native/base', 'native/backend', 'native/comm', 'cuda']],
  ])('%s includes only what lies below it', (folder, may) => {
    const isOwn = (target: string) => /^(native|cuda|ts|server|test)\//.test(target);
    expect(
      violations(
        new RegExp(`^${folder}/`),
        (target) => isOwn(target) && !may.some((allowed) => target.startsWith(`${allowed}/`)),
      ),
    ).toEqual([]);
  });

  test('only native/binding knows Node-API', () => {
    expect(violations(/^(native\/(?!binding\/)|cuda\/)/, (target) => NODE_API.test(target))).toEqual([]);
  });

  test('only cuda/ knows CUDA', () => {
    expect(violations(/^native\//, (target) => CUDA.test(target))).toEqual([]);
  });

  test('engine and model name no backend', () => {
    expect(violations(/^native\/(engine|model)\//, (target) => target.startsWith('native/backend/cpu/'))).toEqual([]);
  });

  test('scheduling includes no tensor, device or model header', () => {
    expect(
      violations(/^native\/engine\/(scheduler|block_manager|sequence)\.(h|cpp)$/, (target) =>
        /^native\/(backend|model|comm)\//.test(target),
      ),
    ).toEqual([]);
  });
});

describe('scripts', () => {
  test('ts/ knows neither the server nor its transport', () => {
    expect(violations(/^ts\//, (target) => target.startsWith('server/') || target === 'uWebSockets.js')).toEqual([]);
  });

  test('only ts/addon.ts loads the binary', () => {
    expect(
      violations(
        /^(ts|server)\/(?!addon\.ts$)/,
        (target) => target === 'node-gyp-build' || /^build\/|\.node$/.test(target),
      ),
    ).toEqual([]);
  });

  test('the server sees of ts/ its index alone', () => {
    expect(violations(/^server\//, (target) => target.startsWith('ts/') && target !== 'ts/index.ts')).toEqual([]);
  });

  test('only server/http imports uWebSockets.js', () => {
    expect(violations(/^server\/(?!http\/)/, (target) => target.startsWith('uWebSockets.js'))).toEqual([]);
  });

  test('the console knows the service by its interface alone, and nobody knows the console', () => {
    expect(
      violations(
        /^server\/console\//,
        (target) =>
          /^(server|ts|native|node:)/.test(target) &&
          !target.startsWith('server/console/') &&
          target !== 'server/api/objects.ts',
      ),
    ).toEqual([]);
    expect(violations(/^server\/(?!console\/)/, (target) => target.startsWith('server/console/'))).toEqual([]);
  });

  test('handlers know no sockets', () => {
    expect(violations(/^server\/(openai\/|[^/]+$)/, (target) => /^(node:)?(http|https|net|tls)$/.test(target))).toEqual(
      [],
    );
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

test('no folder is named for what it is not', () => {
  const folders = new Set(files.flatMap((file) => dirname(file).split('/')));
  expect([...folders].filter((name) => /^(utils?|common|helpers?|misc)$/.test(name))).toEqual([]);
});

test('the top level holds what the architecture lists', () => {
  const allowed = new Set([
    '.ci',
    '.gitignore',
    'LICENSE',
    'README.md',
    'CHANGELOG.md',
    'CONTRIBUTING.md',
    'SECURITY.md',
    'benchmarks',
    'binding.gyp',
    'cuda',
    'docs',
    'models',
    'native',
    'package.json',
    'package-lock.json',
    'server',
    'test',
    'ts',
    'tsconfig.json',
    'tsconfig.lint.json',
    'eslint.config.mjs',
    'jest.config.js',
  ]);
  expect([...new Set(files.map((file) => file.split('/')[0]))].filter((name) => !allowed.has(name))).toEqual([]);
});

test('the layers are really read', () => {
  expect(product.length).toBeGreaterThan(100);
  expect(product.some(({ file, target }) => file === 'server/app.ts' && target === 'ts/index.ts')).toBe(true);
  expect(
    product.some(({ file, target }) => file.startsWith('native/engine/') && target.startsWith('native/base/')),
  ).toBe(true);
});
