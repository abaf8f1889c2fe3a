// Builds the native files of a platform package with zig, for old Linux distributions: build/prebuilt/TARGET/.
//
//     node native/prebuild.js [--target linux-x64-gnu|linux-arm64-gnu]
//
// Needs python3 with the package `ziglang` of PyPI; ZIG names another zig. Static libc++, glibc 2.28 or newer.
'use strict';

const { execFileSync, spawnSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const { headersPrefix } = require('./node-headers');
const { HASH_FILE, hashSources } = require('./sources');

const { devDependencies, version } = require('../package.json');

const root = path.dirname(__dirname);
const GLIBC = '2.28';
const TARGETS = {
  'linux-x64-gnu': { arch: 'x64', zig: `x86_64-linux-gnu.${GLIBC}` },
  'linux-arm64-gnu': { arch: 'arm64', zig: `aarch64-linux-gnu.${GLIBC}` },
};

function main() {
  const at = process.argv.indexOf('--target');
  const target = at < 0 ? `linux-${process.arch}-gnu` : process.argv[at + 1];
  if (!(target in TARGETS)) {
    throw new Error(`--target: expected ${Object.keys(TARGETS).join(' or ')}, got ${target ?? 'nothing'}`);
  }
  const { arch, zig } = TARGETS[target];
  const work = path.join(root, 'build', 'prebuild', target);
  const out = path.join(root, 'build', 'prebuilt', target);
  fs.rmSync(out, { recursive: true, force: true });
  prepareTree(work);
  build(work, arch, zig);
  fs.mkdirSync(out, { recursive: true });
  fs.cpSync(path.join(work, 'prebuilds'), path.join(out, 'prebuilds'), { recursive: true });
  const helper = path.join(out, 'prebuilds', `linux-${arch}`, 'capstan_sandbox');
  fs.copyFileSync(path.join(work, 'build', 'Release', 'capstan_sandbox'), helper);
  copyLibraries(target, out);
  fs.writeFileSync(path.join(out, HASH_FILE), hashSources(version));
  console.log(`build/prebuilt/${target}`);
}

/** Makes a separate tree, so that the build folder of the source tree does not change. */
function prepareTree(work) {
  fs.mkdirSync(work, { recursive: true });
  for (const name of ['native', 'binding.gyp', 'package.json']) {
    const link = path.join(work, name);
    if (!fs.existsSync(link)) fs.symlinkSync(path.join(root, name), link);
  }
}

function build(work, arch, zigTarget) {
  const zig = process.env.ZIG ?? 'python3 -m ziglang';
  if (spawnSync('sh', ['-c', `${zig} version`], { stdio: 'ignore' }).status !== 0) {
    throw new Error(`${zig} does not run. Install it with: pip install ziglang==0.17.1, or set ZIG`);
  }
  const prefix = headersPrefix();
  const env = {
    ...process.env,
    CC: `${zig} cc -target ${zigTarget}`,
    CXX: `${zig} c++ -target ${zigTarget}`,
    AR: `${zig} ar`,
    // Without symbols of functions and sections that nothing uses.
    LDFLAGS: '-s -Wl,--gc-sections',
    JOBS: 'max',
    // zig reads the features of `-march` as those of `-mcpu`, and knows no architecture by number.
    GYP_DEFINES: 'neondot_flags=-mcpu=generic+dotprod neonbf16_flags=-mcpu=generic+dotprod+bf16+i8mm',
    // Without headers, node-gyp downloads an archive.
    ...(prefix !== undefined && { npm_config_nodedir: prefix }),
  };
  const prebuildify = require.resolve('prebuildify/bin.js', { paths: [root] });
  console.log(`compiling for ${zigTarget}, about two minutes on two cores`);
  const args = [
    '--napi',
    '--quiet',
    '--tag-libc',
    '--name',
    'capstan',
    '--arch',
    arch,
    '--target',
    process.versions.node,
  ];
  execFileSync(process.execPath, [prebuildify, ...args], { cwd: work, env, stdio: ['ignore', 'inherit', 'inherit'] });
}

/** Copies the libraries of other projects for one platform, from packages that hold or install several. */
function copyLibraries(target, out) {
  const folderOf = (name) => path.dirname(require.resolve(name, { paths: [root] }));
  for (const [name, file] of [
    ['tokenizers', path.join(folderOf('tokenizers'), `tokenizers.${target}.node`)],
    ['libsql', path.join(path.dirname(folderOf('libsql')), '@libsql', target, 'index.node')],
  ]) {
    if (!fs.existsSync(file))
      throw new Error(
        `expected ${file}, found none. Install it: npm install --no-save --force @libsql/${target}@${devDependencies.libsql}`,
      );
    fs.copyFileSync(file, path.join(out, `${name}.node`));
    fs.copyFileSync(path.join(folderOf(name), 'LICENSE'), path.join(out, `LICENSE.${name}`));
  }
}

try {
  main();
} catch (error) {
  console.error(`prebuild: ${error.message}`);
  process.exitCode = 1;
}
