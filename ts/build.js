// Compiles the TypeScript, and builds the console with vite, if a source is newer than the last build.
// Removes the outputs of deleted sources: an old `name.js` would be loaded instead of a new `name/index.js`.
'use strict';

const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');

const root = path.dirname(__dirname);
const FOLDERS = ['ts', 'server'];
const stampFile = path.join(root, 'dist', '.built');
const consoleFolder = path.join(root, 'server', 'platform', 'console');
const consolePage = path.join(root, 'dist', 'server', 'platform', 'console', 'index.html');

/** Lists a folder and everything below it, folders included: removing a file updates the time of its folder. */
function listTree(folder) {
  return fs.existsSync(folder)
    ? [folder, ...fs.readdirSync(folder, { recursive: true }).map((name) => path.join(folder, name))]
    : [];
}

/** The console is built for browsers by vite, not by tsc. */
function isConsoleFile(file) {
  return file.startsWith(consoleFolder + path.sep) || file.startsWith(path.dirname(consolePage) + path.sep);
}

function newestSourceMs() {
  const files = FOLDERS.flatMap((folder) => listTree(path.join(root, folder))).filter((file) => !isConsoleFile(file));
  return Math.max(...[...files, path.join(root, 'tsconfig.json')].map((file) => fs.statSync(file).mtimeMs));
}

/** Removes outputs that the last compile did not write. */
function removeOlderThan(timeMs) {
  for (const file of FOLDERS.flatMap((folder) => listTree(path.join(root, 'dist', folder)))) {
    if (isConsoleFile(file)) continue;
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
  copyPlotLibrary();
  fs.writeFileSync(stampFile, '');
  fs.utimesSync(stampFile, new Date(started), new Date(started));
}

/** The page of `capstan bench --report` contains the library of its plots. Without it the other files still work. */
function copyPlotLibrary() {
  const from = path.join(root, 'node_modules', 'uplot', 'dist');
  const to = path.join(root, 'dist', 'server', 'bench');
  if (!fs.existsSync(from) || !fs.existsSync(to)) return;
  for (const [file, name] of [
    ['uPlot.iife.min.js', 'uplot.js'],
    ['uPlot.min.css', 'uplot.css'],
  ])
    fs.copyFileSync(path.join(from, file), path.join(to, name));
}

/** Without vite (a production install) the build still succeeds; the server explains the missing console at its URLs. */
function buildConsole() {
  if (!fs.existsSync(path.join(consoleFolder, 'index.html'))) return 0;
  const newestMs = Math.max(...listTree(consoleFolder).map((file) => fs.statSync(file).mtimeMs));
  if (fs.existsSync(consolePage) && fs.statSync(consolePage).mtimeMs >= newestMs) return 0;
  const vite = path.join(root, 'node_modules', 'vite', 'bin', 'vite.js');
  if (!fs.existsSync(vite)) {
    process.stderr.write(
      'capstan: the console was not built because vite is not installed. Run npm ci to install it.\n',
    );
    return 0;
  }
  return spawnSync(process.execPath, [vite, 'build', consoleFolder], { stdio: 'inherit' }).status ?? 1;
}

process.exitCode = buildConsole();
