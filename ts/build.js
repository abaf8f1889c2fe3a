// Compiles the TypeScript when a source is newer than the last compile, so that `npm start` after an edit runs what is there; the console likewise, by vite.
// What sources that are gone have left goes too: an old `name.js` would be found before a new `name/index.js`.
'use strict';

const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');

const root = path.dirname(__dirname);
const FOLDERS = ['ts', 'server'];
const stampFile = path.join(root, 'dist', '.built');
const consoleFolder = path.join(root, 'server', 'console');
const consolePage = path.join(root, 'dist', 'server', 'console', 'index.html');

/** A folder and all below it: where a file was removed, its folder is newer. */
function below(folder) {
  return fs.existsSync(folder)
    ? [folder, ...fs.readdirSync(folder, { recursive: true }).map((name) => path.join(folder, name))]
    : [];
}

/** The console is for browsers: the compile of the server passes it by. */
function isOfConsole(file) {
  return file.startsWith(consoleFolder + path.sep) || file.startsWith(path.dirname(consolePage) + path.sep);
}

function newestSourceMs() {
  const files = FOLDERS.flatMap((folder) => below(path.join(root, folder))).filter((file) => !isOfConsole(file));
  return Math.max(...[...files, path.join(root, 'tsconfig.json')].map((file) => fs.statSync(file).mtimeMs));
}

/** A compile writes every output anew. */
function removeOlderThan(timeMs) {
  for (const file of FOLDERS.flatMap((folder) => below(path.join(root, 'dist', folder)))) {
    if (isOfConsole(file)) continue;
    const stat = fs.statSync(file);
    if (stat.isFile() && stat.mtimeMs < timeMs) fs.rmSync(file);
  }
}

const started = Date.now();
if (!fs.existsSync(stampFile) || fs.statSync(stampFile).mtimeMs < newestSourceMs()) {
  const { status } = spawnSync(process.execPath, [require.resolve('typescript/bin/tsc'), '-p', root], {
    stdio: 'inherit',
  });
  if (status !== 0) process.exit(status ?? 1);
  removeOlderThan(started);
  fs.writeFileSync(stampFile, '');
  fs.utimesSync(stampFile, new Date(started), new Date(started));
}

/** Without its tool, as in a folder that was installed before it was needed, the server is built all the same and says at the console's addresses what is missing. */
function buildConsole() {
  if (!fs.existsSync(path.join(consoleFolder, 'index.html'))) return 0;
  const newestMs = Math.max(...below(consoleFolder).map((file) => fs.statSync(file).mtimeMs));
  if (fs.existsSync(consolePage) && fs.statSync(consolePage).mtimeMs >= newestMs) return 0;
  const vite = path.join(root, 'node_modules', 'vite', 'bin', 'vite.js');
  if (!fs.existsSync(vite)) {
    process.stderr.write('capstan: the console was not built, because vite is not installed: run npm ci\n');
    return 0;
  }
  return spawnSync(process.execPath, [vite, 'build', consoleFolder], { stdio: 'inherit' }).status ?? 1;
}

process.exitCode = buildConsole();
