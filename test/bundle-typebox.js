// Bundles the library typebox for the tests. Jest would otherwise load its 700 modules for every test file.
'use strict';

const fs = require('node:fs');
const path = require('node:path');

const root = path.dirname(__dirname);
const { version } = JSON.parse(fs.readFileSync(path.join(root, 'node_modules/typebox/package.json'), 'utf8'));
const folder = path.join(root, 'build', `typebox-${version}`);

module.exports.bundleTypebox = async () => {
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
        input: { typebox: require.resolve('typebox'), schema: require.resolve('typebox/schema') },
        output: { format: 'cjs', exports: 'named', entryFileNames: '[name].js' },
      },
    },
  });
  fs.renameSync(unfinished, folder);
};
module.exports.folder = folder;
