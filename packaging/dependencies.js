// Lists the packages of other projects that Capstan ships, from package-lock.json.
'use strict';

const fs = require('node:fs');
const path = require('node:path');

const root = path.dirname(__dirname);
const lock = JSON.parse(fs.readFileSync(path.join(root, 'package-lock.json'), 'utf8')).packages;

/** Whether an optional package with native files is for a platform with a package. */
const isForOurPlatforms = ({ os = ['linux'], cpu = ['x64'], libc = ['glibc'] }) =>
  os.includes('linux') && (cpu.includes('x64') || cpu.includes('arm64')) && libc.includes('glibc');

/** Returns the folder of a dependency, as Node finds it from the folder of another package. */
function find(name, from) {
  const parts = from === '' ? [] : from.split('/node_modules/');
  for (let depth = parts.length; depth >= 0; depth--) {
    const candidate = [...parts.slice(0, depth), name].join('/node_modules/');
    const folder = depth === 0 ? `node_modules/${name}` : candidate;
    if (folder in lock) return folder;
  }
  return undefined;
}

/**
 * Returns the packages with these names and all that they depend on, sorted by folder.
 * @param {readonly string[]} names
 */
exports.closure = function closure(names) {
  const found = new Map();
  const add = (name, from) => {
    const folder = find(name, from);
    if (folder === undefined || found.has(folder)) return;
    const entry = lock[folder];
    if (entry.optional && entry.os !== undefined && !isForOurPlatforms(entry)) return;
    found.set(folder, { name: folder.replace(/^.*node_modules\//, ''), folder, ...entry });
    for (const dependency of Object.keys({ ...entry.dependencies, ...entry.optionalDependencies }))
      add(dependency, folder);
  };
  for (const name of names) add(name, '');
  return [...found.values()].sort((a, b) => (a.folder < b.folder ? -1 : 1));
};

/** Returns the packages that npm installs with `capstan` and `@capstan/service` on this machine. */
exports.productionPackages = function productionPackages() {
  return exports
    .closure(Object.keys(lock[''].dependencies))
    .filter(({ folder }) => fs.existsSync(path.join(root, folder)));
};

/** Packages whose native library is in the platform packages. */
const NATIVE = ['libsql', 'tokenizers'];
/** Named in the text of an example. */
const IN_EXAMPLES = ['openai'];
const IMPORT = /(?:from|import\(?)\s*'((?:@[\w.-]+\/)?[\w-][\w.-]*)/g;

/** Returns the packages whose code Vite puts into the console, and the plots of `capstan bench`. */
function bundledPackages() {
  const folder = path.join(root, 'server', 'platform', 'console');
  const names = fs
    .readdirSync(folder, { recursive: true })
    .filter((name) => /\.tsx?$/.test(name))
    .flatMap((name) =>
      [...fs.readFileSync(path.join(folder, name), 'utf8').matchAll(IMPORT)].map(([, found]) => found),
    );
  const found = new Set(names.filter((name) => !IN_EXAMPLES.includes(name) && `node_modules/${name}` in lock));
  return exports.closure([...found]);
}

/** Each processor has its own package. What only the wrappers of these libraries need is not shipped. */
function nativePackages() {
  return exports.closure(NATIVE).filter(({ name }) => NATIVE.includes(name) || name.startsWith('@libsql/linux'));
}

/**
 * Returns all packages of npm that the packages or the single executable contain or install, with `where` they are.
 * @returns {{ name: string, version: string, license: string, folder: string, where: string }[]}
 */
exports.shippedPackages = function shippedPackages() {
  const parts = [
    [exports.closure(Object.keys(lock[''].dependencies)), 'installed by npm, in the executable'],
    [bundledPackages(), 'in the console'],
    [nativePackages(), 'in the platform packages'],
  ];
  const found = new Map();
  for (const [packages, where] of parts) {
    for (const entry of packages) if (!found.has(entry.folder)) found.set(entry.folder, { ...entry, where });
  }
  return [...found.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
};
