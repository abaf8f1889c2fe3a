// Each run of Jest has two temporary folders: TMPDIR, and CAPSTAN_TEST_DATABASES in memory, so that commits do not wait
// for a disk. The next run removes those of a run that was killed.
'use strict';

const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');

const PREFIX = 'capstan-tests-';
const roots = [os.tmpdir(), ...(fs.existsSync('/dev/shm') ? ['/dev/shm'] : [])];
const remove = (folder) => fs.rmSync(folder, { recursive: true, force: true });

function isRunning(pid) {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return error.code === 'EPERM';
  }
}

function removeOld(root) {
  for (const name of fs.readdirSync(root)) {
    if (name.startsWith(PREFIX) && !isRunning(Number(name.slice(PREFIX.length)))) remove(path.join(root, name));
  }
}

function make(root) {
  const folder = path.join(root, PREFIX + process.pid);
  remove(folder);
  fs.mkdirSync(folder);
  // As open as /tmp: some tests run programs as another user.
  fs.chmodSync(folder, 0o1777);
  return folder;
}

let folders = [];

/** Call it before Jest starts its workers: they inherit the variables. */
module.exports.makeRunFolders = () => {
  roots.forEach(removeOld);
  folders = roots.map(make);
  process.env.TMPDIR = folders[0];
  process.env.CAPSTAN_TEST_DATABASES = folders.at(-1);
};

module.exports.removeRunFolders = () => folders.splice(0).forEach(remove);
