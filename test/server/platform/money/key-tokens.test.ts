/** Budgets in tokens of keys whose clients leave before the response reports its usage. */
import type { ServerResponse } from 'node:http';
import { Engine } from '../../../../ts';
import { BACKENDS } from '../../access/support';
import { migrated } from '../support';
import { fake } from '../../../fakes/fake-addon';
import { tinyModel } from '../../../fakes/tiny-model';
import { closeAll, errorOf, startReplica, until } from '../gateway/support';
import { chunk, listen, upstream, withBody } from '../gateway/upstream-support';
import { question, Shop } from './support';

let engine: Engine;
let shop: Shop;

beforeAll(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../../../fakes/fake-addon');
  engine = await Engine.load(tinyModel());
});
beforeEach(async () => {
  fake.reset();
  shop = await Shop.open(await BACKENDS[0].make(migrated));
});
afterEach(async () => {
  await closeAll();
  await shop.close();
});
afterAll(async () => {
  await engine.close();
  await BACKENDS[0].dispose();
});

/** A stream that does not end. */
const endless = withBody((_body, response: ServerResponse) => {
  response.writeHead(200, { 'Content-Type': 'text/event-stream' });
  for (let i = 0; i < 50; i++) response.write(`data: ${JSON.stringify(chunk({ content: 'and on ' }))}\n\n`);
});

const SERVERS = {
  'the built-in runtime': () => {
    fake.answer = () => ({ text: 'and on '.repeat(10_000), stepMs: 5 });
    return shop.builtin(engine);
  },
  'an upstream': async () => upstream(await listen(endless)),
  'another runtime': () => startReplica(endless),
};

describe.each(Object.entries(SERVERS))('%s', (_name, start) => {
  test.each([false, true])(
    'counts the tokens of a stream that its client leaves (with a price: %s)',
    async (isPriced) => {
      const owner = { type: 'user' as const, name: 'alice@example.com' };
      const { id: deploymentId } = await shop.access.openDeployment(owner, 'chat');
      const budget = { tokens: 5, period: 'total' as const };
      const { secret } = await shop.access.createKey({ owner, name: 'limited', type: 'user-level', budget });
      shop.deploy('chat', [await start()], { deploymentId, accessControl: true });
      if (isPriced) await shop.price({ model: 'chat', input: '1', output: '1' });
      const client = new AbortController();
      const ask = () =>
        shop.post(
          '/d/chat/v1/chat/completions',
          { model: 'tiny', ...question(), stream: true, max_tokens: 1_000 },
          { headers: { Authorization: `Bearer ${secret}` }, signal: client.signal },
        );
      const response = await ask();
      expect(response.status).toBe(200);
      let text = '';
      for await (const bytes of response.body!) {
        text += Buffer.from(bytes as Uint8Array).toString();
        if (text.split('"content":"').length > 8) break;
      }
      client.abort();
      await until(() => shop.running.records.length === 1);
      const refused = await shop.post(
        '/d/chat/v1/chat/completions',
        { model: 'tiny', ...question() },
        { headers: { Authorization: `Bearer ${secret}` } },
      );
      expect(refused.status).toBe(429);
      expect(errorOf(await refused.text()).code).toBe('budget_exceeded');
    },
  );
});
