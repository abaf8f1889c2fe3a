// The main script of the single executable. It unpacks Capstan to a private folder, checks it, and runs the command from
// there: native files, worker threads and programs that Capstan starts need files.
//
// The service starts replicas as `node FILE ARGS…` and its probe as `node -e CODE`, with the path of this executable in
// place of `node`. In a sandbox the unpacked files are visible, but the folder above them is not.
'use strict';

const crypto = require('node:crypto');
const fs = require('node:fs');
const { createRequire } = require('node:module');
const os = require('node:os');
const path = require('node:path');
const sea = require('node:sea');
const zlib = require('node:zlib');

const OTHERS_WRITE = 0o022;
const STICKY = 0o1000;
const VARIABLE = 'CAPSTAN_UNPACK_DIR';
const FOLDER = 'executable';

const uid = process.getuid();

/** Returns the folders that may hold the unpacked files, the best one first. */
function candidates() {
  const { [VARIABLE]: chosen, CACHE_DIRECTORY: ofSystemd, XDG_CACHE_HOME: ofUser, HOME: home } = process.env;
  if (chosen) return [path.resolve(chosen, FOLDER)];
  return [
    ...(ofSystemd ? [path.join(ofSystemd.split(':')[0], FOLDER)] : []),
    ...(ofUser && path.isAbsolute(ofUser) ? [path.join(ofUser, 'capstan', FOLDER)] : []),
    ...(home && path.isAbsolute(home) ? [path.join(home, '.cache', 'capstan', FOLDER)] : []),
    path.join(os.tmpdir(), `capstan-${FOLDER}-${uid}`),
  ];
}

/**
 * Makes a folder that only this user may enter, below folders in which no other user may rename it. Returns its path
 * without links.
 * @throws Error that says what is wrong with it
 */
function claim(folder) {
  fs.mkdirSync(folder, { recursive: true, mode: 0o700 });
  const real = fs.realpathSync(folder);
  const { uid: owner, mode } = fs.statSync(real);
  if (owner !== uid) throw new Error(`it belongs to the user ${owner}`);
  if ((mode & OTHERS_WRITE) !== 0) throw new Error('other users may write to it');
  fs.accessSync(real, fs.constants.W_OK);
  // Inside a user namespace, root of the machine has another number.
  const trusted = [uid, 0, fs.statSync('/').uid];
  for (let parent = path.dirname(real); ; parent = path.dirname(parent)) {
    const stat = fs.statSync(parent);
    if (!trusted.includes(stat.uid)) throw new Error(`${parent} belongs to the user ${stat.uid}`);
    if ((stat.mode & OTHERS_WRITE) !== 0 && (stat.mode & STICKY) === 0) {
      throw new Error(`other users may write to ${parent}`);
    }
    if (parent === path.dirname(parent)) return real;
  }
}

/** Returns the first candidate that is safe. */
function cacheFolder() {
  const problems = [];
  for (const folder of candidates()) {
    try {
      return claim(folder);
    } catch (error) {
      problems.push(`  ${folder}: ${error.message}`);
    }
  }
  throw new Error(
    `cannot unpack Capstan: expected a folder that only user ${uid} can change, found none.\n` +
      `${problems.join('\n')}\nNext: set ${VARIABLE} to such a folder.`,
  );
}

function isIntact(tree, files) {
  return files.every(({ name, size, sha256 }) => {
    try {
      const bytes = fs.readFileSync(path.join(tree, name));
      return bytes.length === size && crypto.hash('sha256', bytes) === sha256;
    } catch {
      return false;
    }
  });
}

/** Writes all files to a new folder, then gives it its name, so that no other process sees a part of them. */
function unpack(cache, tree, files) {
  const bytes = zlib.zstdDecompressSync(new Uint8Array(sea.getRawAsset('files')));
  const fresh = fs.mkdtempSync(path.join(cache, 'new-'));
  try {
    let offset = 0;
    for (const { name, size, isProgram } of files) {
      const file = path.join(fresh, name);
      fs.mkdirSync(path.dirname(file), { recursive: true });
      fs.writeFileSync(file, bytes.subarray(offset, offset + size));
      // Replicas of a service that runs as root have other users.
      fs.chmodSync(file, isProgram ? 0o755 : 0o644);
      offset += size;
    }
    for (const entry of fs.readdirSync(fresh, { recursive: true, withFileTypes: true })) {
      if (entry.isDirectory()) fs.chmodSync(path.join(entry.parentPath, entry.name), 0o755);
    }
    fs.chmodSync(fresh, 0o755);
    if (fs.existsSync(tree)) {
      // Programs that run keep the files that they have open.
      const old = fs.mkdtempSync(path.join(cache, 'old-'));
      fs.renameSync(tree, path.join(old, 'tree'));
      fs.rmSync(old, { recursive: true, force: true });
    }
    fs.renameSync(fresh, tree);
  } finally {
    fs.rmSync(fresh, { recursive: true, force: true });
  }
}

/** Returns the folder with the unpacked files of this executable. */
function unpackedTree() {
  const { id, files } = JSON.parse(sea.getAsset('list', 'utf8'));
  const cache = cacheFolder();
  const tree = path.join(cache, id);
  if (isIntact(tree, files)) return tree;
  try {
    unpack(cache, tree, files);
  } catch (error) {
    // Another process has unpacked the same files at the same time.
    if (!isIntact(tree, files)) throw new Error(`cannot unpack Capstan to ${tree}: ${error.message}`, { cause: error });
  }
  return tree;
}

function main() {
  const [, , first, second] = process.argv;
  if (first === '-e') {
    const require = createRequire(path.join(process.cwd(), 'eval.js'));
    return void new Function('require', second)(require);
  }
  if (first !== undefined && path.isAbsolute(first)) {
    process.argv.splice(1, 1);
    return void createRequire(first)(first);
  }
  const file = path.join(unpackedTree(), 'node_modules', 'capstan', 'dist', 'server', 'main.js');
  process.argv[1] = file;
  createRequire(file)(file);
}

try {
  main();
} catch (error) {
  process.stderr.write(`error: ${error.message}\n`);
  process.exitCode = 1;
}
