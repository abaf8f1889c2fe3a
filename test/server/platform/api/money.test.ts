/** Routes of prices, budgets and costs, without a gateway. */
import { alice, overServices, service, statuses } from './suite';

const PRICE = { model: 'chat', input: '0.15', output: '0.6' };
const spendOf = (ownerId: string, keyId: string, model = '=1+1') => ({
  day: Math.floor(service.clock.now() / 86_400_000),
  ownerId,
  keyId,
  model,
  requests: 2,
  promptTokens: 10,
  cachedTokens: 0,
  completionTokens: 5,
  cost: 1_500_000_000n,
  estimated: 0n,
});

overServices(() => {
  test('administrators set prices, and everybody sees them', async () => {
    const root = await service.admin();
    const set = await root.send('PUT', '/api/v1/prices', PRICE);
    expect([set.status, set.body]).toEqual([
      200,
      expect.objectContaining({ ...PRICE, cached_input: '0.15', max_output_tokens: 16_384 }),
    ]);
    const again = await root.send('PUT', '/api/v1/prices', { ...PRICE, output: '0.7', cached_input: '0' });
    expect(again.body).toMatchObject({ id: set.body.id, output: '0.7', cached_input: '0' });
    expect((await root.send('PATCH', '/api/v1/prices', { currency: 'EUR' })).status).toBe(200);
    expect((await alice.get('/api/v1/prices')).body).toMatchObject({
      currency: 'EUR',
      data: [{ model: 'chat', output: '0.7' }],
    });
    expect(
      statuses([
        await alice.send('PUT', '/api/v1/prices', PRICE),
        await alice.send('PATCH', '/api/v1/prices', { currency: 'X' }),
        await alice.send('DELETE', `/api/v1/prices/${set.body.id as string}`),
        await root.send('PUT', '/api/v1/prices', { ...PRICE, input: '-1' }),
        await root.send('PUT', '/api/v1/prices', { ...PRICE, input: '9999999999' }),
        await root.send('PUT', '/api/v1/prices', { ...PRICE, input: 1 }),
        await root.send('PATCH', '/api/v1/prices', { currency: '=1' }),
        await root.send('DELETE', `/api/v1/prices/${set.body.id as string}`),
        await root.send('DELETE', `/api/v1/prices/${set.body.id as string}`),
      ]),
    ).toEqual([403, 403, 403, 400, 422, 400, 422, 204, 404]);
  });

  test('a user limits the own keys, and an administrator owners', async () => {
    const root = await service.admin();
    const key = (await alice.post('/api/v1/keys', { name: 'k' })).body.id as string;
    await service.store.recordSpend([spendOf(alice.userId, key, 'chat')], []);
    const made = await alice.post('/api/v1/budgets', { subject: key, amount: '10', period: 'month', alerts: [90, 50] });
    expect([made.status, made.body]).toEqual([
      201,
      expect.objectContaining({
        scope: 'key',
        key: { id: key, name: 'k' },
        amount: '10',
        spent: '1.5',
        reserved: '0',
        alerts: [50, 90],
        currency: 'USD',
      }),
    ]);
    const id = made.body.id as string;
    const owners = await root.post('/api/v1/budgets', { subject: alice.userId, amount: '0.5', period: 'total' });
    expect(owners.body).toMatchObject({ scope: 'owner', spent: '1.5', alerts: [80, 100], resets_at: null });
    expect(
      statuses([
        await alice.post('/api/v1/budgets', { subject: key, amount: '1', period: 'month' }),
        await alice.post('/api/v1/budgets', { subject: alice.userId, amount: '1', period: 'day' }),
        await alice.post('/api/v1/budgets', { subject: root.userId, amount: '1', period: 'day' }),
        await root.post('/api/v1/budgets', { subject: key, amount: '1', period: 'day' }),
        await alice.send('PATCH', `/api/v1/budgets/${owners.body.id as string}`, { amount: '9' }),
        await alice.send('DELETE', `/api/v1/budgets/${owners.body.id as string}`),
        await root.get(`/api/v1/budgets/${id}`),
        await alice.send('PATCH', `/api/v1/budgets/${id}`, { amount: '1e9' }),
        await alice.send('PATCH', `/api/v1/budgets/${id}`, { amount: '20' }, { 'if-match': '"1"' }),
      ]),
    ).toEqual([409, 403, 404, 404, 403, 403, 404, 400, 412]);
    const edited = await alice.send('PATCH', `/api/v1/budgets/${id}`, { amount: '20.25' });
    expect(edited.body).toMatchObject({ amount: '20.25', spent: '1.5' });
    expect((await alice.get('/api/v1/budgets')).body.data).toHaveLength(2);
    expect((await root.get('/api/v1/budgets')).body.data).toMatchObject([{ scope: 'owner' }]);
    expect((await alice.send('DELETE', `/api/v1/budgets/${id}`)).status).toBe(204);
    expect((await alice.get(`/api/v1/budgets/${id}`)).status).toBe(404);
  });

  test('costs are shown to the owner and to administrators', async () => {
    const root = await service.admin();
    const bob = await service.person('bob@example.com');
    await service.store.recordSpend([spendOf(alice.userId, ''), spendOf(alice.userId, '')], []);
    const report = await alice.get('/api/v1/spend');
    expect(report.body).toMatchObject({
      currency: 'USD',
      total: '3',
      data: [{ key: null, model: '=1+1', requests: 4, prompt_tokens: 20, cost: '3', owner: { id: alice.userId } }],
    });
    const csv = await alice.get('/api/v1/spend/csv');
    expect(csv.headers['content-type'] ?? csv.headers['Content-Type']).toContain('text/csv');
    expect(csv.text.split('\r\n')[1]).toMatch(/,'=1\+1,4,20,0,10,3,0,USD$/);
    expect((await bob.get('/api/v1/spend')).body).toMatchObject({ total: '0', data: [] });
    expect(
      statuses([
        await bob.get(`/api/v1/spend?owner=${alice.userId}`),
        await bob.get(`/api/v1/spend/csv?owner=${alice.userId}`),
        await root.get(`/api/v1/spend?owner=${alice.userId}`),
        await root.get(`/api/v1/spend?owner=usr_${'0'.repeat(26)}`),
        await alice.get('/api/v1/spend?from=2030-01-01&to=2029-01-01'),
        await alice.get('/api/v1/spend?from=2000-01-01&to=2029-01-01'),
        await alice.get('/api/v1/spend?from=2030-13-45'),
      ]),
    ).toEqual([404, 404, 200, 404, 422, 422, 422]);
  });
});
