import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import fs from 'node:fs';
import path from 'node:path';
import readline from 'node:readline';
import { Worker } from 'node:worker_threads';
import LibsqlDatabase from 'libsql';
import pg from 'pg';
import { Access, type AccessOptions } from '../../../server/access/access';
import type { CheckTarget } from '../../../server/access/check/check';
import { displayKey, generateKey } from '../../../server/base/key-format';
import type { DatabaseLocation } from '../../../server/access/store/location';
import type { Granted } from '../../../server/access/check/outcome';
import { type AccessStore, openStore } from '../../../server/access/store/store';
import {
  ACCESS_DIR,
  ALICE,
  BACKENDS,
  bearer,
  BOB,
  fakeClock,
  makeFolder,
  POSTGRES_URL,
  REGISTER,
  removeFolders,
  ROOT,
  runScript,
} from './support';

const opened: Access[] = [];
async function open(options: AccessOptions): Promise<Access> {
  const access = await Access.open({ pollMs: 50, ...options });
  opened.push(access);
  return access;
}

async function status(access: Access, key: string, target?: CheckTarget): Promise<number> {
  const outcome = await access.check(bearer(key), target);
  return outcome.ok ? 200 : outcome.status;
}

/**
 * A thread that also ends itself at the message `exit`. NOTE: `terminate()` may end it within a statement, and then
 * libsql aborts the process.
 */
const createThread = (location: DatabaseLocation) =>
  new Worker(
    `require('node:worker_threads').parentPort.on('message', (message) => message === 'exit' && process.exit());
    require(${JSON.stringify(REGISTER)});
    require(${JSON.stringify(path.join(ACCESS_DIR, 'store', 'store-thread.ts'))});`,
    { eval: true, workerData: location },
  );

/** A script with `openStore` and the location. It exits at the end of standard input. */
function startProcess(location: DatabaseLocation, body: string) {
  const script = `const { openStore } = require(${JSON.stringify(path.join(ACCESS_DIR, 'store', 'store.ts'))});
    const owner = { type: 'user', name: 'local' };
    (async () => { const store = await openStore(JSON.parse(process.argv[1])); ${body} })().catch((error) => { console.error(error); process.exit(98); });`;
  return spawn(process.execPath, ['-r', REGISTER, '-e', script, '--', JSON.stringify(location)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
}

// Run one after the other: two stores in one thread would block each other's lock.
afterEach(async () => {
  for (const access of opened.splice(0)) await access.close();
});
afterAll(async () => {
  for (const backend of BACKENDS) if (backend.isHere) await backend.dispose();
});

describe.each(BACKENDS)('a serving process over $name', ({ isHere, make }) => {
  const on = isHere ? test : test.skip;

  on('applies its own changes before they resolve, and those of another process soon', async () => {
    const location = await make();
    // In a worker thread, like a server: two stores in one thread would block each other's lock.
    const access = await open({ location, deployment: 'chat', createThread });
    expect(access.stats()).toMatchObject({ numKeys: 0 });
    const own = await access.createKey({ name: 'own', type: 'user-level', owner: ALICE });
    // Verified in this process: no argon2, so the outcome is synchronous.
    expect(access.check(bearer(own.secret))).toMatchObject({ ok: true, keyId: own.key.id, ownerId: own.key.owner.id });
    await access.setKeyEnabled('own', false);
    expect(await status(access, own.secret)).toBe(401);
    await access.setKeyEnabled('own', true);
    expect(access.check(bearer(own.secret))).toMatchObject({ ok: true });
    const rotated = await access.rotateKey('own', 60_000);
    for (const secret of [own.secret, rotated.secret]) expect(access.check(bearer(secret))).toMatchObject({ ok: true });
    await access.finishRotation('own');
    expect(await status(access, own.secret)).toBe(401);

    const other = await openStore(location);
    const made = await other.createKey({
      name: 'other',
      type: 'deployment-level',
      owner: ALICE,
      deployments: ['chat'],
    });
    const foreign = await other.createKey({ name: 'foreign', type: 'user-level', owner: BOB });
    expect(await status(access, made.secret)).toBe(200);
    expect(await status(access, foreign.secret)).toBe(403);
    await other.editKey('other', { deployments: ['search'] });
    await until(async () => (await status(access, made.secret)) === 403);
    await other.deleteKey('other');
    await until(async () => (await status(access, made.secret)) === 401);
    await other.deleteOwner({ type: 'user', id: foreign.key.owner.id });
    await until(async () => (await status(access, foreign.secret)) === 401);
    await other.close();
    await access.close();
    opened.length = 0;
    // `close` has written the last use.
    const after = await openStore(location);
    expect(await after.getKey('own')).toMatchObject({
      lastUsedIp: '192.0.2.7',
      lastUsedAt: expect.any(Number) as number,
    });
    await after.close();
  });

  on('detects changes without a revision', async () => {
    const location = await make();
    const monotonic = fakeClock(0);
    const warnings: string[] = [];
    const access = await open({
      location,
      monotonicMs: monotonic.now,
      maxStalenessMs: 300_000,
      log: { info: () => {}, warn: (_fields, message) => void warnings.push(message) },
    });
    const { secret, key } = await access.createKey({ name: 'k', type: 'user-level', owner: ALICE });
    await raw(location, `update api_keys set status = 'disabled' where id = '${key.id}'`);
    monotonic.advance(60_000);
    await access.sync();
    expect(await status(access, secret)).toBe(401);
    expect(warnings).toEqual(['the key database was changed without a revision; reloaded all keys']);
  });

  on('reloads everything after an older copy of the database is restored', async () => {
    const location = await make();
    const access = await open({ location, pollMs: 1_000_000 });
    const { secret, key } = await access.createKey({ name: 'k', type: 'user-level', owner: ALICE });
    const later = await access.createKey({ name: 'later', type: 'user-level', owner: ALICE });
    await access.editKey('k', { name: 'renamed' });
    const { rev } = await access.store.readState();
    await raw(
      location,
      `update api_keys set status = 'disabled', rev = 1 where id = '${key.id}'; delete from api_keys where id = '${later.key.id}'; update auth_state set rev = ${rev - 2}`,
    );
    await access.sync();
    expect(await status(access, secret)).toBe(401);
    expect(await status(access, later.secret)).toBe(401);
    expect(access.stats()).toMatchObject({ numKeys: 1, appliedRev: rev - 2 });
  });
});

describe.each(BACKENDS)('several processes over $name', ({ isHere, make }) => {
  const on = isHere ? test : test.skip;

  on('a follower that is further behind than the feed reloads everything', async () => {
    const location = await make();
    const access = await open({ location, pollMs: 1_000_000, createThread });
    const keep = await access.createKey({ name: 'keep', type: 'user-level', owner: ALICE });
    const gone = await access.createKey({ name: 'gone', type: 'user-level', owner: ALICE });
    for (const { secret } of [keep, gone]) expect(await status(access, secret)).toBe(200);
    const ahead = await openStore(location, () => Date.now() + 3 * 86_400_000);
    await ahead.deleteKey('gone');
    const made = await ahead.createKey({ name: 'made', type: 'user-level', owner: ALICE });
    // The feed is pruned at every 256th revision.
    const revisionBeforePruning = 'update auth_state set rev = rev - rev % 256 + 255';
    await raw(location, revisionBeforePruning);
    await ahead.setKeyEnabled('made', true);
    await ahead.close();
    const late = await openStore(location, () => Date.now() + 9 * 86_400_000);
    await raw(location, revisionBeforePruning);
    await late.setKeyEnabled('made', true);
    expect(await late.readChanges(1)).toMatchObject({ isComplete: false });
    await late.close();
    await access.sync();
    expect(await status(access, gone.secret)).toBe(401);
    expect(await status(access, keep.secret)).toBe(200);
    expect(await status(access, made.secret)).toBe(200);
    expect(access.stats().numKeys).toBe(2);
  });

  on('share a budget and abort a running request on revocation', async () => {
    const location = await make();
    const one = await open({ location, createThread });
    const { secret } = await one.createKey({
      name: 'k',
      type: 'user-level',
      owner: ALICE,
      budget: { tokens: 100, period: 'total' },
    });
    const running = (await one.check(bearer(secret))) as Granted;
    expect(running.signal?.aborted).toBe(false);
    const spent = (await one.check(bearer(secret))) as Granted;
    spent.done(100);
    expect(await one.check(bearer(secret))).toMatchObject({ status: 429, code: 'budget_exceeded' });
    // Written at shutdown and read by the next process.
    const other = await openStore(location);
    const aborted = once(running.signal as AbortSignal, 'abort');
    await other.deleteKey('k').then(() => other.close());
    await aborted;
    expect(running.signal?.reason).toMatchObject({ denial: { code: 'invalid_api_key' } });
    running.done(1);
  });

  on('spend only the rest of a budget that another process has left', async () => {
    const location = await make();
    const first = await open({ location, createThread });
    const { secret } = await first.createKey({
      name: 'k',
      type: 'user-level',
      owner: ALICE,
      budget: { tokens: 100, period: 'month' },
    });
    ((await first.check(bearer(secret))) as Granted).done(99);
    await first.close();
    const second = await open({ location, createThread });
    const last = (await second.check(bearer(secret))) as Granted;
    expect(last).toMatchObject({ ok: true });
    last.done(1);
    expect(second.check(bearer(secret))).toMatchObject({ code: 'budget_exceeded' });
    expect(await second.store.getKey('k')).toMatchObject({ budget: { used: 99 } });
  });

  on('the command changes the keys of a running server and reports that the server applied it', async () => {
    const location = await make();
    const access = await open({ location, createThread, deployment: 'chat' });
    const address = location.kind === 'file' ? location.file : location.url;
    const made = capstanKeys('create', '--name', 'cli', '--deployment', 'chat', '--keys-db', address);
    expect(await status(access, made)).toBe(200);
    await access.editKey('cli', { limits: { rpm: 1000 } });
    const rotated = capstanKeys('rotate', 'cli', '--grace', '1h', '--keys-db', address);
    expect(await status(access, rotated)).toBe(200);
    expect(await status(access, made)).toBe(200);
    const { rev } = await access.store.readState();
    expect(await access.propagation(rev)).toMatchObject({ rev, applied: 1, total: 1, maxLagMs: 0 });
    capstanKeys('disable', 'cli', '--keys-db', address);
    await until(async () => (await status(access, rotated)) === 401);
    expect((await access.store.readAudit({ action: 'key.created' }))[0]).toMatchObject({
      actor_type: 'system',
      actor_id: expect.stringMatching(/^cli:/) as string,
    });
  });
});

describe.each(BACKENDS)('without a poll, over $name', ({ isHere, make }) => {
  const on = isHere ? test.each : test.skip.each;
  const threads: [string, typeof createThread | undefined][] = [
    ['in this thread', undefined],
    ["in the store's thread", createThread],
  ];

  on(threads)('the changes of another process apply at once, %s', async (_name, thread) => {
    const location = await make();
    const access = await open({ location, pollMs: 1_000_000, createThread: thread });
    const other = await openStore(location);
    const { secret } = await other.createKey({ name: 'k', type: 'user-level', owner: ALICE });
    // The first request with the key already finds it.
    const running = (await access.check(bearer(secret))) as Granted;
    expect(running).toMatchObject({ ok: true });
    const rotated = await other.rotateKey('k', 0);
    const aborted = once(running.signal as AbortSignal, 'abort');
    expect(await status(access, rotated.secret)).toBe(200);
    await aborted;
    await other.setKeyEnabled('k', false);
    await until(async () => (await status(access, rotated.secret)) === 401);
    await other.setKeyEnabled('k', true);
    // A request waits a second for the changes, which is too short where the thread gets no processor.
    await until(async () => (await status(access, rotated.secret)) === 200);
    // Only a notification can show that a valid key is deleted.
    await other.deleteKey('k');
    await until(async () => (await status(access, rotated.secret)) === 401);
    await other.close();
  });
});

(POSTGRES_URL === '' ? describe.skip : describe)('PostgreSQL', () => {
  test('kill -9 while keys are written loses nothing that was acknowledged', async () => {
    const location = await BACKENDS[1].make();
    const acknowledged = await writeAndKill(location, 5);
    const store = await openStore(location);
    expect(await missing(store, acknowledged)).toEqual([]);
    expect(await store.verifyAudit()).toBeUndefined();
    await store.close();
  });
});

describe("the store's thread", () => {
  test('serves checks and changes, restores error classes, and restarts after it dies', async () => {
    let worker: Worker | undefined;
    const access = await open({
      location: await BACKENDS[0].make(),
      pollMs: 100_000,
      createThread: (location) => (worker = createThread(location)),
    });
    const { secret } = await access.createKey({ name: 'k', type: 'user-level', owner: ALICE });
    expect(access.check(bearer(secret))).toMatchObject({ ok: true });
    await expect(access.editKey('nobody', { name: 'x' })).rejects.toMatchObject({
      name: 'AccessError',
      code: 'not_found',
    });
    const ended = once(worker!, 'exit');
    worker?.postMessage('exit');
    const dying = access.store.listKeys();
    await expect(dying).rejects.toMatchObject({ code: 'database_error' });
    await ended;
    expect(access.check(bearer(secret))).toMatchObject({ ok: true });
    expect(await access.store.listKeys()).toHaveLength(1);
    await access.deleteKey('k');
    expect(await status(access, secret)).toBe(401);
    await access.close();
    await expect(access.store.listKeys()).rejects.toMatchObject({ code: 'database_error' });
  });

  test('a database that cannot be opened fails the start', async () => {
    const folder = makeFolder();
    await expect(Access.open({ location: { kind: 'file', file: folder }, createThread })).rejects.toMatchObject({
      code: 'database_error',
      message: expect.stringContaining(folder) as string,
    });
    removeFolders();
  });
});

describe('staleness', () => {
  test('refuses all keys once the feed is too old, at the latest after 300 s', async () => {
    const monotonic = fakeClock(0);
    // An open store has no notifications.
    const store = await openStore(await BACKENDS[0].make());
    const normal = await open({ store, pollMs: 1_000_000, monotonicMs: monotonic.now });
    const patient = await open({ store, pollMs: 1_000_000, monotonicMs: monotonic.now, maxStalenessMs: 10_000_000 });
    const { secret, key } = await normal.createKey({ name: 'k', type: 'user-level', owner: ALICE });
    const target = { id: 'dep_chat', ownerId: key.owner.id };
    await patient.sync();
    expect(await status(patient, secret, target)).toBe(200);
    monotonic.advance(60_000);
    expect(await status(normal, secret, target)).toBe(200);
    monotonic.advance(1);
    expect(await status(normal, secret, target)).toBe(503);
    expect(await status(patient, secret, target)).toBe(200);
    monotonic.advance(240_000);
    expect(await status(patient, secret, target)).toBe(503);
    await normal.sync();
    expect(await status(normal, secret, target)).toBe(200);
  });
});

describe('fixed keys', () => {
  test('work without a database', async () => {
    const access = await open({ apiKeys: ['one', 'two'] });
    expect(await Promise.all(['one', 'two', 'three', generateKey().secret].map((key) => status(access, key)))).toEqual([
      200, 200, 401, 401,
    ]);
    await expect(access.createKey({ name: 'k', type: 'user-level', owner: ALICE })).rejects.toMatchObject({
      code: 'database_error',
    });
  });

  test('work beside a database and are not listed', async () => {
    const access = await open({ apiKeys: ['one'], location: await BACKENDS[0].make() });
    const { secret } = await access.createKey({ name: 'k', type: 'user-level', owner: ALICE });
    expect(await Promise.all(['one', secret, 'two'].map((key) => status(access, key)))).toEqual([200, 200, 401]);
    expect(await access.store.listKeys()).toHaveLength(1);
  });

  test.each(['', 'a b', 'é', 'x'.repeat(201)])('%j is none, and is not echoed', async (key) => {
    const error = (await Access.open({ apiKeys: [key] }).catch((reason: unknown) => reason)) as Error;
    expect(error).toMatchObject({ code: 'invalid_argument' });
    if (key !== '' && key.length > 100) expect(error.message).not.toContain(key);
  });
});

describe('two processes', () => {
  test('kill -9 while keys are written loses nothing that was acknowledged', async () => {
    const location = await BACKENDS[0].make();
    const access = await open({ location });
    const acknowledged: Acknowledged[] = [];
    for (let round = 0; round < 3; round++) acknowledged.push(...(await writeAndKill(location, 4 + round * 3)));
    await access.sync();
    expect(await missing(access.store, acknowledged)).toEqual([]);
    expect(await access.store.verifyAudit()).toBeUndefined();
    for (const { secret } of acknowledged
      .filter(({ id }, _i, all) => all.filter((other) => other.id === id).length === 1)
      .slice(-2))
      expect(await status(access, secret)).toBe(403);
    if (location.kind !== 'file') throw new Error('a file');
    const raw = new LibsqlDatabase(location.file);
    expect(raw.pragma('integrity_check')).toEqual([{ integrity_check: 'ok' }]);
    // Each key is complete, with its secret and its binding.
    expect(
      raw
        .prepare(
          "select count(*) as n from api_keys where status <> 'deleted' and (id not in (select key_id from api_key_secrets) or id not in (select key_id from key_bindings))",
        )
        .all(),
    ).toEqual([{ n: 0 }]);
    expect(
      raw.prepare('select (select rev from auth_state) = (select max(rev) from auth_revisions) as same').all(),
    ).toEqual([{ same: 1 }]);
    raw.close();
  });

  test('two that create and write the same database at once both succeed', async () => {
    const location = await BACKENDS[0].make();
    const body =
      "for (let i = 0; i < 5; i++) await store.createKey({ name: `k${i}`, type: 'user-level', owner }); await store.close(); console.log('done');";
    const children = [startProcess(location, body), startProcess(location, body)];
    expect(await Promise.all(children.map((child) => once(child, 'exit')))).toEqual([
      [0, null],
      [0, null],
    ]);
    const store = await openStore(location);
    expect(await store.listKeys()).toHaveLength(10);
    expect(await store.readState()).toMatchObject({ rev: 10 });
    await store.close();
  });
});

describe('secrets', () => {
  test('are in no file, backup, error, log or listing', async () => {
    const location = await BACKENDS[0].make();
    if (location.kind !== 'file') throw new Error('a file');
    const seen: string[] = [];
    const log = {
      info: (...args: unknown[]) => void seen.push(JSON.stringify(args)),
      warn: (...args: unknown[]) => void seen.push(JSON.stringify(args)),
    };
    const access = await open({ location, log, apiKeys: ['fixed-secret-key'] });
    const { secret: first } = await access.createKey({ name: 'k', type: 'user-level', owner: ALICE });
    const { secret: second } = await access.rotateKey('k', 60_000);
    const secrets = [first, second];
    for (const secret of secrets) {
      for (const wrong of [
        secret,
        ` ${secret}`,
        `${secret}x`,
        secret.slice(0, -1),
        secret.toLowerCase(),
        `${secret} ${secret}`,
      ]) {
        seen.push(
          JSON.stringify(await access.check({ headers: [['authorization', `Bearer ${wrong}`]], remoteAddress: '::1' })),
        );
        const error = await access.editKey(wrong, { name: 'x' }).then(
          () => new Error('it was found'),
          (reason: Error) => reason,
        );
        seen.push(`${error.message} ${error.stack}`);
      }
    }
    seen.push(JSON.stringify(await access.store.listKeys()), JSON.stringify(access.stats()));
    const raw = new LibsqlDatabase(location.file);
    raw.exec(`vacuum into '${location.file}.backup'`);
    const hashes = raw.prepare('select hash from api_key_secrets').all() as { hash: string }[];
    raw.close();
    const names = fs.readdirSync(path.dirname(location.file));
    expect(names).toEqual(expect.arrayContaining(['keys.db', 'keys.db-wal', 'keys.db.backup']));
    for (const name of names) seen.push(fs.readFileSync(path.join(path.dirname(location.file), name), 'latin1'));
    expect(seen.length).toBeGreaterThan(25);
    // The random part, and each half of it.
    for (const secret of secrets)
      for (const part of [secret.slice(21, 37), secret.slice(37, 53)])
        for (const text of seen) expect(text.includes(part)).toBe(false);
    for (const text of seen) expect(text.includes('fixed-secret-key')).toBe(false);
    // A stored hash is not a valid key.
    for (const { hash } of hashes) expect(await status(access, hash)).toBe(401);
  });

  (POSTGRES_URL === '' ? test.skip : test)('are not in a dump of PostgreSQL', async () => {
    const location = await BACKENDS[1].make();
    if (location.kind !== 'postgres') throw new Error('an address');
    const store = await openStore(location);
    const { secret, key } = await store.createKey({ name: 'k', type: 'user-level', owner: ALICE });
    const schema = new URL(location.url).searchParams.get('options')?.split('=')[1] ?? '';
    const dump = spawnSync('pg_dump', ['--schema', schema, POSTGRES_URL], { encoding: 'utf8' }).stdout;
    expect(dump).toContain(key.id);
    expect(dump).not.toContain(secret.slice(21, 37));
    expect(dump).not.toContain(secret.slice(37, 53));
    await store.close();
  });
});

interface Acknowledged {
  id: string;
  secret: string;
  state: 'created' | 'disabled' | 'rotated' | 'deleted';
}

/** Runs a process that changes keys and prints a line after each change. Kills it after a number of lines. */
async function writeAndKill(location: DatabaseLocation, numWords: number): Promise<Acknowledged[]> {
  const child = startProcess(
    location,
    `const say = (id, secret, state) => console.log(JSON.stringify({ id, secret, state }));
    for (let i = 0; ; i++) {
      const { key: { id }, secret } = await store.createKey({ name: \`k\${i}\`, type: 'deployment-level', owner, deployments: ['chat'] });
      say(id, secret, 'created');
      if (i % 4 === 1) { await store.setKeyEnabled(id, false); say(id, secret, 'disabled'); }
      if (i % 4 === 2) { const made = await store.rotateKey(id, 0); say(id, made.secret, 'rotated'); }
      if (i % 4 === 3) { await store.deleteKey(id); say(id, secret, 'deleted'); }
    }`,
  );
  const words: Acknowledged[] = [];
  for await (const line of readline.createInterface({ input: child.stdout })) {
    words.push(JSON.parse(line) as Acknowledged);
    if (words.length >= numWords) child.kill('SIGKILL');
  }
  if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
  expect(child.signalCode).toBe('SIGKILL');
  return words;
}

/** Returns the acknowledged changes that the database lost. A later unacknowledged change is not a loss. */
async function missing(store: AccessStore, acknowledged: readonly Acknowledged[]): Promise<Acknowledged[]> {
  const keys = new Map((await store.listKeys({ includeDeleted: true })).map((key) => [key.id, key]));
  return acknowledged.filter(({ id, secret, state }) => {
    const key = keys.get(id);
    if (key === undefined) return true;
    if (state === 'deleted') return key.state !== 'deleted';
    if (state === 'rotated') return key.display !== displayKey(secret);
    return state === 'disabled' && key.state !== 'disabled';
  });
}

/** Runs `capstan keys …` in a separate process and returns its output. */
function capstanKeys(...args: string[]): string {
  const script = `const { Command } = require('commander'); const { addKeysCommand } = require(${JSON.stringify(path.join(ROOT, 'server', 'cli', 'commands', 'keys.ts'))});
    const program = new Command('capstan'); addKeysCommand(program); program.parseAsync(['keys', ...process.argv.slice(1)], { from: 'user' }).catch((error) => { console.error(error); process.exit(97); });`;
  const { status: code, stdout, stderr } = runScript(script, args);
  expect([code, stderr.includes('Error')]).toEqual([0, false]);
  return stdout.trim();
}

/** Runs SQL without the store. */
async function raw(location: DatabaseLocation, statements: string): Promise<void> {
  if (location.kind === 'file') {
    const database = new LibsqlDatabase(location.file);
    database.exec(statements);
    database.close();
    return;
  }
  const client = new pg.Client({ connectionString: location.url });
  await client.connect();
  await client.query(statements).finally(() => client.end());
}

async function until(condition: () => Promise<boolean>): Promise<void> {
  const deadline = performance.now() + 60_000;
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error('this did not come true in time');
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
