// Runs the deployment service under load while faults are injected, and checks that no answer was wrong, no
// acknowledged change was lost and nothing was left behind. Needs root, for a small file system.
//   node -r ./test/oracle/register-ts.cjs benchmarks/faults.ts [--database libsql] [--minutes 30] [--seed 1]
//     [--out benchmarks/results/faults-libsql.md]
//   .ci/with-postgres node -r ./test/oracle/register-ts.cjs benchmarks/faults.ts --database postgres
import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdirSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { Random } from '../server/bench/random';
import { loadSecretKey } from '../server/platform/accounts/secret-box';
import { openServiceStore } from '../server/platform/store/store';
import { BrokenWorkloads } from './faults/broken-workloads';
import { checkBroken, checkKeys, checkVersions } from './faults/change-checks';
import { Chats, learnAnswers, type Served } from './faults/chats';
import { fileDatabase, postgresDatabase } from './faults/database';
import { SmallDisk } from './faults/disk';
import { sleep } from './faults/http';
import { Injector, replicaIds } from './faults/injector';
import { KeyWriter } from './faults/key-writer';
import { Ledger } from './faults/ledger';
import { Management } from './faults/management';
import { MAX_DESCRIPTOR_GROWTH, MAX_GROWTH_MIB, MemorySamples } from './faults/memory-samples';
import { messagesOf, pageOf } from './faults/page';
import { filesWithSecret, remains } from './faults/remains';
import { freePorts, ServiceProcess } from './faults/service-process';
import { VersionWriter } from './faults/version-writer';

const { values } = parseArgs({
  options: {
    database: { type: 'string', default: 'libsql' },
    minutes: { type: 'string', default: '30' },
    seed: { type: 'string', default: '1' },
    out: { type: 'string' },
  },
});
const MINUTES = Number(values.minutes);
const SEED = Number(values.seed);
/** After this share of the run the process of the service is not killed, so that its memory can be compared. */
const KILLING_SHARE = 0.55;
const READY_S = 120;
const NUM_CHATS = 3;
const SLOW_MS = 20_000;
const SAMPLE_MS = 5_000;

let numWorkers = 0;
const newRandom = (): Random => new Random(SEED * 1_000 + numWorkers++);

/** Creates a deployment of the embedded model, with keys that stay valid, and waits until it runs. */
async function deploy(api: Management, name: string, replicas: number, more: object = {}): Promise<Served> {
  const body = { name, min_replicas: replicas, max_replicas: replicas, ...more };
  const made = await api.call('POST', '/deployments', { body });
  if (made.status !== 202) throw new Error(`${name}: expected status 202, got ${made.status}: ${made.text}`);
  const { id, url } = made.json;
  await awaitReady(api, { id, name }, replicas, READY_S);
  return { id, name, url, secrets: [] };
}

async function awaitReady(
  api: Management,
  { id, name }: Pick<Served, 'id' | 'name'>,
  replicas: number,
  seconds: number,
): Promise<void> {
  let last: any;
  for (let waited = 0; waited < seconds * 2; waited++) {
    last = await api.read(`/deployments/${id}`);
    if (last.state === 'running' && last.ready_replicas === replicas) return;
    await sleep(500);
  }
  throw new Error(`${name}: expected ${replicas} ready replicas within ${seconds} s, got ${JSON.stringify(last)}`);
}

/** One key of each kind. */
async function withKeys(api: Management, served: Served): Promise<Served> {
  const bodies = [{ name: `${served.name}, user` }, { name: `${served.name}, deployment`, deployments: [served.id] }];
  const made = await Promise.all(bodies.map((body) => api.call('POST', '/keys', { body })));
  const secrets = made.map(({ json }) => json.secret as string);
  return { ...served, secrets };
}

async function main(): Promise<number> {
  const ledger = new Ledger();
  const commit = execFileSync('git', ['rev-parse', '--short', 'HEAD'], { cwd: __dirname, encoding: 'utf8' }).trim();
  const folder = realpathSync(mkdtempSync(join(tmpdir(), 'capstan-faults-')));
  const [tmpDir, logFile] = [join(folder, 'tmp'), join(folder, 'service.log')];
  mkdirSync(tmpDir, { mode: 0o700 });
  const disk = new SmallDisk(join(folder, 'disk'));
  const dataDir = join(disk.folder, 'data');
  const isPostgres = values.database === 'postgres';
  const database = isPostgres
    ? await postgresDatabase(process.env.TEST_DATABASE_URL!)
    : fileDatabase(join(dataDir, 'capstan.db'));
  const databaseUrl = isPostgres ? process.env.TEST_DATABASE_URL : undefined;
  const port = await freePorts();
  const service = new ServiceProcess({ dataDir, logFile, tmpDir, port, databaseUrl, ledger });
  const ids = new Set<string>();
  const seeReplicas = (): void => {
    for (const id of replicaIds(dataDir)) ids.add(id);
  };
  try {
    const api = await Management.signUp(service);
    const variable = randomBytes(24).toString('hex');
    const locked = { access_control: true };
    const [single, pair, open, moving] = [
      await withKeys(api, await deploy(api, 'single', 1, { ...locked, secret_env: { HF_TOKEN: variable } })),
      await withKeys(api, await deploy(api, 'pair', 2, locked)),
      await deploy(api, 'open', 1),
      await withKeys(api, await deploy(api, 'moving', 1, locked)),
    ];
    const served = [single, pair, open, moving];
    const answers = await learnAnswers(single, newRandom());
    const chats = new Chats(ledger, answers);
    const versions = new VersionWriter(api, ledger);
    const keyWriters = [1, 2].map((n) => new KeyWriter(`writer ${n}, key`, api, ledger, single, newRandom()));
    const broken = new BrokenWorkloads(api, ledger, newRandom());
    const random = newRandom();
    const options = { random, ledger, service, database, disk, dataDir, api, chats, served, versions };
    const injector = new Injector(options);
    const samples = new MemorySamples();
    const startMs = performance.now();
    let isInterrupted = false;
    for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => (isInterrupted = true));
    const isOver = (): boolean => isInterrupted || performance.now() - startMs >= MINUTES * 60_000;
    const repeat = async (work: (random: Random) => Promise<unknown>): Promise<void> => {
      for (const own = newRandom(); !isOver();) await work(own);
    };
    const pick = (own: Random): Served => served[own.integer(0, served.length - 1)];
    const pause = (own: Random, longestMs: number): Promise<void> => sleep(own.integer(longestMs / 4, longestMs));
    await Promise.all([
      ...Array.from({ length: NUM_CHATS }, () =>
        repeat((own) => chats.ask(pick(own), own).then(() => pause(own, 200))),
      ),
      repeat((own) => chats.leave(pick(own), own).then(() => pause(own, 2_000))),
      repeat((own) => chats.readSlowly(pick(own), own, SLOW_MS)),
      ...keyWriters.map((writer) => repeat((own) => writer.step().then(() => pause(own, 1_000)))),
      repeat((own) => pause(own, 60_000).then(() => versions.write(moving))),
      repeat((own) => broken.step().then(() => pause(own, 4_000))),
      repeat(async (own) => {
        await pause(own, 8_000);
        const isKilling = performance.now() - startMs < KILLING_SHARE * MINUTES * 60_000;
        await injector.step({ endsService: isKilling });
      }),
      repeat(async () => {
        samples.take(service);
        seeReplicas();
        await sleep(SAMPLE_MS);
      }),
    ]);
    ledger.note('the load has ended');

    for (const [one, replicas] of [
      [single, 1],
      [pair, 2],
      [open, 1],
      [moving, 1],
    ] as const)
      await awaitReady(api, one, replicas, READY_S).catch((error: Error) => ledger.problem(error.message));
    await checkVersions(api, ledger, versions);
    await checkBroken(api, ledger, broken);
    for (const writer of keyWriters) await checkKeys(api, ledger, single, writer, newRandom());
    seeReplicas();
    await service.stop();

    const left = await remains({ folder, dataDir, tmpDir, port, replicaIds: ids });
    for (const text of left) ledger.problem(`left behind: ${text}`);
    const secrets = [
      variable,
      ...api.secrets.slice(0, -1),
      ...served.flatMap((one) => one.secrets),
      ...keyWriters.flatMap((writer) => writer.secrets),
    ];
    const logs = [logFile, join(dataDir, 'logs'), ...(database.logFile === undefined ? [] : [database.logFile])];
    for (const file of filesWithSecret(logs, secrets)) ledger.problem(`a secret is in ${file}`);
    const store = await openServiceStore({ location: database.location, secretKey: loadSecretKey(dataDir) }, Date.now);
    const brokenAt = await store.verifyAudit();
    await store.close();
    if (brokenAt !== undefined) ledger.problem(`the audit chain breaks at event ${brokenAt}`);
    const growth = samples.growth();
    if (growth !== undefined && growth.residentGrowthMib > MAX_GROWTH_MIB)
      ledger.problem(`memory grew by ${growth.residentGrowthMib.toFixed(1)} MiB`);
    if (growth !== undefined && growth.descriptorGrowth > MAX_DESCRIPTOR_GROWTH)
      ledger.problem(`descriptors grew by ${growth.descriptorGrowth.toFixed(1)}`);

    const page = pageOf({
      database: database.name,
      minutes: MINUTES,
      seed: SEED,
      commit,
      ledger,
      recoveries: injector.recoveries,
      growth,
      numRemains: left.length,
      isAuditIntact: brokenAt === undefined,
      logMessages: messagesOf(service.log),
    });
    if (values.out === undefined) process.stdout.write(page);
    else writeFileSync(values.out, page);
    return ledger.numProblems === 0 ? 0 : 1;
  } finally {
    // Also after an error of this program nothing of it may run on.
    await service.stop().catch(() => {});
    if (ledger.numProblems === 0) {
      disk.unmount();
      rmSync(folder, { recursive: true });
    } else console.error(`kept for a look: ${folder} (umount ${disk.folder}; rm -r ${folder})`);
  }
}

void main().then((code) => {
  process.exitCode = code;
});
