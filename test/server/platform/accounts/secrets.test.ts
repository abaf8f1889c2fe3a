/** Sealed secrets, second factors, tokens and idempotency keys. */
import { randomBytes } from 'node:crypto';
import fs from 'node:fs';
import path from 'node:path';
import { createAccount } from '../../../../server/platform/accounts/accounts';
import { openServiceDatabase } from '../../../../server/platform/store/change';
import { loadSecretKey, SecretBox } from '../../../../server/platform/accounts/secret-box';
import { openServiceStore, type ServiceStore } from '../../../../server/platform/store/store';
import type { ServiceDb } from '../../../../server/platform/store/schema';
import { totpCode, totpStep } from '../../../../server/platform/accounts/totp';
import { overBackends, fakeClock, makeFolder, removeFolders } from '../../access/support';
import { migrated } from '../support';

const PASSWORD = 'correct horse battery';
const DAY = 86_400_000;
const FROM = { ip: '192.0.2.1', userAgent: 'test' };

describe('a secret key', () => {
  afterAll(removeFolders);

  test('is created once, readable only by its user, and kept', () => {
    const folder = makeFolder();
    const key = loadSecretKey(folder);
    const file = path.join(folder, 'secret.key');
    expect(key).toHaveLength(32);
    expect(fs.statSync(file).mode & 0o777).toBe(0o600);
    fs.chmodSync(file, 0o644);
    expect(loadSecretKey(folder).equals(key)).toBe(true);
    expect(fs.statSync(file).mode & 0o777).toBe(0o600);
    fs.writeFileSync(file, 'short');
    expect(() => loadSecretKey(folder)).toThrow('expected 32 bytes, got 5');
  });

  test('opens what it sealed, only for the same purpose', () => {
    const box = new SecretBox(randomBytes(32));
    const sealed = box.seal('gehëim', 'totp usr_a');
    expect(box.open(sealed, 'totp usr_a')).toBe('gehëim');
    expect(box.seal('gehëim', 'totp usr_a')).not.toBe(sealed);
    expect(Buffer.from(sealed, 'base64').toString('latin1')).not.toContain('hëim');
    const changed = Buffer.from(sealed, 'base64');
    changed[15] ^= 1;
    for (const open of [
      () => box.open(sealed, 'totp usr_b'),
      () => new SecretBox(randomBytes(32)).open(sealed, 'totp usr_a'),
      () => box.open(changed.toString('base64'), 'totp usr_a'),
      () => box.open('', 'totp usr_a'),
    ]) {
      expect(open).toThrow('cannot decrypt a stored secret');
    }
    expect(box.open(box.seal('', 'x'), 'x')).toBe('');
  });
});

describe('codes of a second factor', () => {
  /** RFC 6238, appendix B: the ASCII secret 12345678901234567890, SHA-1, the last six of its eight digits. */
  const SECRET = 'GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ';

  test.each([
    [59, '287082'],
    [1_111_111_109, '081804'],
    [1_111_111_111, '050471'],
    [1_234_567_890, '005924'],
    [2_000_000_000, '279037'],
    [20_000_000_000, '353130'],
  ])('at %d s', (seconds, code) => {
    expect(totpCode(SECRET, Math.floor(seconds / 30))).toBe(code);
  });

  test('are valid one step before and after, and only once', () => {
    const nowMs = 1_234_567_890_000;
    const step = Math.floor(nowMs / 30_000);
    expect([-2, -1, 0, 1, 2].map((offset) => totpStep(SECRET, totpCode(SECRET, step + offset), nowMs, null))).toEqual([
      undefined,
      step - 1,
      step,
      step + 1,
      undefined,
    ]);
    expect([step - 1, step, step + 1].map((last) => totpStep(SECRET, totpCode(SECRET, step), nowMs, last))).toEqual([
      step,
      undefined,
      undefined,
    ]);
    for (const wrong of ['', '00592', '0059240', 'abcdef', '００５９２４'])
      expect(totpStep(SECRET, wrong, nowMs, null)).toBeUndefined();
  });
});

overBackends((make) => {
  let store: ServiceStore;
  let db: ServiceDb;
  let clock: ReturnType<typeof fakeClock>;
  let userId: string;

  beforeEach(async () => {
    clock = fakeClock();
    const location = await make(migrated);
    store = await openServiceStore({ location, secretKey: randomBytes(32) }, clock.now);
    db = await openServiceDatabase(location);
    ({ userId } = await createAccount(db, { email: 'a@example.com', name: 'A', password: PASSWORD }, clock.now()));
  });
  afterEach(async () => {
    await store.close();
    await db.destroy();
  });

  const actor = () => ({ userId, isAdmin: false, via: 'session' as const, canWrite: true, ...FROM });

  test('management tokens are found by their secret while they are active', async () => {
    const { made, token } = await store.createToken(actor(), {
      name: 't',
      rights: 'read',
      expiresAt: clock.now() + DAY,
    });
    expect(await store.findToken(token, '192.0.2.9')).toEqual({
      tokenId: made.id,
      userId,
      isAdmin: false,
      rights: 'read',
    });
    expect(await store.listTokens(actor())).toMatchObject([
      { id: made.id, lastUsedIp: '192.0.2.9', lastUsedAt: clock.now() },
    ]);
    for (const wrong of ['', token.slice(1), `${token}x`, token.toLowerCase(), 'mt-', made.id])
      expect(await store.findToken(wrong, null)).toBeUndefined();
    clock.advance(DAY);
    expect(await store.findToken(token, null)).toBeUndefined();
    expect(await store.listTokens(actor())).toEqual([]);
    const { made: other, token: second } = await store.createToken(actor(), { name: 't', rights: 'write' });
    await expect(store.revokeToken({ ...actor(), userId: 'usr_x' }, other.id)).rejects.toMatchObject({
      code: 'not_found',
    });
    await store.revokeToken(actor(), other.id);
    expect(await store.findToken(second, null)).toBeUndefined();
    await expect(store.revokeToken(actor(), other.id)).rejects.toMatchObject({ code: 'not_found' });
  });

  test('a user has at most 100 management tokens', async () => {
    for (let i = 0; i < 100; i++) await store.createToken(actor(), { name: `t${i}`, rights: 'read' });
    await expect(store.createToken(actor(), { name: 'one more', rights: 'read' })).rejects.toMatchObject({
      code: 'quota_exceeded',
    });
  });

  test('a repeated request runs once and gets the same response', async () => {
    const begin = (request = 'POST /a') =>
      store.beginIdempotent(userId, 'k', request).catch((error: { code: string }) => error.code);
    // Either of two concurrent requests may be the first.
    expect(new Set(await Promise.all([begin(), begin()]))).toEqual(new Set([undefined, 'busy']));
    expect(await begin('POST /b')).toBe('invalid_argument');
    await store.endIdempotent(userId, 'k');
    expect(await begin('POST /b')).toBeUndefined();
    await store.endIdempotent(userId, 'k', { status: 201, body: '{"a":1}', location: '/a/1' });
    expect(await begin('POST /b')).toEqual({ status: 201, body: '{"a":1}', location: '/a/1' });
    clock.advance(DAY);
    expect(await begin()).toBeUndefined();
    // A process that died holds the key for at most ten minutes.
    clock.advance(600_000);
    expect(await begin()).toBeUndefined();
  });

  test('no value in the database works as a secret', async () => {
    const admin = { email: 'root@example.com', name: 'Root', password: PASSWORD };
    const { userId: adminId } = (await store.ensureFirstAdmin(admin))!;
    const { token } = await store.createToken(actor(), { name: 't', rights: 'write' });
    const { secret } = await store.startTotp(actor(), PASSWORD);
    const [recoveryCode] = await store.confirmTotp(actor(), totpCode(secret, Math.floor(clock.now() / 30_000)));
    const reset = await store.createPasswordReset({ ...actor(), isAdmin: true, userId: adminId }, userId);
    clock.advance(60_000);
    const session = await store.signIn(
      { email: 'a@example.com', password: PASSWORD, otp: totpCode(secret, Math.floor(clock.now() / 30_000)) },
      FROM,
    );
    const { secret: key } = await store.createKey({
      name: 'k',
      type: 'user-level',
      owner: { type: 'user', name: 'a@example.com' },
    });
    await store.beginIdempotent(userId, 'k', PASSWORD);
    const rows = await Promise.all(
      (
        [
          'accounts',
          'sessions',
          'management_tokens',
          'idempotency_keys',
          'api_keys',
          'api_key_secrets',
          'audit_events',
          'events',
          'login_attempts',
          'invitations',
          'bootstrap_links',
          'password_resets',
          'recovery_codes',
        ] as const
      ).map((table) => db.selectFrom(table).selectAll().execute()),
    );
    const dump = JSON.stringify(rows);
    for (const text of [PASSWORD, token, secret, session.token, session.csrfToken, key, recoveryCode, reset.token])
      expect(dump).not.toContain(text);
    // No stored value is accepted as a token.
    const values = new Set(
      rows
        .flat()
        .flatMap((row) => Object.values(row))
        .filter((value): value is string => typeof value === 'string'),
    );
    for (const value of values) {
      expect(await store.findSession(value)).toBeUndefined();
      expect(await store.findToken(value, null)).toBeUndefined();
      await expect(store.redeemPasswordReset(value, 'another password', FROM)).rejects.toMatchObject({ code: 'gone' });
    }
    const { password_hash: hash } = await db
      .selectFrom('accounts')
      .selectAll()
      .where('user_id', '=', userId)
      .executeTakeFirstOrThrow();
    await expect(store.signIn({ email: 'a@example.com', password: hash }, FROM)).rejects.toMatchObject({
      code: 'bad_credentials',
    });
  });
});
