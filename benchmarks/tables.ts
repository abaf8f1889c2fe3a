// Measures the GET routes of the management API and the key check of the gateway with large tables: 1,000 deployments,
// 100,000 keys, 100,000 audit entries and 100,000 events.
//   node -r ./test/oracle/register-ts.cjs benchmarks/tables.ts [--keys 100000] [--deployments 1000]
//     [--rounds 100] [--only TEXT] [--out benchmarks/results/tables.md]
// If there is a Chromium (CHROMIUM_PATH, else in PATH) and a built console, it also measures the pages that show them.
// The store creates the deployments and the organization. Keys are copies of one key, because hashing each secret with
// argon2id would take an hour. Client and service share one process.
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { Agent, request } from 'node:http';
import os from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { chromium, type Page } from 'playwright-core';
import { Access } from '../server/access';
import { openDatabase } from '../server/access/store/database';
import { newId } from '../server/base/ids';
import { generateKey } from '../server/base/key-format';
import type { Db } from '../server/access/store/schema';
import { Api, API_PREFIX } from '../server/platform/api/api';
import type { ApiContext } from '../server/platform/api/context';
import { apiRoutes } from '../server/platform/api/routes';
import { ConsoleFiles } from '../server/platform/api/console-files';
import { Gateway } from '../server/platform/gateway/gateway';
import { newHistogram } from '../server/platform/usage/histogram';
import { Targets } from '../server/platform/gateway/targets';
import { createTransport } from '../server/http/create-transport';
import type { StreamHandler } from '../server/http/transport';
import { createLog } from '../server/base/log';
import type { ServiceActor } from '../server/platform/accounts/actor';
import type { Machine } from '../server/platform/deployments/machine';
import { openServiceStore, type ServiceStore } from '../server/platform/store/store';
import { findBrowser } from '../test/server/platform/console/browser';

const { values } = parseArgs({
  options: {
    keys: { type: 'string', default: '100000' },
    deployments: { type: 'string', default: '1000' },
    rounds: { type: 'string', default: '100' },
    only: { type: 'string', default: '' },
    out: { type: 'string' },
  },
});
const [numKeys, numDeployments, numRounds] = [values.keys, values.deployments, values.rounds].map(Number);
const NUM_EVENTS = 100_000;
const ROWS_PER_STATEMENT = 500;
const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
const PASSWORD = randomBytes(20).toString('hex');
const NUM_PAGE_ROUNDS = 10;
const folder = mkdtempSync(join(os.tmpdir(), 'capstan-tables-'));
const location = { kind: 'file', file: join(folder, 'capstan.db') } as const;
const log = createLog('error');

interface Filled {
  userId: string;
  orgId: string;
  deploymentIds: string[];
  keyId: string;
  secret: string;
  token: string;
}

async function fill(store: ServiceStore): Promise<Filled> {
  const { userId } = (await store.ensureFirstAdmin({ email: 'root@example.com', name: 'Root', password: PASSWORD }))!;
  const actor: ServiceActor = { userId, isAdmin: true, via: 'session', canWrite: true, ip: null, userAgent: null };
  const { token } = await store.createToken(actor, { name: 'bench', rights: 'write' });
  const { id: orgId } = await store.createOrganization(actor, { slug: 'acme', name: 'Acme' });
  const deploymentIds: string[] = [];
  for (let i = 0; i < numDeployments; i++) {
    const owner = i % 2 === 0 ? {} : { owner: { type: 'org', id: orgId } as const };
    deploymentIds.push(
      (await store.createDeployment(actor, { name: `deployment ${i}`, access_control: true, ...owner })).id,
    );
  }
  const db = await openDatabase(location);
  const { name } = await db.selectFrom('users').select('name').where('id', '=', userId).executeTakeFirstOrThrow();
  const { key, secret } = await store.createKey({ owner: { type: 'user', name }, name: 'first', type: 'user-level' });
  await copyKeys(db, key.id, [userId, orgId], deploymentIds);
  await addEvents(db, orgId, deploymentIds);
  await db.destroy();
  await addUsage(store, deploymentIds[0], key.id);
  return { userId, orgId, deploymentIds, keyId: key.id, secret, token };
}

/** Inserts rows in batches. */
async function insertRows<T>(
  count: number,
  row: (i: number) => T,
  insert: (rows: T[]) => Promise<unknown>,
): Promise<void> {
  for (let start = 0; start < count; start += ROWS_PER_STATEMENT)
    await insert(Array.from({ length: Math.min(ROWS_PER_STATEMENT, count - start) }, (_, i) => row(start + i)));
}

/** Copies a key. One in five is deployment-level. Names and times are in no order. */
async function copyKeys(db: Db, keyId: string, [userId, orgId]: string[], deploymentIds: string[]): Promise<void> {
  const key = await db.selectFrom('api_keys').selectAll().where('id', '=', keyId).executeTakeFirstOrThrow();
  const secret = await db
    .selectFrom('api_key_secrets')
    .selectAll()
    .where('key_id', '=', keyId)
    .executeTakeFirstOrThrow();
  const nowMs = Date.now();
  const rows = Array.from({ length: numKeys - 1 }, (_, i) => {
    const atMs = nowMs - Math.floor((((i * 7_919) % numKeys) / numKeys) * 365 * DAY_MS);
    const { publicId } = generateKey();
    const isOrg = i % 2 === 1;
    return {
      ...key,
      id: newId('key', atMs),
      public_id: publicId,
      owner_type: isOrg ? ('org' as const) : ('user' as const),
      owner_id: isOrg ? orgId : userId,
      name: `key ${(i * 104_729) % numKeys}`,
      type: i % 10 < 2 ? ('deployment-level' as const) : ('user-level' as const),
      display: `sk-cap1_${publicId}_…abcd`,
      status: i % 50 < 2 ? ('disabled' as const) : ('active' as const),
      created_at: atMs,
      updated_at: atMs,
      last_used_at: i % 3 === 0 ? null : atMs + HOUR_MS,
      expires_at: i % 4 === 0 ? nowMs + i * 1_000 : null,
      rev: key.rev,
    };
  });
  await insertRows(
    rows.length,
    (i) => rows[i],
    (some) => db.insertInto('api_keys').values(some).execute(),
  );
  await insertRows(
    rows.length,
    (i) => ({ ...secret, key_id: rows[i].id }),
    (some) => db.insertInto('api_key_secrets').values(some).execute(),
  );
  const bound = rows.map((row, i) => ({ row, i })).filter(({ row }) => row.type === 'deployment-level');
  await insertRows(
    bound.length,
    (i) => ({
      key_id: bound[i].row.id,
      deployment_id: deploymentIds[((bound[i].i % 2) + 2 * i) % numDeployments],
      created_at: nowMs,
    }),
    (some) => db.insertInto('key_bindings').values(some).execute(),
  );
}

async function addEvents(db: Db, orgId: string, deploymentIds: string[]): Promise<void> {
  const state = await db.selectFrom('auth_state').selectAll().executeTakeFirstOrThrow();
  const targetOf = (i: number) => deploymentIds[(i * 31) % numDeployments];
  const common = { at: Date.now(), target_type: 'deployment' as const };
  await insertRows(
    NUM_EVENTS,
    (i) => ({
      ...common,
      seq: state.audit_seq + 1 + i,
      id: newId('aud'),
      actor_type: 'user' as const,
      actor_id: `usr_${i % 100}`,
      org_id: i % 2 === 0 ? null : orgId,
      action: `deployment.${['created', 'edited', 'stopped', 'started'][i % 4]}`,
      target_id: targetOf(i),
      ip: null,
      user_agent: null,
      before: null,
      after: '{"name":"deployment"}',
      result: 'ok' as const,
      prev_hash: 'x',
      hash: 'x',
    }),
    (some) => db.insertInto('audit_events').values(some).execute(),
  );
  await insertRows(
    NUM_EVENTS,
    (i) => ({
      ...common,
      seq: state.event_seq + 1 + i,
      type: 'version.queued',
      owner_id: orgId,
      target_id: targetOf(i),
      data: '{"version":1}',
    }),
    (some) => db.insertInto('events').values(some).execute(),
  );
  await db
    .updateTable('auth_state')
    .set({ audit_seq: state.audit_seq + NUM_EVENTS, event_seq: state.event_seq + NUM_EVENTS })
    .execute();
}

/** Adds one day of usage of a deployment, with one row per minute and status class. */
async function addUsage(store: ServiceStore, deploymentId: string, keyId: string): Promise<void> {
  const minute = Math.floor(Date.now() / 60_000);
  const counts = {
    requests: 100,
    requestsWithUsage: 100,
    promptTokens: 1_000,
    completionTokens: 1_000,
    cachedTokens: 10,
    latency: newHistogram(),
    firstByte: newHistogram(),
  };
  const rollups = Array.from({ length: 24 * 60 }, (_, i) =>
    [2, 4].map((statusClass) => ({ ...counts, minute: minute - i, deploymentId, keyId, statusClass })),
  ).flat();
  await store.recordUsage(rollups);
}

const agent = new Agent({ keepAlive: true });

function get(port: number, path: string, bearer: string): Promise<{ status: number; text: string; ms: number }> {
  return new Promise((resolve, reject) => {
    const startedMs = performance.now();
    request({ agent, port, host: '127.0.0.1', path, headers: { Authorization: `Bearer ${bearer}` } }, (response) => {
      let text = '';
      response.setEncoding('utf8');
      response.on('data', (chunk: string) => {
        text += chunk;
      });
      response.on('end', () => resolve({ status: response.statusCode!, text, ms: performance.now() - startedMs }));
    })
      .on('error', reject)
      .end();
  });
}

/** Queries to measure in addition to the plain path. */
const VARIANTS: Readonly<Record<string, readonly string[]>> = {
  '/api/v1/deployments': ['limit=100', 'q=99', 'q=nowhere', 'state=pending,running', 'state=failed', 'owner=org:{org}'],
  '/api/v1/keys': [
    'limit=100',
    'q=99',
    'q=nowhere',
    'scope=org&org={org}',
    'scope=org&org={org}&q=nowhere',
    'scope=deployment&deployment={id}',
    'scope=deployment&deployment={id}&q=nowhere',
    'include_deleted=true',
    ...['created', 'name', 'last-used', 'expires'].flatMap((sort) => [
      `sort=${sort}&order=asc`,
      `sort=${sort}&order=desc`,
    ]),
  ],
  '/api/v1/audit': [
    'limit=100',
    'org={org}',
    'actor=usr_7',
    'actor=usr_none',
    'action=deployment.stopped',
    'action=none',
    'target={id}',
    'from=2100-01-01T00:00:00Z',
  ],
  '/api/v1/deployments/{id}/metrics': ['step=60'],
};
const STREAMS = /\/(?:stream|follow|download|logs)$/;

function pathsOf({ orgId, deploymentIds, keyId }: Filled): string[] {
  const fillIn = (path: string, isKey: boolean) =>
    path
      .replace('{org}', orgId)
      .replace('{rev}', '1')
      .replace('{n}', '1')
      .replace('{id}', isKey ? keyId : deploymentIds[0]);
  return apiRoutes()
    .filter(
      ({ method, path }) =>
        method === 'GET' &&
        !STREAMS.test(path) &&
        !/containers\/|data-sources\/|webhooks\/|quotas\/|sessions/.test(path),
    )
    .flatMap(({ path }) => {
      const filled = fillIn(path, path.includes('/keys/'));
      return [filled, ...(VARIANTS[path] ?? []).map((query) => `${filled}?${fillIn(query, false)}`)];
    })
    .filter((path) => path.includes(values.only));
}

const quantile = (numbers: readonly number[], q: number): number =>
  [...numbers].sort((a, b) => a - b)[Math.min(numbers.length - 1, Math.floor(numbers.length * q))];
const lines: string[] = [];
function row(...cells: string[]): void {
  lines.push(`| ${cells.join(' | ')} |`);
  process.stdout.write(`${lines.at(-1)}\n`);
}

/** Measures the first page repeatedly, and then the pages after it. */
async function measure(port: number, path: string, { token, orgId, deploymentIds, keyId }: Filled): Promise<void> {
  const shown = path.replace(orgId, 'ORG').replace(deploymentIds[0], 'ID').replace(keyId, 'KEY').replace('/api/v1', '');
  const first = await get(port, path, token);
  if (first.status !== 200) return row(shown, `status ${first.status}`, '', '');
  const same: number[] = [];
  for (let i = 0; i < numRounds; i++) same.push((await get(port, path, token)).ms);
  const next: number[] = [];
  let cursor = (JSON.parse(first.text) as { next?: string | null }).next ?? null;
  for (let i = 0; i < numRounds && cursor !== null; i++) {
    const page = await get(port, `${path}${path.includes('?') ? '&' : '?'}after=${encodeURIComponent(cursor)}`, token);
    next.push(page.ms);
    cursor = (JSON.parse(page.text) as { next: string | null }).next;
  }
  const times = (all: readonly number[]) =>
    all.length === 0 ? 'one page' : `${quantile(all, 0.5).toFixed(1)} / ${quantile(all, 0.99).toFixed(1)} ms`;
  row(shown, times(same), times(next), `${(first.text.length / 1024).toFixed(0)} KiB`);
}

async function checkKeys(port: number, slug: string, { secret }: Filled): Promise<void> {
  const cold = await get(port, `/d/${slug}/v1/models`, secret);
  const warm: number[] = [];
  for (let i = 0; i < numRounds * 10; i++) warm.push((await get(port, `/d/${slug}/v1/models`, secret)).ms);
  row(
    `gateway, status ${cold.status}: first check of a key ${cold.ms.toFixed(1)} ms; later checks`,
    `${quantile(warm, 0.5).toFixed(2)} / ${quantile(warm, 0.99).toFixed(2)} ms`,
    '',
    '',
  );
}

/** Measures from navigation until a page shows its data. The browser has cached the console's files. */
async function openPages(url: string, { orgId, deploymentIds }: Filled): Promise<void> {
  const browser = await chromium.launch({ executablePath: findBrowser()!, args: ['--no-sandbox'] });
  const page = await browser.newPage();
  await page.goto(url);
  await page.fill('input[type=email]', 'root@example.com');
  await page.fill('input[type=password]', PASSWORD);
  await page.press('input[type=password]', 'Enter');
  await waitUntilLoaded(page);
  const id = deploymentIds[0];
  for (const path of [
    '/deployments',
    '/deployments?q=99',
    `/deployments/${id}`,
    `/deployments/${id}/metrics`,
    `/deployments/${id}/access`,
    '/account/keys',
    `/orgs/${orgId}/keys`,
    '/audit',
  ]) {
    const times: number[] = [];
    for (let i = 0; i <= NUM_PAGE_ROUNDS; i++) {
      const startedMs = performance.now();
      await page.goto(url + path);
      await waitUntilLoaded(page);
      if (i > 0) times.push(performance.now() - startedMs);
    }
    row(
      `page ${path.replace(orgId, 'ORG').replace(id, 'ID')} in a browser`,
      `${quantile(times, 0.5).toFixed(0)} / ${Math.max(...times).toFixed(0)} ms`,
      '',
      '',
    );
  }
  await browser.close();
}

/** Waits until the page shows its data. Polls from outside, because the page's CSP forbids waiting inside it. */
async function waitUntilLoaded(page: Page): Promise<void> {
  await page.waitForSelector('h1');
  while (!(await page.evaluate<boolean>(`document.querySelector('.skeleton, input[type=password]') === null`)))
    await new Promise((resolve) => setTimeout(resolve, 5));
}

async function listen(handler: StreamHandler): Promise<number> {
  return (
    await createTransport('uws', { handler, maxBodyBytes: 1 << 20, bodyTimeoutMs: 60_000, streamsBodies: true })
  ).listen('127.0.0.1', 0);
}

void (async () => {
  const machine = {
    driver: 'process',
    isolation: { level: 'L2' as const, reason: 'a benchmark' },
    capacity: { cpuMillis: 1_000_000_000, memoryMb: 1_000_000_000, gpus: [] },
    dataRoots: [],
    allowsUnisolated: false,
  } satisfies Machine;
  const options = { location, secretKey: randomBytes(32), version: '0.0.0', machine };
  const startedMs = performance.now();
  const filling = await openServiceStore(options);
  const filled = await fill(filling);
  await filling.close();
  process.stdout.write(`filled in ${((performance.now() - startedMs) / 1000).toFixed(0)} s\n`);
  const openedMs = performance.now();
  const store = await openServiceStore(options);
  const access = await Access.open({ store, log });
  const openMs = performance.now() - openedMs;
  const targets = new Targets();
  const replica = await listen((_request, reply) => {
    reply.send(200, { 'Content-Type': 'application/json' }, '{"data":[]}');
    return Promise.resolve();
  });
  filled.deploymentIds.forEach((deploymentId, i) =>
    targets.set({
      deploymentId,
      name: null,
      aliases: [],
      fallbacks: [],
      fallbackAfterMs: null,
      createdMs: 0,
      slug: `d${i}`,
      ownerId: i % 2 === 0 ? filled.userId : filled.orgId,
      accessControl: true,
      state: 'running',
      coldStartWaitMs: 1,
      cacheScope: 'key',
      replicas: [
        { id: `rep_${i}`, address: { type: 'tcp', host: '127.0.0.1', port: replica }, secret: 's', isBuiltin: false },
      ],
    }),
  );
  const gateway = new Gateway({ targets, control: { wake: () => {}, onOpenRequests: () => {} }, access, log });
  const ownOrigins: string[] = [];
  const context = {
    store,
    access,
    log,
    now: Date.now,
    serving: { targets, gateway, urlOf: (slug: string) => `http://127.0.0.1/d/${slug}` },
    settings: { isSecure: false, ownOrigins, trustedProxies: [] },
  } as unknown as ApiContext;
  const api = new Api({ routes: apiRoutes(), context });
  const files = new ConsoleFiles(join(__dirname, '../dist/server/platform/console'), { isSecure: false });
  const port = await listen((incoming, reply) =>
    (incoming.path.startsWith(API_PREFIX) ? api : files).handle(incoming, reply),
  );
  ownOrigins.push(`http://127.0.0.1:${port}`);
  row('route', 'first page, p50 / p99', 'later pages, p50 / p99', 'size');
  row('---', '---', '---', '---');
  for (const path of pathsOf(filled)) await measure(port, path, filled);
  if (values.only === '') await checkKeys(await listen(gateway.handle), 'd0', filled);
  if (files.isBuilt && findBrowser() !== undefined) await openPages(ownOrigins[0], filled);
  const head = [
    '# Large tables',
    '',
    `\`node -r ./test/oracle/register-ts.cjs benchmarks/tables.ts\` on ${os.cpus().length} cores (${os.cpus()[0].model.trim()}), Node ${process.version}, load ${os.loadavg()[0].toFixed(1)} at the end, on ${new Date().toISOString().slice(0, 10)}: ${numDeployments} deployments and ${numKeys} keys of one user and one organization in`,
    `equal parts, ${NUM_EVENTS} audit entries, ${NUM_EVENTS} events, and one day of usage of one deployment. libsql. Client, API and database share one process. ${numRounds} requests each. Opening the store and reading the keys into memory takes ${(openMs / 1000).toFixed(1)} s.`,
    '',
  ];
  if (values.out !== undefined) writeFileSync(values.out, `${[...head, ...lines].join('\n')}\n`);
  rmSync(folder, { recursive: true, force: true });
  process.exit();
})();
