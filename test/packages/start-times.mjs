// Prints the size of the single executable (build/binary/capstan), and the median times of its starts beside those of the
// same files with Node.js (RELEASED_NODE, or `node`):
//
//     node test/packages/start-times.mjs
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readdirSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const RUNS = 7;
const executable = join(dirname(fileURLToPath(import.meta.url)), '..', '..', 'build', 'binary', 'capstan');
const work = mkdtempSync(join(tmpdir(), 'capstan-start-'));
const folder = join(work, 'unpacked');
const env = { ...process.env, CAPSTAN_UNPACK_DIR: folder };

const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];

function version([command, ...args]) {
  const begin = performance.now();
  const { status, stderr } = spawnSync(command, [...args, '--version'], { env, encoding: 'utf8' });
  if (status !== 0) throw new Error(`${command}: exit status ${status}\n${stderr}`);
  return performance.now() - begin;
}

/** Time until the first request is answered with the model loaded. */
async function healthy([command, ...args]) {
  const begin = performance.now();
  const child = spawn(command, [...args, 'serve', 'demo', '--port', '0'], { env, stdio: ['ignore', 'pipe', 'ignore'] });
  let output = '';
  for await (const chunk of child.stdout) {
    output += chunk;
    const url = /curl (http:\/\/[^/]+)/.exec(output)?.[1];
    if (url === undefined) continue;
    while (!(await fetch(`${url}/health`)).ok) await new Promise((resolve) => setTimeout(resolve, 5));
    break;
  }
  const ms = performance.now() - begin;
  child.kill();
  await once(child, 'exit');
  return ms;
}

async function row(name, run) {
  const times = [];
  for (let i = 0; i < RUNS; i++) times.push(await run());
  console.log(`| ${name} | ${Math.round(median(times))} |`);
}

try {
  const first = () => {
    rmSync(folder, { recursive: true, force: true });
    return version([executable]);
  };
  console.log(`capstan: ${(statSync(executable).size / 1e6).toFixed(1)} MB\n\n| start | ms |\n|---|---|`);
  await row('executable, first start (unpacks), `--version`', first);
  await row('executable, `--version`', () => version([executable]));
  await row('executable, `serve demo` until it is healthy', () => healthy([executable]));
  const [tree] = readdirSync(join(folder, 'executable'));
  const main = join(folder, 'executable', tree, 'node_modules', 'capstan', 'dist', 'server', 'main.js');
  const node = [process.env.RELEASED_NODE ?? process.execPath, main];
  await row('Node.js and the packages, `--version`', () => version(node));
  await row('Node.js and the packages, `serve demo` until it is healthy', () => healthy(node));
} finally {
  rmSync(work, { recursive: true, force: true });
}
