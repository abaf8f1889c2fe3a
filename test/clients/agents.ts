// Runs Codex and Claude Code, as npm has them, against `capstan serve` over both transports and against the API of all
// deployments. A scripted model lets them repair a file with their own tools and one of an MCP server. The embedded
// model answers a question of Claude Code; Codex sends more tools than its context holds. agents.sh installs the agents
// and calls this. Writes the table of results. Exits 1 if a check fails.
import { execFile, execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  createKey,
  killAll,
  main,
  prepare,
  type Running,
  start,
  startServer,
  TRANSPORTS,
} from '../fakes/server-process';
import { temporaryFolder } from '../fakes/temporary-folder';
import { tinyModel } from '../fakes/tiny-model';

const [agentsDir, table] = process.argv.slice(2);
const packages = join(agentsDir, 'node_modules');
const CODEX = join(packages, '.bin/codex');
const CLAUDE = join(packages, `@anthropic-ai/claude-code-${process.platform}-${process.arch}/claude`);
const MCP_SERVER = join(__dirname, 'mcp-server.cjs');
const MAX_MS = 120_000;

interface Endpoint {
  /** Without /v1. */
  url: string;
  key: string;
  model: string;
}

interface Check {
  agent: string;
  where: string;
  check: string;
  /** Empty: the check passes. */
  note: string;
}

const checks: Check[] = [];

async function check(agent: string, where: string, name: string, run: () => Promise<void>): Promise<void> {
  let note = '';
  try {
    await run();
  } catch (error) {
    note = (error as Error).message.slice(-600);
  }
  checks.push({ agent, where, check: name, note });
}

interface Outcome {
  text: string;
  folder: string;
}

/** Runs an agent in a new folder with a wrong program and its test. Nothing of the user's own configuration is read. */
function runAgent(command: string, args: readonly string[], env: NodeJS.ProcessEnv, home: string): Promise<Outcome> {
  const folder = join(home, 'work');
  mkdirSync(folder);
  writeFileSync(join(folder, 'sum.js'), 'module.exports = (a, b) => a - b;\n');
  writeFileSync(
    join(folder, 'check.js'),
    "if (require('./sum.js')(2, 3) !== 5) { console.log('sum is wrong'); process.exit(1); }\nconsole.log('all good');\n",
  );
  const { PATH } = process.env;
  return new Promise((resolve, reject) => {
    const child = execFile(
      command,
      args,
      { cwd: folder, env: { PATH, HOME: home, TERM: 'xterm', ...env }, timeout: MAX_MS, maxBuffer: 1 << 24 },
      (error, stdout, stderr) => {
        if (error === null) resolve({ text: stdout, folder });
        else reject(new Error(`${error.message.split('\n')[0]}: ${stdout}${stderr}`));
      },
    );
    child.stdin!.end();
  });
}

/** @param args Further arguments. */
function runCodex({ url, key, model }: Endpoint, prompt: string, args: readonly string[] = []): Promise<Outcome> {
  const home = temporaryFolder('codex');
  mkdirSync(join(home, '.codex'));
  writeFileSync(
    join(home, '.codex/config.toml'),
    `model = "${model}"
model_provider = "capstan"

[model_providers.capstan]
name = "Capstan"
base_url = "${url}/v1"
env_key = "CAPSTAN_KEY"
wire_api = "responses"

[mcp_servers.docs]
command = ${JSON.stringify(process.execPath)}
args = ${JSON.stringify([MCP_SERVER])}
`,
  );
  const flags = ['exec', '--skip-git-repo-check', '--dangerously-bypass-approvals-and-sandbox'];
  return runAgent(CODEX, [...flags, ...args, prompt], { CAPSTAN_KEY: key }, home);
}

/** @param args Further arguments. */
function runClaude({ url, key, model }: Endpoint, prompt: string, args: readonly string[] = []): Promise<Outcome> {
  const home = temporaryFolder('claude');
  writeFileSync(
    join(home, 'mcp.json'),
    JSON.stringify({ mcpServers: { docs: { command: process.execPath, args: [MCP_SERVER] } } }),
  );
  return runAgent(
    CLAUDE,
    ['--mcp-config', join(home, 'mcp.json'), '--allowedTools', 'Bash,Edit,Read,mcp__docs__find', ...args, '-p', prompt],
    {
      ANTHROPIC_BASE_URL: url,
      ANTHROPIC_AUTH_TOKEN: key,
      ANTHROPIC_MODEL: model,
      ANTHROPIC_DEFAULT_OPUS_MODEL: model,
      ANTHROPIC_DEFAULT_SONNET_MODEL: model,
      ANTHROPIC_DEFAULT_HAIKU_MODEL: model,
      CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
    },
    home,
  );
}

/** What Codex knows about a model. With it, patches are a custom tool. Returns the file. */
function modelCatalog(slug: string): string {
  const path = join(temporaryFolder('catalog'), 'models.json');
  const model = {
    slug,
    display_name: slug,
    base_instructions: 'You are an agent that edits files and runs commands.',
    context_window: 400_000,
    input_modalities: ['text'],
    apply_patch_tool_type: 'freeform',
    shell_type: 'unified_exec',
    truncation_policy: { mode: 'tokens', limit: 10_000 },
    supported_reasoning_levels: [],
    experimental_supported_tools: [],
    support_verbosity: false,
    supported_in_api: true,
    visibility: 'list',
    priority: 0,
  };
  writeFileSync(path, JSON.stringify({ models: [model] }));
  return path;
}

function expectRepaired({ text, folder }: Outcome): void {
  if (!text.includes('The sum is right now.')) throw new Error(`expected the task to be done: ${text}`);
  const program = readFileSync(join(folder, 'sum.js'), 'utf8');
  if (program !== 'module.exports = (a, b) => a + b;\n') throw new Error(`expected a repaired file, got ${program}`);
}

/** Throws if a request since the last call was refused or failed, or if there was none. */
function requestsOf({ output }: Pick<Running, 'output'>): () => void {
  let seen = 0;
  return () => {
    const { stdout, stderr } = output();
    const requests = `${stdout}${stderr}`
      .split('\n')
      .filter((line) => line.startsWith('{') && line.includes('"path":"/v1/'))
      .slice(seen);
    seen += requests.length;
    const failed = requests.filter((line) => !line.includes('"status":200'));
    if (requests.length === 0 || failed.length > 0)
      throw new Error(`expected requests that all succeed, got ${requests.length} and ${failed.join(', ')}`);
  };
}

async function checkRepair(where: string, endpoint: Endpoint, checkRequests: () => void): Promise<void> {
  const task = 'Make check.js pass.';
  const finish = (outcome: Outcome) => {
    expectRepaired(outcome);
    checkRequests();
  };
  const name = 'repairs a program';
  await check('Codex', where, name, async () => finish(await runCodex(endpoint, task)));
  const catalog = modelCatalog(endpoint.model);
  await check('Codex', where, `${name}, with a model catalog`, async () =>
    finish(await runCodex(endpoint, task, ['--config', `model_catalog_json=${JSON.stringify(catalog)}`])),
  );
  await check('Claude Code', where, name, async () => finish(await runClaude(endpoint, task)));
}

/** An addon whose model is agents-script.cjs. */
function scriptedAddon(fakeAddon: string): string {
  const path = join(temporaryFolder('agents'), 'addon.js');
  const script = JSON.stringify(join(__dirname, 'agents-script.cjs'));
  writeFileSync(
    path,
    `const addon = require(${JSON.stringify(fakeAddon)});
const next = require(${script});
addon.fake.answer = (prompt) => ({ text: next(prompt), tokensPerStep: 8 });
module.exports = addon;
`,
  );
  return path;
}

const SCRIPTED = ['--served-model-name', 'coder', '--max-model-len', '400k'];

async function overServe(transport: string, addon: string): Promise<void> {
  const keysDb = join(temporaryFolder('keys'), 'keys.db');
  const server = await startServer(
    [tinyModel(), ...SCRIPTED, '--http-transport', transport, '--access-control', '--keys-db', keysDb],
    { CAPSTAN_ADDON: addon },
  );
  const key = createKey(keysDb, '--name', 'agents');
  const endpoint = { url: server.url, key, model: 'coder' };
  const where = `capstan serve, ${transport}`;
  await checkRepair(where, endpoint, requestsOf(server));
  await check('Codex', where, 'an unknown model', () =>
    expectFailure(runCodex({ ...endpoint, model: 'x' }, 'Hi'), '"x"'),
  );
  await check('Claude Code', where, 'an unknown model', () =>
    expectFailure(runClaude({ ...endpoint, model: 'x' }, 'Hi'), 'selected model (x)'),
  );
  await end(server);
}

async function expectFailure(run: Promise<Outcome>, text: string): Promise<void> {
  const message = await run.then(
    () => 'the agent succeeded',
    (error: Error) => error.message,
  );
  if (!message.includes(text)) throw new Error(`expected ${text} in: ${message}`);
}

async function overDemo(): Promise<void> {
  const server = await startServer(['demo'], {});
  await check('Claude Code', 'the embedded model', 'answers a question', async () => {
    const flags = ['--bare', '--system-prompt', 'Be brief.', '--tools', '', '--strict-mcp-config'];
    const { text } = await runClaude({ url: server.url, key: 'any', model: 'demo' }, 'What is Capstan?', flags);
    const answer = 'Capstan is a native Node.js runtime and server for language models.';
    if (!text.includes(answer)) throw new Error(`expected the answer: ${text}`);
    requestsOf(server)();
  });
  await end(server);
}

/** The upstream has only chat completions, so requests and responses are converted. */
async function overService(addon: string): Promise<void> {
  const upstream = await startServer([tinyModel(), ...SCRIPTED], { CAPSTAN_ADDON: addon });
  const dir = temporaryFolder('service');
  const passwordFile = join(dir, 'password.txt');
  writeFileSync(passwordFile, 'correct-horse-battery-9', { mode: 0o600 });
  const data = ['--data-dir', join(dir, 'data')];
  const email = 'ada@example.com';
  const account = ['--bootstrap-email', email, '--bootstrap-password-file', passwordFile];
  const service = start(
    ['up', ...data, '--port', '0', '--serving-port', '0', '--allow-private-upstreams', ...account],
    {},
  );
  const { management, serving } = await urlsOf(service);
  const run = (args: readonly string[], env: NodeJS.ProcessEnv = {}) =>
    execFileSync(process.execPath, [main, ...args], { encoding: 'utf8', env: { ...process.env, ...env } });
  const token = run(['tokens', 'create', ...data, '--email', email, '--name', 'agents']).trim();
  const env = { CAPSTAN_URL: management, CAPSTAN_TOKEN: token };
  run(['deploy', 'coder', '--upstream', `${upstream.url}/v1`, '--upstream-model', 'coder'], env);
  const { secret } = JSON.parse(run(['keys', 'create', '--name', 'agents', '--json'], env)) as { secret: string };
  await checkRepair(
    'the API of all deployments, upstream with chat completions',
    { url: serving, key: secret, model: 'coder' },
    requestsOf(upstream),
  );
  await end(service);
  await end(upstream);
}

async function urlsOf(service: Running): Promise<{ management: string; serving: string }> {
  const text = await service.until('Try:');
  const [, management, serving] = /management API (\S+), deployments (\S+)/.exec(text)!;
  return { management, serving };
}

async function end({ process: child, exited }: Running): Promise<void> {
  child.kill('SIGTERM');
  await exited;
}

function renderTable(): string {
  const version = (name: string) =>
    (JSON.parse(readFileSync(join(packages, name, 'package.json'), 'utf8')) as { version: string }).version;
  const rows = checks.map(
    ({ agent, where, check: name, note }) =>
      `| ${agent} | ${where} | ${name} | ${note === '' ? 'passes' : `**fails**: ${note.replaceAll(/[|\n]/g, ' ')}`} |\n`,
  );
  return `# Coding agents, end to end

\`test/clients/agents.sh\` runs Codex ${version('@openai/codex')} and Claude Code ${version('@anthropic-ai/claude-code')} from npm without a terminal. A scripted model calls their own tools: it runs a test, reads the program, finds a page with the tool of an MCP server, edits the program and runs the test again. Claude Code finds the tool by its tool search. With a model catalog, Codex has a custom tool for patches. Each request of a repair must succeed. These ran on ${new Date().toISOString().slice(0, 10)}.

| agent | server | check | |
|---|---|---|---|
${rows.join('')}`;
}

void (async () => {
  const addon = scriptedAddon(prepare().CAPSTAN_ADDON);
  for (const transport of TRANSPORTS) await overServe(transport, addon);
  await overDemo();
  await overService(addon);
  if (table !== undefined) writeFileSync(table, renderTable());
  const failed = checks.filter(({ note }) => note !== '');
  for (const { agent, where, check: name, note } of failed) console.log(`${agent}, ${where}, ${name}: ${note}`);
  console.log(`${checks.length - failed.length} of ${checks.length} checks pass`);
  process.exitCode = failed.length === 0 ? 0 : 1;
})().finally(killAll);
