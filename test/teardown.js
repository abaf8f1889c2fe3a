'use strict';

const { removeRunFolders } = require('./run-folders');

/** Jest's `globalTeardown`. */
module.exports = () => removeRunFolders();
