'use strict';

const { bundleTypebox } = require('./bundle-typebox');
const { makeRunFolders } = require('./run-folders');

/** Jest's `globalSetup`. */
module.exports = async () => {
  makeRunFolders();
  await bundleTypebox();
};
