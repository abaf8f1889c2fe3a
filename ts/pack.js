// Builds the published packages: build/packages/NAME/ and a tarball beside it. Run: npm run packages
//
//     node ts/pack.js [--target linux-x64-gnu]...
//
// `capstan` holds the library, the inference server and the command line; `@capstan/service` the deployment service;
// `@capstan/TARGET` the native files of one platform (default: the targets that native/prebuild.js has built).
'use strict';

const { execFileSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const { HASH_FILE, hashSources } = require('../native/sources');

const root = path.dirname(__dirname);
const out = path.join(root, 'build', 'packages');
const prebuilt = path.join(root, 'build', 'prebuilt');
const manifest = JSON.parse(fs.readFileSync(path.join(root, 'package.json'), 'utf8'));
const { version } = manifest;

/** Targets of the platform packages: fields of package.json by which npm installs only the right one. */
const TARGETS = {
  'linux-x64-gnu': { os: ['linux'], cpu: ['x64'], libc: ['glibc'] },
  'linux-arm64-gnu': { os: ['linux'], cpu: ['arm64'], libc: ['glibc'] },
};
const SHARED_FIELDS = ['version', 'license', 'engines'];
const PLATFORM = path.join('server', 'platform');

const pick = (fields) => Object.fromEntries(fields.map((field) => [field, manifest[field]]));
const dependenciesOf = (names) => Object.fromEntries(names.map((name) => [name, manifest.dependencies[name]]));

function packCapstan() {
  const folder = begin('capstan');
  copy(path.join(root, 'dist'), path.join(folder, 'dist'), (name) => !name.startsWith(PLATFORM) && name !== '.built');
  // Leaves out the training programs and their data.
  copy(
    path.join(root, 'models', 'demo'),
    path.join(folder, 'models', 'demo'),
    (name) => !/\.(py|ts|jsonl)$|^__/.test(name),
  );
  packLibsql(path.join(folder, 'dist', 'libsql'));
  const exports = withoutTypes(manifest.exports, ['./internal', './internal/cli']);
  keepReachableTypes(folder, exports);
  const { otpauth: _otpauth, 'openid-client': _openidClient, ...dependencies } = manifest.dependencies;
  write(folder, {
    name: 'capstan',
    description: manifest.description,
    ...pick([...SHARED_FIELDS, 'main', 'types', 'bin']),
    exports,
    imports: { '#service': '@capstan/service', '#libsql': './dist/libsql/index.js' },
    dependencies,
    optionalDependencies: Object.fromEntries(Object.keys(TARGETS).map((target) => [`@capstan/${target}`, version])),
    peerDependencies: { '@capstan/service': version, 'uWebSockets.js': '*', ...manifest.peerDependencies },
    peerDependenciesMeta: {
      '@capstan/service': { optional: true },
      'uWebSockets.js': { optional: true },
      ...manifest.peerDependenciesMeta,
    },
  });
  return folder;
}

/** Only `@capstan/service` imports these entries, when it runs. */
function withoutTypes(exports, names) {
  return { ...exports, ...Object.fromEntries(names.map((name) => [name, exports[name].default])) };
}

/** Removes the declaration files that the types of no entry refer to: most of those of the server. */
function keepReachableTypes(folder, exports) {
  const reached = new Set();
  const visit = (file) => {
    if (reached.has(file)) return;
    reached.add(file);
    for (const [, name] of fs.readFileSync(file, 'utf8').matchAll(/(?:from |import\()['"](\.[^'"]*)['"]/g)) {
      const target = path.resolve(path.dirname(file), name);
      const found = [
        `${target}.d.ts`,
        path.join(target, 'index.d.ts'),
        target.replace(/\.js$/, '.d.ts'),
        target.replace(/\.mjs$/, '.d.mts'),
      ].find((candidate) => /\.d\.m?ts$/.test(candidate) && fs.existsSync(candidate));
      if (found === undefined) throw new Error(`${file}: found no declarations of ${name}`);
      visit(found);
    }
  };
  for (const { import: ofImport, require: ofRequire } of Object.values(exports))
    for (const entry of [ofImport, ofRequire]) if (entry !== undefined) visit(path.join(folder, entry.types));
  for (const name of fs.readdirSync(path.join(folder, 'dist'), { recursive: true })) {
    const file = path.join(folder, 'dist', name);
    if (/\.d\.m?ts$/.test(name) && !reached.has(file)) fs.rmSync(file);
  }
}

/**
 * Copies the wrapper of libsql, which loads its binary from the platform package. As a dependency, npm would install the
 * binaries for both C libraries.
 */
function packLibsql(folder) {
  const from = path.dirname(require.resolve('libsql', { paths: [root] }));
  for (const name of ['auth.js', 'index.js', 'sqlite-error.js', 'LICENSE']) {
    copy(path.join(from, name), path.join(folder, name));
  }
  const file = path.join(folder, 'index.js');
  const [loaders, begin, end] = [
    /^const .*require\("(@neon-rs\/load|detect-libc)"\);\n/gm,
    'function requireNative() {',
    '\n}\n',
  ];
  const text = fs.readFileSync(file, 'utf8').replace(loaders, '');
  const at = text.indexOf(begin);
  const after = text.indexOf(end, at);
  if (at < 0 || after < 0 || /neon-rs|detect-libc/.test(text.slice(0, at))) {
    throw new Error('libsql/index.js: expected the function requireNative, as in 0.5.29');
  }
  const body = "\n  return require('../ts/platform-package').requireLibsql();";
  fs.writeFileSync(file, text.slice(0, at + begin.length) + body + text.slice(after));
}

function packService() {
  const folder = begin('service');
  copy(path.join(root, 'dist', PLATFORM), path.join(folder, 'dist'), (name) => !name.endsWith('.d.ts'));
  write(folder, {
    name: '@capstan/service',
    description: 'The deployment service of Capstan: versions, keys, a gateway and a web console',
    ...pick(SHARED_FIELDS),
    main: 'dist/index.js',
    exports: { '.': './dist/index.js', './package.json': './package.json' },
    dependencies: dependenciesOf(['commander', 'kysely', 'openid-client', 'otpauth', 'prom-client', 'typebox']),
    peerDependencies: { capstan: version },
  });
  return folder;
}

function packPlatform(target) {
  const folder = begin(target);
  copy(path.join(prebuilt, target), folder, (name) => name !== HASH_FILE);
  write(folder, {
    name: `@capstan/${target}`,
    description: `The native files of Capstan for ${target}`,
    ...pick(SHARED_FIELDS),
    ...TARGETS[target],
  });
  return folder;
}

function begin(name) {
  const folder = path.join(out, name);
  fs.rmSync(folder, { recursive: true, force: true });
  fs.mkdirSync(folder, { recursive: true });
  fs.copyFileSync(path.join(root, 'LICENSE'), path.join(folder, 'LICENSE'));
  if (name === 'capstan') {
    for (const file of ['README.md', 'THIRD-PARTY.md']) fs.copyFileSync(path.join(root, file), path.join(folder, file));
  }
  return folder;
}

/** Copies the files and folders for which `isWanted` holds. It gets their path relative to `from`. */
function copy(from, to, isWanted = () => true) {
  fs.cpSync(from, to, { recursive: true, filter: (source) => isWanted(path.relative(from, source)) });
}

/** `preferUnplugged`: Yarn must not leave the model and the native files in an archive. */
function write(folder, fields) {
  const text = JSON.stringify({ ...fields, type: 'commonjs', preferUnplugged: true }, null, 2);
  fs.writeFileSync(path.join(folder, 'package.json'), `${text}\n`);
}

/** Whether native/prebuild.js has built a platform from the current sources. */
function isBuilt(target) {
  const file = path.join(prebuilt, target, HASH_FILE);
  return fs.existsSync(file) && fs.readFileSync(file, 'utf8') === hashSources(version);
}

function main() {
  const args = process.argv.slice(2);
  const named = args.filter((arg, i) => args[i - 1] === '--target');
  for (const target of named) {
    if (!(target in TARGETS)) throw new Error(`--target: expected ${Object.keys(TARGETS).join(' or ')}, got ${target}`);
    if (!isBuilt(target)) {
      throw new Error(
        `${target} is not built from the current sources. Run: node native/prebuild.js --target ${target}`,
      );
    }
  }
  const targets = named.length > 0 ? named : Object.keys(TARGETS).filter(isBuilt);
  for (const target of Object.keys(TARGETS).filter((name) => !targets.includes(name))) {
    console.log(`without ${target}, which is not built from the current sources`);
  }
  execFileSync(process.execPath, [path.join(__dirname, 'build.js')], { stdio: 'inherit' });
  fs.rmSync(out, { recursive: true, force: true });
  const folders = [packCapstan(), packService(), ...targets.map(packPlatform)];
  for (const folder of folders) {
    const [{ filename, size, unpackedSize }] = JSON.parse(
      execFileSync('npm', ['pack', '--json', '--ignore-scripts', '--pack-destination', out], {
        cwd: folder,
        encoding: 'utf8',
        stdio: ['ignore', 'pipe', 'inherit'],
      }),
    );
    const megabytes = (bytes) => (bytes / 1e6).toFixed(1).padStart(6);
    console.log(`${megabytes(size)} MB packed ${megabytes(unpackedSize)} MB unpacked  build/packages/${filename}`);
  }
}

try {
  main();
} catch (error) {
  console.error(`pack: ${error.message}`);
  process.exitCode = 1;
}
