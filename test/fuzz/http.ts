// Fuzzes the HTTP interface of a running server, over both transports, with the embedded model and with the fake addon:
//   node -r ./test/oracle/register-ts.cjs test/fuzz/http.ts [--seconds 60] [--seed 1] [--transport uws|node] [--engine
// demo|fake] [--case SEED] [--width 8]
// Prints every finding with the seed that reproduces it (--case). Exits 1 if there are findings.
import { readFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { killAll, prepare, startServer } from '../fakes/server-process';
import { tinyModel } from '../fakes/tiny-model';
import { type Campaign, findResidue, runCampaign } from './campaign';
import { makeRequest, requestBytes } from './requests';

const { values } = parseArgs({
  options: {
    seconds: { type: 'string', default: '60' },
    seed: { type: 'string', default: '1' },
    transport: { type: 'string' },
    engine: { type: 'string' },
    case: { type: 'string' },
    width: { type: 'string', default: '8' },
    timeout: { type: 'string', default: '60' },
  },
});

function residentMib(pid: number): number {
  return Math.round(Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) / 1024);
}

function* seedsUntil(deadline: number, first: number): Generator<number> {
  for (let seed = first; Date.now() < deadline; seed++) yield seed;
}

async function fuzz(transport: 'uws' | 'node', engine: string, seconds: number): Promise<number> {
  const fakeAddon = prepare();
  const server = await startServer(
    [engine === 'fake' ? tinyModel() : 'demo', '--http-transport', transport, '--log-level', 'error'],
    engine === 'fake' ? fakeAddon : {},
  );
  const port = Number(new URL(server.url).port);
  const pid = server.process.pid!;
  const isAlive = () => server.process.exitCode === null && server.process.signalCode === null;
  const run = (seeds: Iterable<number>) =>
    runCampaign({
      port,
      transport,
      seeds,
      width: Number(values.width),
      timeoutMs: Number(values.timeout) * 1000,
      isAlive,
    });
  const total: Campaign = { numRequests: 0, statuses: {}, findings: [] };
  const resident = [residentMib(pid)];
  const rounds = values.case !== undefined ? 1 : 6;
  for (let round = 0; round < rounds && isAlive(); round++) {
    const first = Number(values.seed) * 1_000_000 + total.numRequests;
    const { numRequests, statuses, findings } = await run(
      values.case !== undefined ? [Number(values.case)] : seedsUntil(Date.now() + (seconds * 1000) / rounds, first),
    );
    total.numRequests += numRequests;
    total.findings.push(...findings);
    for (const [status, count] of Object.entries(statuses))
      total.statuses[Number(status)] = (total.statuses[Number(status)] ?? 0) + count;
    if (isAlive()) resident.push(residentMib(pid));
  }
  const problems = total.findings.map(
    ({ seed, summary, delivery, fault }) => `case ${seed} (${summary}; ${delivery}): ${fault}`,
  );
  if (isAlive()) {
    const residue = await findResidue(server.url, 30_000);
    if (residue !== undefined) problems.push(residue);
    resident.push(residentMib(pid));
    server.process.kill('SIGTERM');
  } else problems.push(`the server died: ${server.output().stderr.slice(-2000)}`);
  await server.exited;
  const logged = server
    .output()
    .stderr.split('\n')
    .filter((line) => line !== '')
    .slice(0, 5);
  console.log(
    `${transport}, ${engine}: ${total.numRequests} requests; ${JSON.stringify(total.statuses)}; resident ${resident.join(', ')} MiB; ${problems.length} findings`,
  );
  for (const problem of problems) console.log(`  ${problem}`);
  for (const line of logged) console.log(`  logged: ${line.slice(0, 500)}`);
  return problems.length;
}

void (async () => {
  if (values.case !== undefined)
    console.log(
      JSON.stringify(
        requestBytes(makeRequest(Number(values.case)))
          .toString('latin1')
          .slice(0, 2000),
      ),
    );
  const transports = (['uws', 'node'] as const).filter(
    (name) => values.transport === undefined || values.transport === name,
  );
  const engines = values.engine === undefined ? ['fake', 'demo'] : [values.engine];
  let numProblems = 0;
  for (const transport of transports)
    for (const engine of engines)
      numProblems += await fuzz(transport, engine, Number(values.seconds) / transports.length / engines.length);
  process.exitCode = numProblems === 0 ? 0 : 1;
})().finally(killAll);
