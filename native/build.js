// Makes the native addon available: uses a prebuild that loads, or compiles the sources. Run by `npm install`.
// Plain Node without dependencies, except the locally installed node-gyp.
'use strict';

const { spawn, spawnSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const { headersPrefix } = require('./node-headers');
const { hashSources, listSources } = require('./sources');

const root = path.dirname(__dirname);
const releaseDir = path.join(root, 'build', 'Release');
const stampFile = path.join(releaseDir, 'source.sha256');
const logFile = path.join(root, 'build', 'build.log');

class BuildError extends Error {}

async function main() {
  const isForced = process.argv.includes('--force');
  const { CXX, CXXFLAGS, LDFLAGS } = process.env;
  const hash = hashSources(process.platform, process.arch, CXX, CXXFLAGS, LDFLAGS);
  if (!isForced && (loadsPrebuild() || isBuilt(hash))) return;
  requireTools();
  await compile(listSources().filter((file) => file.endsWith('.cpp')).length);
  fs.writeFileSync(stampFile, hash);
}

/** Whether build/Release was built from the current sources. */
function isBuilt(hash) {
  return (
    fs.existsSync(stampFile) &&
    fs.readFileSync(stampFile, 'utf8') === hash &&
    fs.readdirSync(releaseDir).some((name) => name.endsWith('.node'))
  );
}

/** Whether prebuilds/<platform>-<arch>/ has an addon that loads on this machine. A build folder takes precedence. */
function loadsPrebuild() {
  const dir = path.join(root, 'prebuilds', `${process.platform}-${process.arch}`);
  if (fs.existsSync(releaseDir) || !fs.existsSync(dir)) return false;
  try {
    require('node-gyp-build')(root);
    return true;
  } catch (error) {
    console.log(`capstan: compiling the addon, because the prebuilt one does not load (${firstLine(error)})`);
    return false;
  }
}

function requireTools() {
  const python = process.env.npm_config_python || process.env.PYTHON || 'python3';
  const tools = [
    [python, 'python3'],
    [process.env.CXX || 'g++', 'g++'],
    ['make', 'make'],
  ];
  const missing = tools.filter(([command]) => !runs(command)).map(([, name]) => name);
  if (missing.length > 0) {
    throw new BuildError(
      `${missing.join(', ')} not found: compiling the addon needs python3, make and g++ 12 or newer ` +
        `(Debian, Ubuntu: apt-get install -y python3 make g++), then run: npm run build:addon`,
    );
  }
}

function runs(command) {
  const [program, ...args] = command.split(' ');
  return spawnSync(program, [...args, '--version'], { stdio: 'ignore' }).status === 0;
}

async function compile(numFiles) {
  const started = Date.now();
  console.log(`capstan: compiling the native addon: ${numFiles} files, about two minutes on two cores`);
  fs.mkdirSync(path.dirname(logFile), { recursive: true });
  const status = await runNodeGyp(progressPrinter(numFiles));
  if (status !== 0) {
    const lines = fs
      .readFileSync(logFile, 'utf8')
      .trimEnd()
      .split('\n')
      .filter((line) => !/^gyp (info|verb)/.test(line));
    const tail = lines.slice(-40).join('\n');
    throw new BuildError(
      `the addon does not compile; the log is ${path.relative(process.cwd(), logFile)} and ends with:\n${tail}`,
    );
  }
  console.log(`capstan: native addon ready after ${Math.round((Date.now() - started) / 1000)} s`);
}

function runNodeGyp(onOutput) {
  const env = { ...process.env, JOBS: process.env.JOBS || 'max' };
  // Without headers, node-gyp downloads an archive.
  const prefix = headersPrefix();
  if (prefix !== undefined) env.npm_config_nodedir = prefix;
  const nodeGyp = require.resolve('node-gyp/bin/node-gyp.js', { paths: [root] });
  const child = spawn(process.execPath, [nodeGyp, 'configure', 'build'], {
    cwd: root,
    env,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  // Written synchronously, so that the log is complete when a failed build prints its end.
  const log = fs.openSync(logFile, 'w');
  const onData = (bytes) => {
    fs.writeSync(log, bytes);
    onOutput(bytes.toString());
  };
  child.stdout.on('data', onData);
  child.stderr.on('data', onData);
  return new Promise((resolve, reject) => {
    child.on('error', reject);
    child.on('close', (code) => {
      fs.closeSync(log);
      resolve(code ?? 1);
    });
  });
}

/** Reports progress from make's output: one line that is overwritten on a terminal, every tenth file elsewhere. */
function progressPrinter(numFiles) {
  let numDone = 0;
  return (output) => {
    for (const [, object] of output.matchAll(/CXX\(target\) (\S+)/g)) {
      numDone++;
      if (process.stdout.isTTY) {
        const text = `[${numDone}/${Math.max(numFiles, numDone)}] ${path.basename(object, '.o')}`;
        process.stdout.write(`\r\x1b[K${text}${numDone === numFiles ? '\r\x1b[K' : ''}`);
      } else if (numDone % 10 === 0) {
        console.log(`capstan: ${numDone} of ${Math.max(numFiles, numDone)} files`);
      }
    }
  };
}

function firstLine(error) {
  return String(error.message).split('\n')[0];
}

main().catch((error) => {
  console.error(`capstan: ${error instanceof BuildError ? error.message : error.stack}`);
  process.exitCode = 1;
});
