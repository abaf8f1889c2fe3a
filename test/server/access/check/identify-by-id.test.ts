/** Keys that are found by their id, for requests without a client. */
import { Access } from '../../../../server/access';
import { ALICE, overSampleOfBackends } from '../support';

overSampleOfBackends((make) => {
  let access: Access;
  let chat: { id: string; ownerId: string };

  beforeAll(async () => {
    access = await Access.open({ location: await make() });
    chat = await access.openDeployment(ALICE, 'chat');
    await access.openDeployment(ALICE, 'other');
  });
  afterAll(() => access.close());

  const createKey = (name: string, fields: object = {}) =>
    access.createKey({ owner: ALICE, name, type: 'user-level', ...fields } as Parameters<Access['createKey']>[0]);

  test('the limits and bindings of the key hold', async () => {
    const { key } = await createKey('narrow', { limits: { rpm: null, tpm: null, parallel: 1 } });
    const identity = access.identifyById(key.id, '192.0.2.1');
    if (!identity.ok) throw new Error(identity.code);
    expect([identity.keyId, identity.ownerId]).toEqual([key.id, chat.ownerId]);
    const granted = identity.admit(chat);
    expect(granted).toMatchObject({ ok: true, keyId: key.id, ownerId: chat.ownerId });
    expect(identity.admit(chat)).toMatchObject({ ok: false, code: 'rate_limit_exceeded' });
    if (granted.ok) granted.done(3);
    expect(identity.admit(chat).ok).toBe(true);

    const bound = await createKey('bound', { type: 'deployment-level', deployments: ['other'] });
    const other = access.identifyById(bound.key.id, '192.0.2.1');
    expect(other.ok && other.admit(chat)).toMatchObject({ ok: false, code: 'permission_denied' });
    expect(other.ok && other.admit({ id: chat.id, ownerId: 'own_x' })).toMatchObject({ code: 'permission_denied' });
  });

  test('the address of the client counts', async () => {
    const { key } = await createKey('elsewhere', { allowedCidrs: ['192.0.2.0/24'] });
    expect(access.identifyById(key.id, '192.0.2.1').ok).toBe(true);
    expect(access.identifyById(key.id, '198.51.100.1')).toMatchObject({ ok: false, code: 'ip_not_allowed' });
  });

  test('a running request is cut when the key is disabled, but not when its secret changes', async () => {
    const { key } = await createKey('short');
    const identity = access.identifyById(key.id, '192.0.2.1');
    const granted = identity.ok ? identity.admit(chat) : identity;
    if (!granted.ok) throw new Error(granted.code);
    const { signal } = granted;
    await access.rotateKey(key.id, 0);
    expect(signal!.aborted).toBe(false);
    await access.setKeyEnabled(key.id, false);
    expect(signal!.aborted).toBe(true);
    expect(identity.ok && identity.admit(chat)).toMatchObject({ code: 'invalid_api_key' });
    for (const id of [key.id, 'key_unknown', '', 'fixed'])
      expect(access.identifyById(id, '192.0.2.1')).toMatchObject({ ok: false, code: 'invalid_api_key' });
  });
});
