// Builds build/binary/capstan: one executable with Node.js, the packages and everything that they need. Run:
//
//     npm run build:binary [-- --node FILE]
//
// --node: the Node.js to use, 22.15 or newer and without a shared libnode (default: the one that runs this script).
// Needs the platform package (npm run packages) for the processor of this machine.
'use strict';

const { execFileSync } = require('node:child_process');
const crypto = require('node:crypto');
const fs = require('node:fs');
const path = require('node:path');
const zlib = require('node:zlib');
const { productionPackages } = require('./dependencies');

const root = path.dirname(__dirname);
const packages = path.join(root, 'build', 'packages');
const out = path.join(root, 'build', 'binary');
const FUSE = 'NODE_SEA_FUSE_fce680ab2cc467b6e072b8b5df1996b2';
const LEVEL = 19;
/** Files of packages that no program reads. */
const UNUSED = /\.(d\.[cm]?ts|[cm]?ts|map|md|markdown|flow)$/i;
const LICENCE = /(^|\/)(licen[cs]e|copying|notice)[^/]*$/i;

/** Fails unless `node` can be the executable. */
function checkNode(node) {
  const info = JSON.parse(
    execFileSync(
      node,
      [
        '-p',
        'JSON.stringify({ version: process.versions.node, arch: process.arch, isShared: process.config.variables.node_shared, hasZstd: "zstdCompressSync" in require("zlib") })',
      ],
      { encoding: 'utf8' },
    ),
  );
  if (!info.hasZstd) throw new Error(`--node: expected Node.js 22.15 or newer, got ${info.version} (${node})`);
  if (info.isShared) {
    throw new Error(`--node: expected a Node.js in one file, got ${node}, which needs libnode. Take one of nodejs.org`);
  }
  if (info.arch !== process.arch) throw new Error(`--node: expected the processor ${process.arch}, got ${info.arch}`);
  return info;
}

/** Puts the packages and their dependencies into a folder `node_modules`, as npm installs them. */
function layOut(tree, target) {
  const modules = path.join(tree, 'node_modules');
  for (const [folder, name] of [
    ['capstan', 'capstan'],
    ['service', '@capstan/service'],
    [target, `@capstan/${target}`],
  ]) {
    const from = path.join(packages, folder);
    if (!fs.existsSync(from)) throw new Error(`expected ${from}, found none. Run: npm run packages`);
    copy(from, path.join(modules, name));
  }
  for (const { folder } of productionPackages()) copy(path.join(root, folder), path.join(tree, folder));
}

/** Copies the licences of Node.js and its parts, from where its archive or Debian's package has them. */
function copyLicences(tree, node) {
  for (const name of ['LICENSE', 'THIRD-PARTY.md']) fs.copyFileSync(path.join(root, name), path.join(tree, name));
  const prefix = path.dirname(path.dirname(fs.realpathSync(node)));
  const places = ['LICENSE', 'share/doc/nodejs/LICENSE', 'share/doc/nodejs/copyright'];
  const file = places.map((name) => path.join(prefix, name)).find((name) => fs.existsSync(name));
  if (file === undefined) {
    throw new Error(`--node: expected the licences of Node.js in ${prefix} (${places.join(', ')}), found none`);
  }
  fs.copyFileSync(file, path.join(tree, 'LICENSE.node'));
}

function copy(from, to) {
  fs.cpSync(from, to, {
    recursive: true,
    filter: (source) => {
      const name = path.relative(from, source);
      if (name === 'node_modules' || name.includes('node_modules/')) return false;
      return fs.statSync(source).isDirectory() || LICENCE.test(name) || !UNUSED.test(name);
    },
  });
}

/** Lists the files of a folder, sorted by name, with what the executable checks. */
function list(tree) {
  return fs
    .readdirSync(tree, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => path.join(entry.parentPath, entry.name))
    .sort()
    .map((file) => {
      const bytes = fs.readFileSync(file);
      return {
        name: path.relative(tree, file),
        size: bytes.length,
        sha256: crypto.createHash('sha256').update(bytes).digest('hex'),
        isProgram: (fs.statSync(file).mode & 0o100) !== 0,
      };
    });
}

function main() {
  const at = process.argv.indexOf('--node');
  const node = at < 0 ? process.execPath : process.argv[at + 1];
  if (node === undefined) throw new Error('--node: expected the path of a Node.js, got nothing');
  const { version } = checkNode(node);
  if (!('zstdCompressSync' in zlib)) {
    return void execFileSync(node, process.argv.slice(1), { stdio: 'inherit' });
  }
  fs.rmSync(out, { recursive: true, force: true });
  const tree = path.join(out, 'tree');
  fs.mkdirSync(tree, { recursive: true });
  layOut(tree, `linux-${process.arch}-gnu`);
  copyLicences(tree, node);
  const files = list(tree);
  const text = JSON.stringify(files);
  const id = crypto.createHash('sha256').update(text).digest('hex').slice(0, 32);
  fs.writeFileSync(path.join(out, 'list.json'), JSON.stringify({ id, files }));
  const bytes = Buffer.concat(files.map(({ name }) => fs.readFileSync(path.join(tree, name))));
  const { ZSTD_c_compressionLevel, ZSTD_c_windowLog } = zlib.constants;
  const params = { [ZSTD_c_compressionLevel]: LEVEL, [ZSTD_c_windowLog]: 27 };
  const packed = zlib.zstdCompressSync(bytes, { params });
  fs.writeFileSync(path.join(out, 'files.zst'), packed);
  const config = path.join(out, 'sea.json');
  const blob = path.join(out, 'sea.blob');
  fs.writeFileSync(
    config,
    JSON.stringify({
      main: path.join(__dirname, 'executable.js'),
      output: blob,
      disableExperimentalSEAWarning: true,
      assets: { list: path.join(out, 'list.json'), files: path.join(out, 'files.zst') },
    }),
  );
  execFileSync(node, ['--experimental-sea-config', config], { stdio: 'pipe' });
  const executable = path.join(out, 'capstan');
  fs.copyFileSync(node, executable);
  fs.chmodSync(executable, 0o755);
  execFileSync('strip', [executable], { stdio: 'inherit' });
  const postject = require.resolve('postject/dist/cli.js', { paths: [root] });
  execFileSync(process.execPath, [postject, executable, 'NODE_SEA_BLOB', blob, '--sentinel-fuse', FUSE], {
    stdio: 'pipe',
  });
  for (const name of ['tree', 'list.json', 'files.zst', 'sea.json', 'sea.blob']) {
    fs.rmSync(path.join(out, name), { recursive: true, force: true });
  }
  const megabytes = (size) => `${(size / 1e6).toFixed(1)} MB`;
  console.log(
    `build/binary/capstan: ${megabytes(fs.statSync(executable).size)} with Node.js ${version}; ` +
      `${files.length} files, ${megabytes(bytes.length)}, packed ${megabytes(packed.length)}`,
  );
}

try {
  main();
} catch (error) {
  console.error(`build-binary: ${error.message}`);
  process.exitCode = 1;
}
