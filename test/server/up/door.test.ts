import { Door } from '../../../server/up/door';
import { exchange } from '../../fakes/memory-exchange';

const ready = { check: () => Promise.resolve(undefined) };

test('until the service is there it answers for its health alone', async () => {
  const door = new Door(ready);
  expect((await exchange(door, '/healthz')).json).toMatchObject({ status: 'ok' });
  expect([(await exchange(door, '/readyz')).status, (await exchange(door, '/readyz')).json]).toEqual([
    503,
    { status: 'starting' },
  ]);
  const early = await exchange(door, '/d/chat/v1/models');
  expect([early.status, early.headers['Retry-After'], early.json.error.code]).toEqual([503, '1', 'starting']);
  door.open((_request, reply) => Promise.resolve(reply.send(200, {}, 'here')));
  expect((await exchange(door, '/d/chat/v1/models')).text).toBe('here');
  expect((await exchange(door, '/readyz')).status).toBe(200);
});

test('says what it is not ready for', async () => {
  const door = new Door({ check: () => Promise.resolve('the database does not answer') });
  door.open(() => Promise.resolve());
  const reply = await exchange(door, '/readyz');
  expect([reply.status, reply.json]).toEqual([503, { status: 'the database does not answer' }]);
  expect((await exchange(door, '/healthz')).status).toBe(200);
});

test('drains: open requests end, new ones are refused', async () => {
  const door = new Door(ready);
  let finish: () => void;
  const work = new Promise<void>((resolve) => {
    finish = resolve;
  });
  door.open(async (_request, reply) => {
    await work;
    reply.send(200, {}, 'done');
  });
  const open = exchange(door, '/x');
  let isDrained = false;
  const drained = door.drain().then(() => {
    isDrained = true;
  });
  expect((await exchange(door, '/y')).json.error.code).toBe('shutting_down');
  expect((await exchange(door, '/readyz')).json).toEqual({ status: 'shutting down' });
  expect([isDrained, door.numOpenRequests]).toEqual([false, 1]);
  finish!();
  await drained;
  expect((await open).text).toBe('done');
});

test('draining ends what would go on for ever, and nothing else', async () => {
  const door = new Door(ready, ({ path }) => path === '/follow');
  const signals: AbortSignal[] = [];
  door.open(async ({ signal, path }, reply) => {
    signals.push(signal);
    if (path === '/follow') await new Promise((resolve) => signal.addEventListener('abort', resolve));
    reply.send(200, {}, 'over');
  });
  const following = exchange(door, '/follow');
  await exchange(door, '/other');
  await door.drain();
  expect((await following).text).toBe('over');
  expect(signals.map(({ aborted }) => aborted)).toEqual([true, false]);
});

test('a request that fails is over too', async () => {
  const door = new Door(ready);
  door.open(() => Promise.reject(new Error('a bug')));
  await expect(exchange(door, '/x')).rejects.toThrow('a bug');
  await door.drain();
});
