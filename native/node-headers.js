'use strict';

const fs = require('node:fs');
const path = require('node:path');

/** Returns the prefix of Node's headers, which are usually installed next to its binary, or undefined. */
exports.headersPrefix = function headersPrefix() {
  const prefix = path.dirname(path.dirname(fs.realpathSync(process.execPath)));
  return fs.existsSync(path.join(prefix, 'include', 'node', 'node_api.h')) ? prefix : undefined;
};
