// Compiles the TypeScript when a source is newer than the last compile, so that `npm start` after an edit runs what is there.
'use strict';

const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');

const root = path.dirname(__dirname);
const stampFile = path.join(root, 'dist', '.built');

function newestSourceMs() {
  const files = ['ts', 'server'].flatMap((folder) => fs.readdirSync(path.join(root, folder), { recursive: true }).map((name) => path.join(root, folder, name)));
  return Math.max(...[...files, path.join(root, 'tsconfig.json')].map((file) => fs.statSync(file).mtimeMs));
}

const started = Date.now();
if (!fs.existsSync(stampFile) || fs.statSync(stampFile).mtimeMs < newestSourceMs()) {
  const { status } = spawnSync(process.execPath, [require.resolve('typescript/bin/tsc'), '-p', root], { stdio: 'inherit' });
  if (status !== 0) process.exit(status ?? 1);
  fs.writeFileSync(stampFile, '');
  fs.utimesSync(stampFile, new Date(started), new Date(started));
}
