'use strict';

const { bundleModules } = require('./bundle-modules');
const { makeRunFolders } = require('./run-folders');

/** Jest's `globalSetup`. */
module.exports = async () => {
  makeRunFolders();
  await bundleModules();
};
