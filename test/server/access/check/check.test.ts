import type { KeyRecord } from '../../../../server/access/feed/feed';
import { BudgetMeter } from '../../../../server/access/check/budget';
import { type CheckTarget, KeyCheck } from '../../../../server/access/check/check';
import { CidrList } from '../../../../server/access/check/cidr';
import { FingerprintSlots, Fingerprinter } from '../../../../server/access/check/fingerprint';
import { RevokedError } from '../../../../server/access/check/grants';
import { generateKey } from '../../../../server/base/key-format';
import { KeyUses } from '../../../../server/access/check/uses';
import { KeyLimiter } from '../../../../server/access/check/limiter';
import type { AccessOutcome, Granted } from '../../../../server/access/check/outcome';
import { KeyTable } from '../../../../server/access/check/table';
import type { KeyLimits } from '../../../../server/access/keys/values';
import { addressBlock, Verifier } from '../../../../server/access/check/verifier';
import { bearer, fakeClock } from '../support';

const CHAT: CheckTarget = { id: 'dep_chat', ownerId: 'usr_alice' };
const SEARCH: CheckTarget = { id: 'dep_search', ownerId: 'usr_alice' };
const LAB_CHAT: CheckTarget = { id: 'dep_lab', ownerId: 'org_lab' };

/**
 * A check with a hand-filled table. The hash of a secret is the secret, and a verification waits until it is released.
 */
function setUp({ isCutting = true, trustedProxies }: { isCutting?: boolean; trustedProxies?: CidrList } = {}) {
  const clock = fakeClock();
  const monotonic = fakeClock(0);
  const table = new KeyTable();
  const uses = new KeyUses();
  const budgets = new BudgetMeter((keyId, sinceDay) => uses.unwrittenTokens(keyId, sinceDay));
  const state = { isFresh: true, verified: [] as string[], gate: Promise.resolve() };
  const check = new KeyCheck({
    table,
    uses,
    budgets,
    isCutting,
    trustedProxies,
    limiter: new KeyLimiter(monotonic.now),
    verifier: new Verifier({
      maxRunning: 2,
      maxWaiting: 3,
      maxFailuresPerMinute: 5,
      monotonicMs: monotonic.now,
      verify: async (hash, secret) => {
        state.verified.push(secret);
        await state.gate;
        return hash === secret;
      },
    }),
    now: clock.now,
    isFresh: () => state.isFresh,
  });
  let lastRev = 0;
  const put = (more: Partial<KeyRecord> = {}, key = generateKey()): KeyRecord & { text: string } => {
    const record = {
      id: `key_${key.publicId}`,
      publicId: key.publicId,
      ownerId: 'usr_alice',
      isEnabled: true,
      expiresAt: null,
      limits: null,
      allowedCidrs: null,
      budget: null,
      budgetUse: null,
      deployments: null,
      secrets: [{ version: 1, hash: key.secret, validUntil: null }],
      rev: ++lastRev,
      ...more,
    };
    table.apply(record);
    return { ...record, text: key.secret };
  };
  const ask = (text: string, target = CHAT) => check.check(bearer(text), target);
  const askAll = async (text: string, targets: readonly CheckTarget[]) => {
    const statuses: (number | string)[] = [];
    for (const target of targets) statuses.push(statusOf(await ask(text, target)));
    return statuses;
  };
  return { clock, monotonic, table, uses, budgets, state, check, put, ask, askAll };
}

function statusOf(outcome: AccessOutcome): number {
  return outcome.ok ? 200 : outcome.status;
}

describe('access to a deployment', () => {
  test.each([
    ["a user-level key reaches its owner's deployments", {}, [200, 200, 403]],
    ['a deployment-level key what it is bound to', { deployments: ['dep_chat'] }, [200, 403, 403]],
    ['one bound to several', { deployments: ['dep_search', 'dep_chat'] }, [200, 200, 403]],
    ['one without bindings nothing', { deployments: [] }, [403, 403, 403]],
    ["an organization's key the organization's", { ownerId: 'org_lab' }, [403, 403, 200]],
    ["another owner's binding does not help", { ownerId: 'usr_bob', deployments: ['dep_chat'] }, [403, 403, 403]],
    ['a disabled key nothing', { isEnabled: false }, [401, 401, 401]],
    ['an expired key nothing', { expiresAt: 1 }, [401, 401, 401]],
    ['a key without a secret nothing', { secrets: [] }, [401, 401, 401]],
  ])('%s', async (_name, more, expected) => {
    const { put, askAll } = setUp();
    const { text } = put(more);
    expect(await askAll(text, [CHAT, SEARCH, LAB_CHAT])).toEqual(expected);
    // Again with known fingerprints.
    expect(await askAll(text, [CHAT, SEARCH, LAB_CHAT])).toEqual(expected);
  });

  test('every 401 is the same and names the expected header', async () => {
    const { put, ask, check, state } = setUp();
    const good = put();
    await ask(good.text);
    const disabled = put({ isEnabled: false });
    const expired = put({ expiresAt: 5 });
    const denials = [
      check.check({ headers: [], remoteAddress: '' }, CHAT),
      ask('nonsense'),
      ask(`${good.text.slice(0, -1)}!`),
      ask(generateKey().secret),
      ask(generateKey(good.publicId).secret),
      ask(disabled.text),
      ask(expired.text),
    ];
    for (const denial of denials) expect(denial).toBe(denials[0]);
    expect(denials[0]).toMatchObject({
      status: 401,
      code: 'invalid_api_key',
      headers: { 'WWW-Authenticate': 'Bearer' },
    });
    expect(state.verified).toEqual([good.text]);
  });

  test('a denial reveals nothing about the key', async () => {
    const { put, ask } = setUp();
    const { text, publicId } = put({ deployments: [] });
    const outcome = JSON.stringify(await ask(text));
    expect(outcome).not.toContain(publicId);
    expect(outcome).toContain('permission_denied');
  });
});

describe('the first use of a key', () => {
  test('runs argon2 once; later uses and wrong secrets of a known key need none', async () => {
    const { put, ask, state } = setUp();
    const { text, id, publicId } = put();
    const first = ask(text);
    expect(first).toBeInstanceOf(Promise);
    expect(await first).toMatchObject({ ok: true, keyId: id, ownerId: 'usr_alice' });
    expect(ask(text)).toMatchObject({ ok: true });
    expect(ask(generateKey(publicId).secret)).toMatchObject({ status: 401 });
    expect(state.verified).toHaveLength(1);
  });

  test('a client that repeats an old secret costs one verification and does not slow down its address', async () => {
    const { put, ask, state } = setUp();
    const { publicId } = put();
    const old = generateKey(publicId).secret;
    expect(statusOf(await ask(old))).toBe(401);
    await Promise.all(Array.from({ length: 20 }, async () => ask(old)));
    expect(state.verified).toEqual([old]);
    const { text } = put();
    expect(statusOf(await ask(text))).toBe(200);
  });

  test('an earlier wrong secret does not affect the right one', async () => {
    const { put, ask, state } = setUp();
    const { text, publicId } = put();
    const [wrong, good] = await Promise.all([ask(generateKey(publicId).secret), ask(text)]);
    expect([statusOf(wrong), statusOf(good)]).toEqual([401, 200]);
    expect(state.verified).toHaveLength(2);
  });

  test('equal attempts share a run; too many different ones get 503 with Retry-After', async () => {
    const { put, ask, state } = setUp();
    let open = () => {};
    state.gate = new Promise((resolve) => {
      open = resolve;
    });
    const keys = Array.from({ length: 6 }, () => put());
    const asked = [...keys, keys[0], keys[0]].map(({ text }) => ask(text));
    await Promise.resolve();
    expect(state.verified).toHaveLength(2);
    expect(await asked[5]).toMatchObject({ status: 503, code: 'auth_unavailable', headers: { 'Retry-After': '1' } });
    open();
    const statuses = (await Promise.all(asked.map((outcome) => Promise.resolve(outcome)))).map(statusOf);
    expect(statuses).toEqual([200, 200, 200, 200, 200, 503, 200, 200]);
    expect(state.verified).toHaveLength(5);
    expect(await ask(keys[5].text)).toMatchObject({ ok: true });
  });

  test('limits an address that keeps failing, but not other addresses or known keys', async () => {
    const { put, ask, check, monotonic } = setUp();
    const known = put();
    await ask(known.text);
    const { publicId, text } = put();
    for (let i = 0; i < 5; i++) expect(await ask(generateKey(publicId).secret)).toMatchObject({ status: 401 });
    expect(await ask(generateKey(publicId).secret)).toMatchObject({
      status: 429,
      code: 'rate_limit_exceeded',
      headers: { 'Retry-After': '3' },
    });
    expect(ask(known.text)).toMatchObject({ ok: true });
    expect(ask('nonsense')).toMatchObject({ status: 401 });
    expect(ask(generateKey().secret)).toMatchObject({ status: 401 });
    expect(await check.check({ ...bearer(text), remoteAddress: '198.51.100.1' }, CHAT)).toMatchObject({ ok: true });
    const other = put();
    expect(await ask(other.text)).toMatchObject({ status: 429 });
    monotonic.advance(12_000);
    expect(await ask(other.text)).toMatchObject({ ok: true });
  });

  test.each([
    ['192.0.2.1', '192.0.2.1'],
    ['::ffff:192.0.2.1', '192.0.2.1'],
    ['2001:db8:1:2:3:4:5:6', '2001:db8:1:2'],
    ['2001:db8:1:2::9', '2001:db8:1:2'],
    ['2001:DB8:0001:2::', '2001:db8:1:2'],
    ['::1', '0:0:0:0'],
    ['fe80::1%eth0', 'fe80:0:0:0'],
    ['', ''],
  ])('%j is counted as %j', (address, expected) => expect(addressBlock(address)).toBe(expected));

  test('refuses a key that is deleted, disabled or rotated while argon2 runs', async () => {
    for (const change of ['remove', 'disable', 'rotate', 'stale'] as const) {
      const { put, ask, state, table } = setUp();
      let open = () => {};
      state.gate = new Promise((resolve) => {
        open = resolve;
      });
      const record = put();
      const asked = ask(record.text);
      if (change === 'remove') table.remove(record.id);
      if (change === 'disable') table.apply({ ...record, isEnabled: false, rev: 50 });
      if (change === 'rotate')
        table.apply({ ...record, secrets: [{ version: 2, hash: 'another', validUntil: null }], rev: 50 });
      if (change === 'stale') state.isFresh = false;
      open();
      expect([change, statusOf(await asked)]).toEqual([change, change === 'stale' ? 503 : 401]);
    }
  });
});

describe('changes', () => {
  test('apply to verified keys at the next request', async () => {
    const { put, ask, table, clock } = setUp();
    const record = put();
    await ask(record.text);
    table.apply({ ...record, deployments: ['dep_search'], rev: 10 });
    expect(ask(record.text)).toMatchObject({ status: 403 });
    table.apply({ ...record, expiresAt: clock.now() + 1000, rev: 11 });
    expect(ask(record.text)).toMatchObject({ ok: true });
    clock.advance(1000);
    expect(ask(record.text)).toMatchObject({ status: 401 });
    // The clock is set back: no verdict was cached.
    clock.advance(-1);
    expect(ask(record.text)).toMatchObject({ ok: true });
    table.apply({ ...record, isEnabled: false, rev: 12 });
    expect(ask(record.text)).toMatchObject({ status: 401 });
    table.apply({ ...record, rev: 13 });
    expect(ask(record.text)).toMatchObject({ ok: true });
    table.remove(record.id);
    expect(ask(record.text)).toMatchObject({ status: 401 });
  });

  test('an older record never overwrites a newer one', async () => {
    const { put, ask, table } = setUp();
    const record = put();
    await ask(record.text);
    table.apply({ ...record, isEnabled: false, rev: 10 });
    table.apply({ ...record, rev: 9 });
    expect(ask(record.text)).toMatchObject({ status: 401 });
  });

  test('both secrets of a rotation are valid during the grace period', async () => {
    const { put, ask, table, clock, state } = setUp();
    const record = put();
    await ask(record.text);
    const { secret } = generateKey(record.publicId);
    const rotated = {
      ...record,
      secrets: [
        { version: 2, hash: secret, validUntil: null },
        { version: 1, hash: record.text, validUntil: clock.now() + 1000 },
      ],
      rev: 10,
    };
    table.apply(rotated);
    expect(ask(record.text)).toMatchObject({ ok: true });
    expect(await ask(secret)).toMatchObject({ ok: true });
    expect(ask(secret)).toMatchObject({ ok: true });
    expect(state.verified).toEqual([record.text, secret]);
    clock.advance(1000);
    expect(ask(record.text)).toMatchObject({ status: 401 });
    expect(ask(secret)).toMatchObject({ ok: true });
    table.apply({ ...rotated, secrets: [rotated.secrets[0]], rev: 11 });
    expect(ask(record.text)).toMatchObject({ status: 401 });
    expect(ask(secret)).toMatchObject({ ok: true });
  });

  test('a secret created in this process needs no argon2', () => {
    const { put, ask, check, state } = setUp();
    const record = put();
    check.rememberSecret(record.publicId, 1, record.text);
    expect(ask(record.text)).toMatchObject({ ok: true });
    expect(state.verified).toEqual([]);
    // A second fingerprint for a version never replaces the first.
    check.rememberSecret(record.publicId, 1, generateKey(record.publicId).secret);
    expect(ask(record.text)).toMatchObject({ ok: true });
  });

  test('a table that is too old answers 503, and 401 for a malformed key', async () => {
    const { put, ask, state } = setUp();
    const { text } = put();
    await ask(text);
    state.isFresh = false;
    expect(ask(text)).toMatchObject({ status: 503, code: 'auth_unavailable' });
    expect(ask('nonsense')).toMatchObject({ status: 401 });
    state.isFresh = true;
    expect(ask(text)).toMatchObject({ ok: true });
  });

  test('agrees with a simple model over random changes', async () => {
    const { table, put, ask } = setUp();
    const records = new Map<string, KeyRecord & { text: string }>();
    let seed = 7;
    const random = (n: number) => (seed = (seed * 1103515245 + 12345) % 2147483648) % n;
    for (let i = 0; i < 600; i++) {
      const ids = [...records.keys()];
      const id = ids[random(ids.length || 1)];
      const action = ids.length < 5 ? 0 : random(5);
      if (action === 0) {
        const made = put({ rev: i + 1 });
        records.set(made.id, made);
      } else if (action === 1) {
        table.remove(id);
        records.delete(id);
      } else {
        const changed = {
          ...(records.get(id) as KeyRecord & { text: string }),
          rev: i + 1,
          isEnabled: random(2) === 0,
          deployments: random(2) === 0 ? null : ['dep_chat'],
          expiresAt: random(3) === 0 ? 5 : null,
        };
        records.set(id, changed);
        table.apply(changed);
      }
      const asked = records.get(ids[random(ids.length || 1)]);
      if (asked !== undefined)
        expect(statusOf(await ask(asked.text, SEARCH))).toBe(
          !asked.isEnabled || asked.expiresAt !== null ? 401 : asked.deployments === null ? 200 : 403,
        );
    }
    const all = [...records.values()];
    expect(table.size).toBe(all.length);
    expect(table.digest).toMatchObject({
      numKeys: all.length,
      numEnabled: all.filter(({ isEnabled }) => isEnabled).length,
      revSum: all.reduce((sum, { rev }) => sum + rev, 0),
      numSecrets: all.length,
    });
  });
});

describe('fixed keys', () => {
  test('are checked before the key format, belong to their owner, and need no table', () => {
    const { check, ask, state, put } = setUp();
    check.addFixed('secret', 'usr_alice');
    check.addFixed('~'.repeat(200), 'usr_alice');
    state.isFresh = false;
    expect(ask('secret')).toMatchObject({ ok: true, keyId: 'fixed', ownerId: 'usr_alice' });
    expect(ask('~'.repeat(200))).toMatchObject({ ok: true });
    expect(ask('secret', LAB_CHAT)).toMatchObject({ status: 403 });
    for (const wrong of ['Secret', 'secre', 'secretx', '~'.repeat(199)])
      expect(ask(wrong)).toMatchObject({ status: 401 });
    state.isFresh = true;
    return expect(Promise.resolve(ask(put().text))).resolves.toMatchObject({ ok: true });
  });
});

describe('limits', () => {
  const limited = async (limits: Partial<{ rpm: number; tpm: number; parallel: number }>) => {
    const parts = setUp();
    const { text, id } = parts.put({ limits: { rpm: null, tpm: null, parallel: null, ...limits } });
    ((await parts.ask(text)) as Granted).done(0);
    return { ...parts, text, id };
  };

  test('refuses more requests per minute than allowed', async () => {
    const { ask, text, monotonic } = await limited({ rpm: 3 });
    expect([ask(text), ask(text), ask(text)].map((outcome) => statusOf(outcome as AccessOutcome))).toEqual([
      200, 200, 429,
    ]);
    const refused = ask(text);
    expect(refused).toMatchObject({ code: 'rate_limit_exceeded', headers: { 'Retry-After': '61' } });
    monotonic.advance(60_000);
    expect(ask(text)).toMatchObject({ status: 429 });
    monotonic.advance(1_000);
    expect(ask(text)).toMatchObject({ ok: true });
    monotonic.advance(200_000);
    expect([ask(text), ask(text), ask(text), ask(text)].map((outcome) => statusOf(outcome as AccessOutcome))).toEqual([
      200, 200, 200, 429,
    ]);
  });

  test('admits a request after the Retry-After time', async () => {
    for (const rpm of [1, 2, 7, 60]) {
      const { ask, text, monotonic } = await limited({ rpm });
      for (let i = 0; i < 200; i++) {
        const outcome = ask(text) as AccessOutcome;
        if (outcome.ok) {
          monotonic.advance((i * 7919) % 9_000);
          continue;
        }
        monotonic.advance(Number(outcome.headers['Retry-After']) * 1000);
        expect(ask(text)).toMatchObject({ ok: true });
      }
    }
  });

  test('counts concurrent requests and releases each once', async () => {
    const { ask, text } = await limited({ parallel: 2 });
    const open = [ask(text), ask(text)] as Granted[];
    expect(ask(text)).toMatchObject({ status: 429, headers: { 'Retry-After': '1' } });
    open[0].done();
    open[0].done();
    const third = ask(text) as Granted;
    expect(third).toMatchObject({ ok: true });
    expect(ask(text)).toMatchObject({ status: 429 });
  });

  test('counts tokens per minute at the end of a request', async () => {
    const { ask, text, monotonic } = await limited({ tpm: 100 });
    (ask(text) as Granted).done(99);
    const last = ask(text) as Granted;
    expect(last).toMatchObject({ ok: true });
    last.done(500);
    expect(ask(text)).toMatchObject({ status: 429 });
    monotonic.advance(Number((ask(text) as { headers: Record<string, string> }).headers['Retry-After']) * 1000);
    expect(ask(text)).toMatchObject({ ok: true });
  });

  test('a denied request does not count, and idle keys are removed', async () => {
    const clock = fakeClock(0);
    const limiter = new KeyLimiter(clock.now);
    limiter.admit('a', { rpm: 1, tpm: null, parallel: null });
    const open = limiter.admit('b', { rpm: null, tpm: null, parallel: 1 }) as (tokens: number) => void;
    clock.advance(200_000);
    (limiter.admit('a', { rpm: 9, tpm: null, parallel: null }) as (tokens: number) => void)(0);
    limiter.sweep();
    expect(limiter.size).toBe(2);
    open(0);
    clock.advance(500_000);
    limiter.sweep();
    expect(limiter.size).toBe(1);
    const { ask, text } = await limited({ rpm: 2 });
    for (let i = 0; i < 5; i++) expect(ask(text, LAB_CHAT)).toMatchObject({ status: 403 });
    expect(ask(text)).toMatchObject({ ok: true });
  });
});

describe('addresses', () => {
  const from = (text: string, remoteAddress: string, ...forwarded: string[]) => ({
    headers: [...bearer(text).headers, ...forwarded.map((value) => ['x-forwarded-for', value] as [string, string])],
    remoteAddress,
  });

  test('checks allowed networks after access and before limits', async () => {
    const { put, check } = setUp();
    const { text } = put({
      allowedCidrs: ['10.0.0.0/8', '2001:db8::/32'],
      limits: { rpm: 1, tpm: null, parallel: null },
    });
    const ask = (address: string, target = CHAT) => check.check(from(text, address), target);
    expect(await ask('192.0.2.1')).toMatchObject({ status: 403, code: 'ip_not_allowed' });
    expect(ask('')).toMatchObject({ code: 'ip_not_allowed' });
    expect(ask('192.0.2.1', LAB_CHAT)).toMatchObject({ code: 'permission_denied' });
    expect(ask('::ffff:10.1.2.3')).toMatchObject({ ok: true });
    expect(ask('2001:db8::9')).toMatchObject({ status: 429 });
  });

  test('a damaged list in the database admits no address', async () => {
    const { put, ask } = setUp();
    expect(await ask(put({ allowedCidrs: [] }).text)).toMatchObject({ code: 'ip_not_allowed' });
    expect(await ask(put({ allowedCidrs: ['anything'] }).text)).toMatchObject({ code: 'ip_not_allowed' });
  });

  test('trusts X-Forwarded-For only from a trusted proxy', async () => {
    const { put, check, uses } = setUp({ trustedProxies: CidrList.parse('x', ['127.0.0.1', '10.0.0.0/8']) });
    const { text, id } = put({ allowedCidrs: ['198.51.100.0/24'] });
    expect(await check.check(from(text, '127.0.0.1', '198.51.100.7'), CHAT)).toMatchObject({ ok: true });
    expect(check.check(from(text, '192.0.2.1', '198.51.100.7'), CHAT)).toMatchObject({ status: 403 });
    expect(check.check(from(text, '127.0.0.1'), CHAT)).toMatchObject({ status: 403 });
    // Entries written by the client come before those of our proxies.
    expect(check.check(from(text, '127.0.0.1', '198.51.100.7, 203.0.113.5, 10.0.0.2'), CHAT)).toMatchObject({
      status: 403,
    });
    expect(check.check(from(text, '127.0.0.1', '203.0.113.5', '198.51.100.8, 10.0.0.2'), CHAT)).toMatchObject({
      ok: true,
    });
    await uses.flush(async ([use]) =>
      expect(use).toMatchObject({ keyId: id, address: '198.51.100.8', numRequests: 2 }),
    );
  });
});

describe('budgets', () => {
  const spend = (parts: ReturnType<typeof setUp>, text: string, tokens: number) =>
    (parts.ask(text) as Granted).done(tokens);

  test.each([
    ['day', '2027-01-16T00:00:00Z'],
    ['week', '2027-01-18T00:00:00Z'],
    ['month', '2027-02-01T00:00:00Z'],
  ] as const)('of a %s is spent by tokens and begins anew', async (period, resets) => {
    const parts = setUp();
    const { ask, clock, put } = parts;
    expect(new Date(clock.now()).toISOString()).toBe('2027-01-15T08:00:00.000Z');
    const { text } = put({ budget: { tokens: 100, period } });
    ((await ask(text)) as Granted).done(60);
    spend(parts, text, 60);
    const seconds = (Date.parse(resets) - clock.now()) / 1000;
    expect(ask(text)).toMatchObject({
      status: 429,
      code: 'budget_exceeded',
      message: expect.stringContaining(`100 tokens per ${period}`) as string,
      headers: { 'Retry-After': String(seconds) },
    });
    clock.advance(seconds * 1000 - 1);
    expect(ask(text)).toMatchObject({ code: 'budget_exceeded' });
    clock.advance(1);
    spend(parts, text, 1);
    expect(ask(text)).toMatchObject({ ok: true });
  });

  test('a clock that was a year ahead leaves budgets as they are', async () => {
    const { ask, put, budgets, clock } = setUp();
    const { text, id } = put({ budget: { tokens: 100, period: 'day' } });
    const sinceDay = Math.floor(clock.now() / 86_400_000);
    budgets.update({ keyId: id, period: 'day', sinceDay: sinceDay + 365, tokens: 1 });
    budgets.update({ keyId: id, period: 'day', sinceDay, tokens: 100 });
    expect(await ask(text)).toMatchObject({ code: 'budget_exceeded' });
  });

  test('a total budget never resets and can be raised', async () => {
    const parts = setUp();
    const record = parts.put({ budget: { tokens: 10, period: 'total' } });
    ((await parts.ask(record.text)) as Granted).done(10);
    parts.clock.advance(400 * 86_400_000);
    expect(parts.ask(record.text)).toMatchObject({ code: 'budget_exceeded', headers: {} });
    parts.table.apply({ ...record, budget: { tokens: 11, period: 'total' }, rev: 50 });
    expect(parts.ask(record.text)).toMatchObject({ ok: true });
  });

  test('counts the use of other processes once it is read, and counts tokens being written once', async () => {
    const parts = setUp();
    const { ask, put, budgets, uses, clock } = parts;
    const { text, id } = put({ budget: { tokens: 100, period: 'day' } });
    const sinceDay = Math.floor(clock.now() / 86_400_000);
    budgets.update({ keyId: id, period: 'day', sinceDay, tokens: 50 });
    ((await ask(text)) as Granted).done(40);
    const used = () => budgets.used(id, { tokens: 100, period: 'day' }, clock.now());
    await expect(
      uses.flush(async () => {
        expect(used()).toBe(90);
        throw new Error('disk');
      }),
    ).rejects.toThrow('disk');
    spend(parts, text, 5);
    await uses.flush(async (written) => {
      expect(written).toMatchObject([{ keyId: id, numTokens: 45, numRequests: 2 }]);
      budgets.update({ keyId: id, period: 'day', sinceDay, tokens: 99 });
    });
    expect(used()).toBe(99);
    // A result out of order, and one of yesterday.
    budgets.update({ keyId: id, period: 'day', sinceDay, tokens: 50 });
    budgets.update({ keyId: id, period: 'day', sinceDay: sinceDay - 1, tokens: 500 });
    expect(used()).toBe(99);
    budgets.update({ keyId: id, period: 'day', sinceDay, tokens: 100 });
    expect(ask(text)).toMatchObject({ code: 'budget_exceeded' });
    clock.advance(86_400_000);
    budgets.sweep(clock.now());
    expect(budgets.size).toBe(0);
  });

  test('unwritten tokens of yesterday do not count for today', async () => {
    const parts = setUp();
    const { text, id } = parts.put({ budget: { tokens: 10, period: 'day' } });
    ((await parts.ask(text)) as Granted).done(10);
    parts.clock.advance(86_400_000);
    spend(parts, text, 3);
    await parts.uses.flush(async (written) =>
      expect(written.map(({ keyId, numTokens }) => [keyId, numTokens])).toEqual([
        [id, 10],
        [id, 3],
      ]),
    );
  });
});

describe('a limit that is exceeded', () => {
  test.each<[Partial<KeyLimits>, string]>([
    [{ rpm: 2 }, 'limit of 2 requests per minute'],
    [{ tpm: 1 }, 'limit of 1 token per minute'],
    [{ parallel: 1 }, 'limit of 1 concurrent request'],
    [{ parallel: 3 }, 'limit of 3 concurrent requests'],
  ])('%j is named in the message in the singular or the plural', async (limit, text) => {
    const { put, ask } = setUp();
    const key = put({ limits: { rpm: null, tpm: null, parallel: null, ...limit } });
    let outcome = await ask(key.text);
    for (let i = 0; i < 5 && outcome.ok; i++) {
      if (limit.parallel === undefined) outcome.done(1);
      outcome = await ask(key.text);
    }
    expect(outcome).toMatchObject({ message: `This API key has reached its ${text}` });
  });

  test('is named in the message and the X-RateLimit headers', async () => {
    const { put, ask } = setUp();
    const { text } = put({ limits: { rpm: 1, tpm: null, parallel: null } });
    ((await ask(text)) as Granted).done();
    expect(ask(text)).toMatchObject({
      message: 'This API key has reached its limit of 1 request per minute',
      headers: {
        'X-RateLimit-Limit-requests': '1',
        'X-RateLimit-Remaining-requests': '0',
        'X-RateLimit-Reset-requests': expect.stringMatching(/^\d+s$/) as string,
      },
    });
  });
});

describe('running requests whose key loses access', () => {
  type Parts = ReturnType<typeof setUp>;
  const cases: [string, (parts: Parts, record: KeyRecord & { text: string }) => void, string][] = [
    ['deleted', ({ table }, { id }) => table.remove(id), 'invalid_api_key'],
    ['disabled', ({ table }, record) => table.apply({ ...record, isEnabled: false, rev: 50 }), 'invalid_api_key'],
    [
      'expired',
      ({ table, clock }, record) => {
        table.apply({ ...record, expiresAt: clock.now() + 10, rev: 50 });
        clock.advance(10);
      },
      'invalid_api_key',
    ],
    [
      'rotated away',
      ({ table }, record) =>
        table.apply({ ...record, secrets: [{ version: 2, hash: 'x', validUntil: null }], rev: 50 }),
      'invalid_api_key',
    ],
    [
      'at the end of a grace',
      ({ table, clock }, record) => {
        table.apply({
          ...record,
          secrets: [
            { version: 2, hash: 'x', validUntil: null },
            { version: 1, hash: '', validUntil: clock.now() + 10 },
          ],
          rev: 50,
        });
        clock.advance(10);
      },
      'invalid_api_key',
    ],
    [
      'unbound',
      ({ table }, record) => table.apply({ ...record, deployments: ['dep_search'], rev: 50 }),
      'permission_denied',
    ],
    [
      'kept from this address',
      ({ table }, record) => table.apply({ ...record, allowedCidrs: ['10.0.0.0/8'], rev: 50 }),
      'ip_not_allowed',
    ],
  ];

  test.each(cases)('are aborted: %s', async (_name, revoke, code) => {
    const parts = setUp();
    const record = parts.put({ deployments: ['dep_chat'] });
    const other = parts.put();
    const grants = [await parts.ask(record.text), parts.ask(record.text), await parts.ask(other.text)] as Granted[];
    const [first, late, unconcerned] = grants;
    const signals = [first.signal, unconcerned.signal];
    parts.check.recheck();
    expect(signals.map((signal) => signal?.aborted)).toEqual([false, false]);
    revoke(parts, record);
    parts.check.recheck();
    expect(signals.map((signal) => signal?.aborted)).toEqual([true, false]);
    expect(first.signal?.reason).toBeInstanceOf(RevokedError);
    expect(first.signal?.reason).toMatchObject({ denial: { code } });
    // The signal is created only now and is already aborted.
    expect(late.signal?.aborted).toBe(true);
    grants.forEach((grant) => grant.done());
    expect(parts.check.numWatched).toBe(0);
  });

  test.each([
    ['renamed', (record: KeyRecord) => ({ ...record, rev: 50 })],
    [
      'rotated with grace',
      (record: KeyRecord) => ({
        ...record,
        secrets: [
          { version: 2, hash: 'x', validUntil: null },
          { version: 1, hash: '', validUntil: 4e12 },
        ],
        rev: 50,
      }),
    ],
    [
      'limited',
      (record: KeyRecord) => ({
        ...record,
        limits: { rpm: 1, tpm: 1, parallel: 1 },
        budget: { tokens: 1, period: 'day' as const },
        rev: 50,
      }),
    ],
  ])('continue when the key was only %s', async (_name, edit) => {
    const { put, ask, table, check } = setUp();
    const record = put();
    const { signal } = (await ask(record.text)) as Granted;
    table.apply(edit(record));
    check.recheck();
    expect(signal?.aborted).toBe(false);
  });

  test('finish with isCutting off, and are no longer watched once done', async () => {
    const finishing = setUp({ isCutting: false });
    expect(((await finishing.ask(finishing.put().text)) as Granted).signal).toBeUndefined();
    const { put, ask, check, table } = setUp();
    const record = put();
    const grant = (await ask(record.text)) as Granted;
    const { signal } = grant;
    expect(check.numWatched).toBe(1);
    grant.done();
    expect(check.numWatched).toBe(0);
    table.remove(record.id);
    check.recheck();
    expect(signal?.aborted).toBe(false);
    check.addFixed('fixed', 'usr_alice');
    expect((ask('fixed') as Granted).signal).toBeUndefined();
  });
});

describe('the cost of a denial', () => {
  test('is the same for every wrong key: one fingerprint, two comparisons, no argon2', async () => {
    const parts = setUp();
    const { put, ask, clock, table, state } = parts;
    const plain = put();
    const disabled = put({ isEnabled: false });
    const expired = put({ expiresAt: 5 });
    const rotating = put();
    const elsewhere = put({ deployments: [] });
    for (const { text } of [plain, rotating, elsewhere]) await ask(text);
    const renewed = generateKey(rotating.publicId).secret;
    table.apply({
      ...rotating,
      secrets: [
        { version: 2, hash: renewed, validUntil: null },
        { version: 1, hash: rotating.text, validUntil: clock.now() + 1e9 },
      ],
      rev: 99,
    });
    await ask(renewed);
    const numVerified = state.verified.length;
    const fingerprints = jest.spyOn(Fingerprinter.prototype, 'of');
    const comparisons = jest.spyOn(FingerprintSlots.prototype, 'equals');
    const wrong: Record<string, () => string> = {
      'an unknown id': () => generateKey().secret,
      'a wrong secret': () => generateKey(plain.publicId).secret,
      'a wrong secret of a rotating key': () => generateKey(rotating.publicId).secret,
      'a wrong secret of a disabled key': () => generateKey(disabled.publicId).secret,
      'a disabled key': () => disabled.text,
      'an expired key': () => expired.text,
    };
    const costs = new Map<string, string>();
    for (let i = 0; i < 600; i++) {
      const names = Object.keys(wrong);
      const name = names[(i * 7919) % names.length];
      fingerprints.mockClear();
      comparisons.mockClear();
      const outcome = ask(wrong[name]());
      expect(outcome).toMatchObject({ status: 401 });
      const cost = `${fingerprints.mock.calls.length} fingerprints, ${comparisons.mock.calls.length} comparisons`;
      expect([name, costs.get(name) ?? cost]).toEqual([name, cost]);
      costs.set(name, cost);
    }
    expect(costs.size).toBe(Object.keys(wrong).length);
    expect(new Set(costs.values())).toEqual(new Set(['1 fingerprints, 2 comparisons']));
    expect(state.verified).toHaveLength(numVerified);
    // Anyone can recognize a malformed key, so it needs no look-up.
    for (const shapeless of ['', 'nonsense', `${plain.text.slice(0, -1)}!`]) {
      fingerprints.mockClear();
      comparisons.mockClear();
      expect(ask(shapeless)).toMatchObject({ status: 401 });
      expect([fingerprints.mock.calls.length, comparisons.mock.calls.length]).toEqual([0, 0]);
    }
    fingerprints.mockRestore();
    comparisons.mockRestore();
  });
});

describe('last use', () => {
  test('keeps the latest use, writes in batches, and retries after a failed write', async () => {
    const { put, ask, uses, clock } = setUp();
    const a = put();
    const b = put();
    await ask(a.text);
    await ask(b.text);
    clock.advance(5);
    void ask(a.text);
    void ask(generateKey().secret);
    await expect(uses.flush(() => Promise.reject(new Error('disk')))).rejects.toThrow('disk');
    clock.advance(5);
    void ask(b.text);
    const written: unknown[] = [];
    await uses.flush(async (uses) => void written.push(...uses));
    expect(written).toHaveLength(2);
    const day = Math.floor(clock.now() / 86_400_000);
    expect(written).toEqual(
      expect.arrayContaining([
        { keyId: a.id, atMs: clock.now() - 5, address: '192.0.2.7', day, numRequests: 2, numTokens: 0 },
        { keyId: b.id, atMs: clock.now(), address: '192.0.2.7', day, numRequests: 2, numTokens: 0 },
      ]),
    );
    await uses.flush(async () => {
      throw new Error('nothing to write');
    });
  });
});
