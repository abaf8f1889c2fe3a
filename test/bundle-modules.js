// Bundles modules for the tests. Jest would otherwise load the 700 modules of typebox for every test file, and cannot
// load openid-client, which has ECMAScript modules alone.
'use strict';

const fs = require('node:fs');
const path = require('node:path');

const root = path.dirname(__dirname);
const versions = ['typebox', 'openid-client'].map((name) => {
  const file = path.join(root, 'node_modules', name, 'package.json');
  return `${name}-${JSON.parse(fs.readFileSync(file, 'utf8')).version}`;
});
const folder = path.join(root, 'build', versions.join('-'));

module.exports.bundleModules = async () => {
  if (fs.existsSync(folder)) return;
  const { build } = await import('vite');
  const unfinished = `${folder}.${process.pid}`;
  await build({
    configFile: false,
    logLevel: 'warn',
    publicDir: false,
    ssr: { noExternal: true },
    build: {
      ssr: true,
      outDir: unfinished,
      rolldownOptions: {
        input: {
          typebox: require.resolve('typebox'),
          schema: require.resolve('typebox/schema'),
          'openid-client': require.resolve('openid-client'),
        },
        output: { format: 'cjs', exports: 'named', entryFileNames: '[name].js' },
      },
    },
  });
  fs.renameSync(unfinished, folder);
};
module.exports.folder = folder;
