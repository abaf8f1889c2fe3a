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
const MAX_LINKS = 40;
const DAY_MS = 86_400_000;
/** Folders that were being written or removed when their process was killed. */
const LEFTOVER = /^(new|old)-\w{6}$/;
const LEFTOVER_AGE_MS = DAY_MS;
const TREE = /^[0-9a-f]{32}$/;
/** Processes set the time of their tree at their start and once a day. */
const UNUSED_AGE_MS = 30 * DAY_MS;

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

/** @throws Error if another user could replace an entry of the folder */
function checkParent(folder, trusted) {
  const { uid: owner, mode } = fs.lstatSync(folder);
  if (!trusted.includes(owner)) throw new Error(`${folder} belongs to the user ${owner}`);
  if ((mode & OTHERS_WRITE) !== 0 && (mode & STICKY) === 0) throw new Error(`other users may write to ${folder}`);
}

/** Returns undefined if the entry does not exist. */
function entryOf(file) {
  try {
    return fs.lstatSync(file);
  } catch (error) {
    if (error.code === 'ENOENT') return undefined;
    throw error;
  }
}

/**
 * Makes a folder that only this user may enter, below folders in which no other user may rename it. Each folder is
 * checked before something is made in it or a link in it is followed. Returns the path without links.
 * @throws Error that says what is wrong with it
 */
function claim(folder) {
  // Inside a user namespace, root of the machine has another number.
  const trusted = [uid, 0, fs.statSync('/').uid];
  let real = '/';
  let names = folder.split('/');
  let numLinks = 0;
  while (names.length > 0) {
    const name = names.shift();
    if (name === '' || name === '.') continue;
    if (name === '..') {
      real = path.dirname(real);
      continue;
    }
    checkParent(real, trusted);
    const next = path.join(real, name);
    const entry = entryOf(next);
    if (entry === undefined) {
      try {
        fs.mkdirSync(next, { mode: 0o700 });
      } catch (error) {
        // Another process has made it at the same time.
        if (error.code !== 'EEXIST') throw error;
      }
      names.unshift(name);
    } else if (entry.isSymbolicLink()) {
      if (!trusted.includes(entry.uid)) throw new Error(`the link ${next} belongs to the user ${entry.uid}`);
      if (++numLinks > MAX_LINKS) throw new Error(`${next} is one of more than ${MAX_LINKS} links`);
      const target = fs.readlinkSync(next);
      if (path.isAbsolute(target)) real = '/';
      names = [...target.split('/'), ...names];
    } else if (entry.isDirectory()) real = next;
    else throw new Error(`${next} is not a folder`);
  }
  const { uid: owner, mode } = fs.lstatSync(real);
  if (owner !== uid) throw new Error(`it belongs to the user ${owner}`);
  if ((mode & OTHERS_WRITE) !== 0) throw new Error('other users may write to it');
  fs.accessSync(real, fs.constants.W_OK);
  return real;
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

function isIntactFile(tree, { name, size, sha256 }) {
  try {
    const bytes = fs.readFileSync(path.join(tree, name));
    return bytes.length === size && crypto.hash('sha256', bytes) === sha256;
  } catch {
    return false;
  }
}

function isIntact(tree, files) {
  return files.every((file) => isIntactFile(tree, file));
}

/**
 * Writes all files to a new folder, then gives it its name, so that no other process sees a part of them. If the name
 * is taken, only the files that are missing or changed are replaced: processes may run from the others.
 */
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
    try {
      fs.renameSync(fresh, tree);
    } catch (error) {
      if (error.code !== 'ENOTEMPTY' && error.code !== 'EEXIST') throw error;
      repair(tree, files, fresh);
    }
  } finally {
    fs.rmSync(fresh, { recursive: true, force: true });
  }
}

/** Moves the files that a tree lacks from a fresh one. Programs that run keep the files that they have open. */
function repair(tree, files, fresh) {
  for (const file of files.filter((each) => !isIntactFile(tree, each))) {
    const target = path.join(tree, file.name);
    makeFolders(tree, path.dirname(file.name));
    if (entryOf(target)?.isDirectory()) fs.rmSync(target, { recursive: true });
    fs.renameSync(path.join(fresh, file.name), target);
  }
}

/** Makes the folders of a file within a tree. What is in their place is removed. */
function makeFolders(tree, name) {
  let folder = tree;
  for (const part of name.split('/')) {
    folder = path.join(folder, part);
    const entry = entryOf(folder);
    if (entry?.isDirectory()) continue;
    if (entry !== undefined) fs.unlinkSync(folder);
    fs.mkdirSync(folder, { recursive: true });
    fs.chmodSync(folder, 0o755);
  }
}

/** Shows other versions that the tree is in use. Fails silently: the tree may not exist. */
function touch(tree) {
  try {
    fs.utimesSync(tree, new Date(), new Date());
  } catch {}
}

/** Whether a process runs from the tree. Those of other containers are not visible: they touch their tree. */
function hasProcess(tree) {
  return fs
    .readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .some((pid) =>
      ['cmdline', 'maps'].some((name) => {
        try {
          return fs.readFileSync(`/proc/${pid}/${name}`).includes(`${tree}/`);
        } catch {
          return false;
        }
      }),
    );
}

/** Removes the trees of versions that were not used for long, and what killed processes have left. */
function removeUnused(cache, ownTree) {
  for (const name of fs.readdirSync(cache)) {
    const folder = path.join(cache, name);
    const maxAgeMs = LEFTOVER.test(name) ? LEFTOVER_AGE_MS : TREE.test(name) ? UNUSED_AGE_MS : Infinity;
    const isOld = (at) => Date.now() - fs.lstatSync(at).mtimeMs > maxAgeMs;
    try {
      if (folder === ownTree || !isOld(folder)) continue;
      if (LEFTOVER.test(name)) fs.rmSync(folder, { recursive: true, force: true });
      else if (!hasProcess(folder)) removeTree(cache, folder, isOld);
    } catch {
      // The next start tries again.
    }
  }
}

function removeTree(cache, tree, isOld) {
  const old = fs.mkdtempSync(path.join(cache, 'old-'));
  const moved = path.join(old, 'tree');
  fs.renameSync(tree, moved);
  // A start has just touched it.
  if (!isOld(moved)) fs.renameSync(moved, tree);
  fs.rmSync(old, { recursive: true, force: true });
}

/** Returns the folder with the unpacked files of this executable. */
function unpackedTree() {
  const { id, files } = JSON.parse(sea.getAsset('list', 'utf8'));
  const cache = cacheFolder();
  const tree = path.join(cache, id);
  // Before the check: from now on, no other version removes it.
  touch(tree);
  if (!isIntact(tree, files)) {
    try {
      unpack(cache, tree, files);
    } catch (error) {
      // Another process has unpacked the same files at the same time.
      if (!isIntact(tree, files))
        throw new Error(`cannot unpack Capstan to ${tree}: ${error.message}`, { cause: error });
    }
  }
  removeUnused(cache, tree);
  setInterval(() => touch(tree), DAY_MS).unref();
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
