// Uses an installation as its first user does, with Node alone: the library, `serve`, `serve --access-control` with a key,
// and, with `--service`, `up` and a deployment. Run it in the folder of the installation. Prints start times.
//
//     node use.mjs [--service] [--main FILE | --command FILE]
//
// --main: the program of `capstan`, for an installation without node_modules/.bin
// --command: the single executable, or what starts it. It has no library.
import { strictEqual } from 'node:assert';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

const work = mkdtempSync(join(tmpdir(), 'capstan-use-'));
const {
  values: { service: usesService, main, command: executable },
} = parseArgs({
  options: { service: { type: 'boolean', default: false }, main: { type: 'string' }, command: { type: 'string' } },
});
const [command, ...first] =
  main === undefined ? [executable ?? join('node_modules', '.bin', 'capstan')] : [process.execPath, main];
const running = new Set();

/** Starts a command. Resolves with its output when the pattern matches. */
async function start(pattern, ...args) {
  const begin = performance.now();
  const child = spawn(command, [...first, ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
  running.add(child);
  let output = '';
  let log = '';
  child.stderr.on('data', (chunk) => (log += chunk));
  for await (const chunk of child.stdout.iterator({ destroyOnReturn: false })) {
    output += chunk;
    const match = pattern.exec(output);
    if (match !== null) {
      child.stdout.resume();
      return { child, match, ms: Math.round(performance.now() - begin) };
    }
  }
  throw new Error(`capstan ${args.join(' ')}: expected ${pattern} in its output, got:\n${output}${log}`);
}

async function stop({ child }) {
  child.kill('SIGINT');
  const [code] = await once(child, 'exit');
  running.delete(child);
  strictEqual(code, 0);
}

function run(...args) {
  const { status, stdout, stderr } = spawnSync(command, [...first, ...args], { encoding: 'utf8' });
  if (status !== 0) throw new Error(`capstan ${args.join(' ')}: exit status ${status}\n${stdout}${stderr}`);
  return stdout.trim();
}

async function chat(url, key) {
  const response = await fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...(key && { authorization: `Bearer ${key}` }) },
    body: JSON.stringify({ model: 'demo', temperature: 0, messages: [{ role: 'user', content: 'What is Capstan?' }] }),
  });
  return response.ok ? (await response.json()).choices[0].message.content : response.status;
}

const SERVES = /curl (http:\/\/[^/]+)/;

async function useServer(expected) {
  const server = await start(SERVES, 'serve', 'demo', '--port', '0');
  strictEqual(await chat(server.match[1]), expected);
  console.log(`capstan serve: listens after ${server.ms} ms`);
  await stop(server);
}

async function useKeys(expected) {
  const keys = ['--keys-db', join(work, 'keys.db')];
  const key = run('keys', 'create', '--name', 'laptop', ...keys);
  const server = await start(SERVES, 'serve', 'demo', '--port', '0', '--access-control', ...keys);
  strictEqual(await chat(server.match[1]), 401);
  strictEqual(await chat(server.match[1], key), expected);
  console.log('capstan serve --access-control: refuses a request without a key, answers one with a key');
  await stop(server);
}

async function useService(expected) {
  const [data, password] = [join(work, 'service'), join(work, 'password.txt')];
  writeFileSync(password, 'correct horse battery', { mode: 0o600 });
  const admin = ['--bootstrap-email', 'ada@example.com', '--bootstrap-password-file', password];
  const service = await start(
    /management API (\S+), .*\nIsolation: [^\n]*/s,
    'up',
    '--data-dir',
    data,
    '--port',
    '0',
    ...admin,
  );
  process.env.CAPSTAN_URL = service.match[1];
  process.env.CAPSTAN_TOKEN = run(
    'tokens',
    'create',
    '--data-dir',
    data,
    '--email',
    'ada@example.com',
    '--name',
    'cli',
  );
  const begin = performance.now();
  run('deploy', 'chat', '--wait');
  const { url } = JSON.parse(run('deployments', 'get', 'chat', '--json'));
  strictEqual(await chat(url), expected);
  console.log(
    `capstan up: ready after ${service.ms} ms, a deployment answers after ${Math.round(performance.now() - begin)} ms`,
  );
  console.log(service.match[0].split('\n').at(-1));
  run('deployments', 'delete', 'chat', '--yes');
  await stop(service);
}

async function useLibrary() {
  const { Engine } = await import('capstan');
  const begin = performance.now();
  const engine = await Engine.load('demo');
  const loadMs = Math.round(performance.now() - begin);
  const { choices } = await engine.chat([{ role: 'user', content: 'What is Capstan?' }], { temperature: 0 }).result();
  await engine.close();
  const [{ text }] = choices;
  console.log(`Node ${process.version}, instructions ${engine.info.isa}, model loaded in ${loadMs} ms: ${text}`);
  return text;
}

function useCommand() {
  const begin = performance.now();
  const version = run('--version');
  const ms = Math.round(performance.now() - begin);
  const text = run('run', '-p', 'What is Capstan?', '--temperature', '0');
  console.log(`capstan ${version}, printed after ${ms} ms: ${text}`);
  return text;
}

try {
  const text = executable === undefined ? await useLibrary() : useCommand();
  await useServer(text);
  await useKeys(text);
  if (usesService) await useService(text);
} finally {
  for (const child of running) child.kill('SIGKILL');
  rmSync(work, { recursive: true, force: true });
}
