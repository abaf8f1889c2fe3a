// Compiles the TypeScript when a source is newer than the last compile, so that `npm start` after an edit runs what is there.
// What sources that are gone have left goes too: an old `name.js` would be found before a new `name/index.js`.
'use strict';

const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');

const root = path.dirname(__dirname);
const FOLDERS = ['ts', 'server'];
const stampFile = path.join(root, 'dist', '.built');

/** A folder and all below it: where a file was removed, its folder is newer. */
function below(folder) {
  return fs.existsSync(folder) ? [folder, ...fs.readdirSync(folder, { recursive: true }).map((name) => path.join(folder, name))] : [];
}

function newestSourceMs() {
  const files = FOLDERS.flatMap((folder) => below(path.join(root, folder)));
  return Math.max(...[...files, path.join(root, 'tsconfig.json')].map((file) => fs.statSync(file).mtimeMs));
}

/** A compile writes every output anew. */
function removeOlderThan(timeMs) {
  for (const file of FOLDERS.flatMap((folder) => below(path.join(root, 'dist', folder)))) {
    const stat = fs.statSync(file);
    if (stat.isFile() && stat.mtimeMs < timeMs) fs.rmSync(file);
  }
}

const started = Date.now();
if (!fs.existsSync(stampFile) || fs.statSync(stampFile).mtimeMs < newestSourceMs()) {
  const { status } = spawnSync(process.execPath, [require.resolve('typescript/bin/tsc'), '-p', root], { stdio: 'inherit' });
  if (status !== 0) process.exit(status ?? 1);
  removeOlderThan(started);
  fs.writeFileSync(stampFile, '');
  fs.utimesSync(stampFile, new Date(started), new Date(started));
}
