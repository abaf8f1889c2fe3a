// Runs the deployment service under load while faults are injected, and checks that no answer was wrong, no
// acknowledged change was lost and nothing was left behind. Needs root, for a small file system.
//   node -r ./test/oracle/register-ts.cjs benchmarks/faults.ts [--database libsql] [--minutes 30] [--seed 1]
//     [--out benchmarks/results/faults-libsql.md]
//   .ci/with-postgres node -r ./test/oracle/register-ts.cjs benchmarks/faults.ts --database postgres
import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdirSync, mkdtempSync, readFileSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { Random } from '../server/bench/random';
import { loadSecretKey } from '../server/platform/accounts/secret-box';
import { openServiceStore } from '../server/platform/store/store';
import { BrokenWorkloads } from './faults/broken-workloads';
import { checkBroken, checkKeys, checkVersions } from './faults/change-checks';
import { Chats, learnAnswers } from './faults/chats';
import { fileDatabase, postgresDatabase, type TestedDatabase } from './faults/database';
import { awaitReady, type Deployed, deployAll, type Deployments } from './faults/deployments';
import { SmallDisk } from './faults/disk';
import { sleep } from './faults/http';
import { Injector, replicaIds } from './faults/injector';
import { KeyWriter } from './faults/key-writer';
import { Ledger } from './faults/ledger';
import { Management } from './faults/management';
import { type Growth, MAX_DESCRIPTOR_GROWTH, MAX_GROWTH_MIB, MemorySamples } from './faults/memory-samples';
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
const NUM_CHATS = 3;
const SLOW_MS = 20_000;
const SAMPLE_MS = 5_000;

let numRandoms = 0;
const newRandom = (): Random => new Random(SEED * 1_000 + numRandoms++);

/** The service and what belongs to it on this machine. */
interface Place {
  folder: string;
  tmpDir: string;
  logFile: string;
  dataDir: string;
  port: number;
  disk: SmallDisk;
  database: TestedDatabase;
  service: ServiceProcess;
  /** Ids of all replicas so far. */
  replicaIds: Set<string>;
}

/** Everything that uses the service. */
interface Load {
  api: Management;
  deployments: Deployments;
  served: readonly Deployed[];
  chats: Chats;
  versions: VersionWriter;
  keyWriters: readonly KeyWriter[];
  broken: BrokenWorkloads;
  injector: Injector;
  samples: MemorySamples;
  /** What must not appear in a log. */
  variable: string;
}

/** Returns the URL of the PostgreSQL server, or undefined for a database file. */
function databaseUrl(): string | undefined {
  if (values.database === 'libsql') return undefined;
  if (values.database !== 'postgres')
    throw new Error(`--database: expected libsql or postgres, got ${values.database}`);
  const { TEST_DATABASE_URL: url } = process.env;
  if (url === undefined)
    throw new Error('TEST_DATABASE_URL: expected a postgres:// URL: start this with .ci/with-postgres');
  return url;
}

async function openPlace(ledger: Ledger): Promise<Place> {
  const url = databaseUrl();
  const folder = realpathSync(mkdtempSync(join(tmpdir(), 'capstan-faults-')));
  const [tmpDir, logFile] = [join(folder, 'tmp'), join(folder, 'service.log')];
  mkdirSync(tmpDir, { mode: 0o700 });
  const disk = new SmallDisk(join(folder, 'disk'));
  const dataDir = join(disk.folder, 'data');
  const database = url === undefined ? fileDatabase(join(dataDir, 'capstan.db')) : await postgresDatabase(url);
  const port = await freePorts();
  const service = new ServiceProcess({ dataDir, logFile, tmpDir, port, databaseUrl: url, ledger });
  return { folder, tmpDir, logFile, dataDir, port, disk, database, service, replicaIds: new Set() };
}

async function prepareLoad(ledger: Ledger, { service, database, disk, dataDir }: Place): Promise<Load> {
  const api = await Management.signUp(service);
  const variable = randomBytes(24).toString('hex');
  const deployments = await deployAll(api, variable);
  const served = Object.values(deployments) as Deployed[];
  const { single } = deployments;
  const chats = new Chats(ledger, await learnAnswers(single, newRandom()));
  const versions = new VersionWriter(api, ledger);
  const keyWriters = [1, 2].map((n) => new KeyWriter(`writer ${n}, key`, api, ledger, single, newRandom()));
  const broken = new BrokenWorkloads(api, ledger, newRandom());
  const common = { random: newRandom(), ledger, service, database, disk, dataDir, api, chats, served, versions };
  const [injector, samples] = [new Injector(common), new MemorySamples()];
  return { api, deployments, served, chats, versions, keyWriters, broken, injector, samples, variable };
}

async function runLoad(place: Place, load: Load): Promise<void> {
  const { deployments, served, chats, versions, keyWriters, broken, injector, samples } = load;
  const startMs = performance.now();
  const share = (): number => (performance.now() - startMs) / (MINUTES * 60_000);
  let isInterrupted = false;
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => (isInterrupted = true));
  const pick = (random: Random): Deployed => served[random.integer(0, served.length - 1)];
  /** Repeats work with pauses of a random length until the end. */
  const repeat = async (longestMs: number, work: (random: Random) => Promise<unknown>): Promise<void> => {
    for (const random = newRandom(); !isInterrupted && share() < 1;) {
      await work(random);
      await sleep(random.integer(longestMs / 4, longestMs));
    }
  };
  await Promise.all([
    ...Array.from({ length: NUM_CHATS }, () => repeat(200, (random) => chats.ask(pick(random), random))),
    repeat(2_000, (random) => chats.leave(pick(random), random)),
    repeat(200, (random) => chats.readSlowly(pick(random), random, SLOW_MS)),
    ...keyWriters.map((writer) => repeat(1_000, () => writer.step())),
    repeat(60_000, () => versions.write(deployments.moving)),
    repeat(4_000, () => broken.step()),
    repeat(8_000, () => injector.step({ endsService: share() < KILLING_SHARE })),
    repeat(SAMPLE_MS, () => {
      samples.take(place.service);
      return Promise.resolve(seeReplicas(place));
    }),
  ]);
}

function seeReplicas({ dataDir, replicaIds: ids }: Place): void {
  for (const id of replicaIds(dataDir)) ids.add(id);
}

/** Checks the changes while the service still runs. */
async function checkChanges(ledger: Ledger, load: Load): Promise<void> {
  const { api, deployments, served, versions, keyWriters, broken } = load;
  for (const one of served) await awaitReady(api, one).catch((error: Error) => ledger.problem(error.message));
  await checkVersions(api, ledger, versions);
  await checkBroken(api, ledger, broken);
  for (const writer of keyWriters) await checkKeys(api, ledger, deployments.single, writer, newRandom());
}

function checkLogs(ledger: Ledger, { logFile, dataDir, database }: Place, load: Load): void {
  const secrets = [
    load.variable,
    ...load.api.secrets,
    ...load.served.flatMap((one) => one.secrets),
    ...load.keyWriters.flatMap((writer) => writer.secrets),
  ];
  const ofDatabase = database.logFile === undefined ? [] : [database.logFile];
  for (const file of filesWithSecret([logFile, join(dataDir, 'logs'), ...ofDatabase], secrets))
    ledger.problem(`a secret is in ${file}`);
  if (ofDatabase.some((file) => readFileSync(file, 'utf8').includes('deadlock detected')))
    ledger.problem('the database had to end a deadlock');
}

async function isAuditIntact(ledger: Ledger, { database, dataDir }: Place): Promise<boolean> {
  const store = await openServiceStore({ location: database.location, secretKey: loadSecretKey(dataDir) }, Date.now);
  const brokenAt = await store.verifyAudit();
  await store.close();
  if (brokenAt !== undefined) ledger.problem(`the audit chain breaks at event ${brokenAt}`);
  return brokenAt === undefined;
}

function checkGrowth(ledger: Ledger, growth: Growth | undefined): void {
  if (growth === undefined) return;
  if (growth.residentGrowthMib > MAX_GROWTH_MIB)
    ledger.problem(`memory grew by ${growth.residentGrowthMib.toFixed(1)} MiB`);
  if (growth.descriptorGrowth > MAX_DESCRIPTOR_GROWTH)
    ledger.problem(`descriptors grew by ${growth.descriptorGrowth.toFixed(1)}`);
}

/** Runs everything, writes the page and returns the exit code. */
async function run(ledger: Ledger, place: Place, commit: string): Promise<number> {
  const load = await prepareLoad(ledger, place);
  await runLoad(place, load);
  ledger.note('the load has ended');
  await checkChanges(ledger, load);
  seeReplicas(place);
  await place.service.stop();

  const left = await remains(place);
  for (const text of left) ledger.problem(`left behind: ${text}`);
  checkLogs(ledger, place, load);
  const growth = load.samples.growth();
  checkGrowth(ledger, growth);
  const page = pageOf({
    database: place.database.name,
    minutes: MINUTES,
    seed: SEED,
    commit,
    ledger,
    isAuditIntact: await isAuditIntact(ledger, place),
    recoveries: load.injector.recoveries,
    growth,
    numRemains: left.length,
    logMessages: messagesOf(place.service.log),
  });
  if (values.out === undefined) process.stdout.write(page);
  else writeFileSync(values.out, page);
  return ledger.numProblems === 0 ? 0 : 1;
}

async function main(): Promise<number> {
  const commit = execFileSync('git', ['rev-parse', '--short', 'HEAD'], { cwd: __dirname, encoding: 'utf8' }).trim();
  const ledger = new Ledger();
  const place = await openPlace(ledger);
  const { folder, disk, service } = place;
  try {
    return await run(ledger, place, commit);
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
