'use strict';

const { createHash } = require('node:crypto');
const fs = require('node:fs');
const path = require('node:path');

const root = path.dirname(__dirname);

/** File in a folder of build/prebuilt with the hash of the sources that it was built from. */
exports.HASH_FILE = 'sources.sha256';

/** Returns the paths of everything that a build of the addon reads. */
exports.listSources = function listSources() {
  const entries = fs.readdirSync(path.join(root, 'native'), { recursive: true, withFileTypes: true });
  const files = entries
    .filter((entry) => entry.isFile())
    .map((entry) => path.join(entry.parentPath ?? entry.path, entry.name));
  return [...files, path.join(root, 'binding.gyp')].sort();
};

/** Returns a hash of the sources and of `settings`: the compiler, its flags and the like. */
exports.hashSources = function hashSources(...settings) {
  const hash = createHash('sha256').update(settings.join('\0'));
  for (const file of exports.listSources())
    hash.update(`\0${path.relative(root, file)}\0`).update(fs.readFileSync(file));
  return hash.digest('hex');
};
