'use strict';

const { createHash } = require('node:crypto');
const fs = require('node:fs');
const path = require('node:path');

const root = path.dirname(__dirname);

/** File in a folder of build/prebuilt with the hash of the sources that it was built from. */
exports.HASH_FILE = 'sources.sha256';

/** Returns a hash of everything that native/prebuild.js compiles, and of the version. */
exports.sourceHash = function sourceHash() {
  const hash = createHash('sha256').update(require('../package.json').version);
  const names = fs.readdirSync(path.join(root, 'native'), { recursive: true }).map((name) => path.join('native', name));
  for (const name of ['binding.gyp', ...names.sort()]) {
    const file = path.join(root, name);
    if (fs.statSync(file).isFile()) hash.update(`\0${name}\0`).update(fs.readFileSync(file));
  }
  return hash.digest('hex');
};
