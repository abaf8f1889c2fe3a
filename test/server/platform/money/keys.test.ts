/** Budgets of keys, through the API of all deployments. */
import { overBackends } from '../../access/support';
import { closeAll, echo, type Echo, errorOf, startReplica, until } from '../gateway/support';
import { migrated } from '../support';
import { Shop } from './support';

let shop: Shop;

overBackends((make) => {
  beforeEach(async () => {
    shop = await Shop.open(await make(migrated));
  });
  afterEach(async () => {
    await closeAll();
    await shop.close();
  });

  async function start() {
    const owner = { type: 'user' as const, name: 'alice@example.com' };
    const { id: deploymentId } = await shop.access.openDeployment(owner, 'chat');
    const create = (name: string) => shop.access.createKey({ owner, name, type: 'user-level' } as never);
    const [limited, other] = [await create('limited'), await create('other')];
    const bodies: string[] = [];
    const replica = await startReplica((request, response) => {
      echo(request, {
        setHeader: response.setHeader.bind(response),
        end: (text: string) => {
          // The gateway also asks for the list of models.
          const { body } = JSON.parse(text) as Echo;
          if (body !== '') bodies.push(body);
          response.end(JSON.stringify({ usage: { prompt_tokens: 10, completion_tokens: 5 } }));
        },
      } as never);
    });
    shop.deploy('chat', [replica], { deploymentId, accessControl: true });
    const ask = async (secret: string, body: object) => {
      const response = await shop.post('/v1/chat/completions', body, {
        headers: { Authorization: `Bearer ${secret}` },
      });
      return { status: response.status, text: await response.text() };
    };
    return { limited, other, bodies, ask };
  }

  test('limits one key, and the model within a deployment has a price', async () => {
    const { limited, other, bodies, ask } = await start();
    await shop.price({ model: 'chat', input: '1', output: '1' });
    await shop.price({ model: 'chat/big', input: '100', output: '100' });
    const key = await shop.budget({ subject: limited.key.id, amount: '0.003', period: 'day' });
    const owner = await shop.budget({ amount: '1', period: 'month' });
    const body = { messages: [], max_tokens: 20 };
    expect((await ask(limited.secret, { model: 'chat/big', ...body })).status).toBe(200);
    await until(() => shop.running.records.length === 1);
    // The model was renamed, and the limit lowered.
    expect(JSON.parse(bodies[0])).toEqual({ model: 'big', messages: [], max_tokens: expect.any(Number) as number });
    expect((JSON.parse(bodies[0]) as { max_tokens: number }).max_tokens).toBeLessThan(20);
    expect([(await shop.spent(key)).spent, (await shop.spent(owner)).spent]).toEqual([1_500_000n, 1_500_000n]);
    const refused = await ask(limited.secret, { model: 'chat/big', ...body });
    expect([refused.status, errorOf(refused.text).code]).toEqual([429, 'budget_exceeded']);
    expect((await ask(other.secret, { model: 'chat/big', ...body })).status).toBe(200);
    expect((await ask(limited.secret, { model: 'chat', ...body })).status).toBe(200);
    await until(() => shop.running.records.length === 4);
    expect(await shop.report()).toEqual({ chat: 15_000n, 'chat/big': 3_000_000n });
    expect((await shop.spent(owner)).spent).toBe(3_015_000n);
  });

  test('limits a long body whose model comes last', async () => {
    const { limited, bodies, ask } = await start();
    await shop.price({ model: 'chat', input: '0', output: '1' });
    await shop.budget({ subject: limited.key.id, amount: '0.000007', period: 'total' });
    const body = { padding: 'x'.repeat(1_500_000), messages: [], max_tokens: 20, model: 'chat' };
    expect((await ask(limited.secret, body)).status).toBe(200);
    expect(JSON.parse(bodies[0])).toEqual({ ...body, max_tokens: 7 });
  });
});
