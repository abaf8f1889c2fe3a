/** A gateway that is killed while requests run: the built-in runtime never exceeds a budget. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { Engine } from '../../../../ts';
import { overBackends, REGISTER, ROOT } from '../../access/support';
import { fake } from '../../../fakes/fake-addon';
import { tinyModel } from '../../../fakes/tiny-model';
import { closeAll, target, until } from '../gateway/support';
import { migrated } from '../support';
import type { GatewayProcessOptions } from './gateway-process';
import { question, Shop } from './support';

const AMOUNT = 60_000_000n;
const NUM_STREAMS = 64;
const children: ChildProcess[] = [];

afterEach(() => {
  for (const child of children.splice(0)) child.kill('SIGKILL');
});

async function startProcess(options: GatewayProcessOptions): Promise<{ url: string; kill: () => Promise<void> }> {
  const child = spawn(
    process.execPath,
    ['-r', REGISTER, join(__dirname, 'gateway-process.ts'), JSON.stringify(options)],
    { cwd: ROOT, stdio: ['ignore', 'pipe', 'inherit'] },
  );
  children.push(child);
  const [port] = (await once(child.stdout, 'data')) as [Buffer];
  return {
    url: `http://127.0.0.1:${port.toString().trim()}`,
    kill: async () => {
      child.kill('SIGKILL');
      await once(child, 'exit');
    },
  };
}

overBackends((make) => {
  test('a budget holds through kill -9 with 64 streams', async () => {
    process.env.CAPSTAN_ADDON = require.resolve('../../../fakes/fake-addon');
    const engine = await Engine.load(tinyModel());
    const location = await make(migrated);
    const shop = await Shop.open(location);
    const text = 'and on '.repeat(2_000);
    fake.answer = () => ({ text, stepMs: 2 });
    await shop.price({ model: 'chat', input: '1', output: '2' });
    const id = await shop.budget({ amount: '0.06' });
    const replica = await shop.builtin(engine);
    const options = { location, target: target('chat', [replica], { ownerId: shop.ownerId }) };
    const before = engine.stats();
    /** What the engine has really computed, at the prices. */
    const used = (): bigint => {
      const { promptTokens, completionTokens } = engine.stats();
      return (
        BigInt(promptTokens - before.promptTokens) * 1_000n +
        BigInt(completionTokens - before.completionTokens) * 2_000n
      );
    };
    const ask = async (url: string): Promise<number> => {
      const response = await fetch(`${url}/d/chat/v1/chat/completions`, {
        method: 'POST',
        headers: { 'Content-Type': 'application/json' },
        body: JSON.stringify({ ...question(), stream: true, max_tokens: 400 }),
      });
      await response.text();
      return response.status;
    };

    for (let round = 0; round < 3; round++) {
      const { url, kill } = await startProcess(options);
      const submitted = fake.requests.length;
      const streams = Array.from({ length: NUM_STREAMS }, () => ask(url).catch(() => 0));
      await until(() => fake.requests.length > submitted || round > 0, 'the first requests');
      // In the middle of the streams that the budget still pays for.
      await Promise.race([until(() => engine.stats().numRunning === 0), new Promise((done) => setTimeout(done, 200))]);
      await kill();
      await Promise.all(streams);
      await until(() => engine.stats().numRunning === 0, 'the replica to notice');
      expect(used()).toBeLessThanOrEqual(AMOUNT);
      const { taken } = await shop.store.getBudget(shop.admin, id);
      expect(taken).toBeGreaterThanOrEqual(used());
      expect(taken).toBeLessThanOrEqual(AMOUNT);
    }
    const { url } = await startProcess(options);
    fake.answer = () => ({ text });
    let status = 200;
    while (status === 200) status = await ask(url);
    expect(status).toBe(429);
    expect(used()).toBeLessThanOrEqual(AMOUNT);
    expect(used()).toBeGreaterThan(0n);
    await closeAll();
    await shop.close();
    await engine.close();
  });
});
