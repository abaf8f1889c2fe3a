// Runs every client in this folder against `capstan serve demo` with access keys, over both transports. run.sh installs
// the clients and calls this. Writes the table of results. Exits 1 if a check fails.
import { execFile } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createKey, killAll, prepare, startServer } from '../fakes/server-process';
import { randomEmbedder } from '../fakes/random-models';
import { temporaryFolder } from '../fakes/temporary-folder';

interface Check {
  client: string;
  check: string;
  ok: boolean;
  note: string;
}

const [python, aiSdkDir, agentsDir, table] = process.argv.slice(2);
const here = (name: string) => join(__dirname, name);
const CLIENTS: readonly { command: string; args: string[]; cwd?: string }[] = [
  { command: python, args: [here('openai_client.py')] },
  { command: python, args: [here('anthropic_client.py')] },
  { command: python, args: [here('types_client.py')] },
  { command: process.execPath, args: [here('openai-npm.mjs')] },
  { command: python, args: [here('litellm_client.py')] },
  { command: python, args: [here('langchain_client.py')] },
  { command: process.execPath, args: [here('ai-sdk.mjs')], cwd: aiSdkDir },
  { command: process.execPath, args: [here('openai-agents.mjs')], cwd: agentsDir },
  { command: process.execPath, args: [here('langchain-npm.mjs')], cwd: agentsDir },
];

function runClient({ command, args, cwd }: (typeof CLIENTS)[number], env: NodeJS.ProcessEnv): Promise<Check[]> {
  return new Promise((resolve) => {
    execFile(
      command,
      args,
      {
        cwd,
        env: { ...process.env, ...env, CHECKS_MODULE: here('checks.mjs'), PYTHONDONTWRITEBYTECODE: '1' },
        maxBuffer: 1 << 24,
      },
      (error, stdout, stderr) => {
        const checks = stdout
          .split('\n')
          .filter((line) => line.startsWith('{'))
          .map((line) => JSON.parse(line) as Check);
        if (process.env.CAPSTAN_TRACE || checks.length === 0) process.stderr.write(stderr);
        resolve(
          checks.length > 0
            ? checks
            : [{ client: args[0], check: 'starts', ok: false, note: (error?.message ?? stderr).slice(-300) }],
        );
      },
    );
  });
}

async function runTransport(transport: string): Promise<Check[]> {
  const keysDb = join(temporaryFolder('clients'), 'keys.db');
  const server = await startServer(
    [
      'demo',
      '--http-transport',
      transport,
      '--access-control',
      '--keys-db',
      keysDb,
      '--deployment',
      'mine',
      '--log-level',
      'error',
    ],
    {},
  );
  const embedder = await startServer(
    [randomEmbedder(), '--served-model-name', 'embedder', '--http-transport', transport, '--log-level', 'error'],
    {},
  );
  const checks: Check[] = [];
  for (const client of CLIENTS) {
    const keys = {
      CAPSTAN_FOREIGN_KEY: createKey(keysDb, '--name', 'foreign', '--deployment', 'other'),
      CAPSTAN_SPENT_KEY: createKey(keysDb, '--name', 'spent', '--rpm', '1'),
      CAPSTAN_UNKNOWN_KEY: 'csk_unknown',
      CAPSTAN_KEY: createKey(keysDb, '--name', 'good'),
    };
    checks.push(...(await runClient(client, { CAPSTAN_URL: server.url, CAPSTAN_EMBEDDER_URL: embedder.url, ...keys })));
  }
  for (const { process: child, exited } of [server, embedder]) {
    child.kill('SIGTERM');
    await exited;
  }
  const errors = server.output().stderr + embedder.output().stderr;
  if (errors !== '')
    checks.push({ client: 'the server', check: 'logs no error', ok: false, note: errors.slice(0, 300) });
  return checks;
}

function renderTable(results: Record<string, Check[]>): string {
  const clients = [
    ...new Set(
      Object.values(results)
        .flat()
        .map(({ client }) => client),
    ),
  ];
  let text =
    '# Clients, end to end\n\n`test/clients/run.sh` runs each client against `capstan serve demo --access-control`, over both transports. A check passes if the client returns the expected result. For an error response, the client must raise its own error type. ' +
    `These ran on ${new Date().toISOString().slice(0, 10)}.\n`;
  for (const client of clients) {
    text += `\n## ${client}\n\n| check | ${Object.keys(results).join(' | ')} |\n|---|${'---|'.repeat(Object.keys(results).length)}\n`;
    const names = [
      ...new Set(
        Object.values(results)
          .flat()
          .filter((check) => check.client === client)
          .map(({ check }) => check),
      ),
    ];
    for (const name of names) {
      const cells = Object.values(results)
        .map((checks) => checks.find((check) => check.client === client && check.check === name))
        .map((found) =>
          found === undefined ? '' : found.ok ? 'passes' : `**fails**: ${found.note.replaceAll(/[|\n]/g, ' ')}`,
        );
      text += `| ${name} | ${cells.join(' | ')} |\n`;
    }
  }
  return text;
}

void (async () => {
  prepare();
  const results: Record<string, Check[]> = {};
  for (const transport of ['uws', 'node']) results[transport] = await runTransport(transport);
  const all = Object.values(results).flat();
  const failed = all.filter(({ ok }) => !ok);
  if (table !== undefined) writeFileSync(table, renderTable(results));
  for (const [transport, checks] of Object.entries(results))
    for (const { client, check, note } of checks.filter(({ ok }) => !ok))
      console.log(`${transport}, ${client}, ${check}: ${note}`);
  console.log(`${all.length - failed.length} of ${all.length} checks pass`);
  process.exitCode = failed.length === 0 ? 0 : 1;
})().finally(killAll);
