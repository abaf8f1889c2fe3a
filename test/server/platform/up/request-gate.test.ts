import { header, type HttpRequest } from '../../../../server/http/transport';
import { RequestGate } from '../../../../server/platform/up/request-gate';
import { exchange } from '../../../fakes/memory-exchange';

const ready = { check: () => Promise.resolve(undefined) };

test('serves only the health paths until the service is open', async () => {
  const gate = new RequestGate(ready);
  expect((await exchange(gate, '/healthz')).json).toMatchObject({ status: 'ok' });
  expect([(await exchange(gate, '/readyz')).status, (await exchange(gate, '/readyz')).json]).toEqual([
    503,
    { status: 'starting' },
  ]);
  const early = await exchange(gate, '/d/chat/v1/models');
  expect([early.status, early.headers['Retry-After'], early.json.error.code]).toEqual([503, '1', 'starting']);
  gate.open((_request, reply) => Promise.resolve(reply.send(200, {}, 'here')));
  expect((await exchange(gate, '/d/chat/v1/models')).text).toBe('here');
  expect((await exchange(gate, '/readyz')).status).toBe(200);
});

test('a standby is alive, not ready, and serves nothing else', async () => {
  const gate = new RequestGate(ready);
  gate.standBy();
  expect((await exchange(gate, '/healthz')).status).toBe(200);
  const reply = await exchange(gate, '/readyz');
  expect([reply.status, reply.json]).toEqual([503, { status: 'standby' }]);
  for (const path of ['/', '/api/v1/me', '/metrics', '/d/chat/v1/models']) {
    const refused = await exchange(gate, path);
    expect([refused.status, refused.json.error.code]).toEqual([503, 'standby']);
  }
  gate.open((_request, answer) => Promise.resolve(answer.send(200, {}, 'here')));
  expect((await exchange(gate, '/readyz')).status).toBe(200);
  expect((await exchange(gate, '/')).text).toBe('here');
});

test('/readyz reports the reason', async () => {
  const gate = new RequestGate({ check: () => Promise.resolve('the database does not respond') });
  gate.open(() => Promise.resolve());
  const reply = await exchange(gate, '/readyz');
  expect([reply.status, reply.json]).toEqual([503, { status: 'the database does not respond' }]);
  expect((await exchange(gate, '/healthz')).status).toBe(200);
});

test('draining finishes open requests and refuses new ones', async () => {
  const gate = new RequestGate(ready);
  let finish: () => void;
  const work = new Promise<void>((resolve) => {
    finish = resolve;
  });
  gate.open(async (_request, reply) => {
    await work;
    reply.send(200, {}, 'done');
  });
  const open = exchange(gate, '/x');
  let isDrained = false;
  const drained = gate.drain().then(() => {
    isDrained = true;
  });
  expect((await exchange(gate, '/y')).json.error.code).toBe('shutting_down');
  expect((await exchange(gate, '/readyz')).json).toEqual({ status: 'shutting down' });
  expect([isDrained, gate.numOpenRequests]).toEqual([false, 1]);
  finish!();
  await drained;
  expect((await open).text).toBe('done');
});

test('draining aborts endless requests and no others', async () => {
  const gate = new RequestGate(ready, ({ path }) => path === '/follow');
  const signals: AbortSignal[] = [];
  gate.open(async ({ signal, path }, reply) => {
    signals.push(signal);
    if (path === '/follow') await new Promise((resolve) => signal.addEventListener('abort', resolve));
    reply.send(200, {}, 'over');
  });
  const following = exchange(gate, '/follow');
  await exchange(gate, '/other');
  await gate.drain();
  expect((await following).text).toBe('over');
  expect(signals.map(({ aborted }) => aborted)).toEqual([true, false]);
});

test('passes the health paths at the host name of a deployment to the deployment', async () => {
  const isForDeployment = (request: HttpRequest) => header(request, 'host') === 'chat.models.test';
  const gate = new RequestGate(ready, undefined, isForDeployment);
  const asked = (path: string) => exchange(gate, path, undefined, { headers: [['host', 'chat.models.test']] });
  expect((await asked('/healthz')).status).toBe(503);
  gate.open((_request, reply) => Promise.resolve(reply.send(200, {}, 'of the deployment')));
  expect([(await asked('/healthz')).text, (await asked('/readyz')).text]).toEqual(Array(2).fill('of the deployment'));
  expect((await exchange(gate, '/healthz')).json).toMatchObject({ status: 'ok' });
});

test('counts a failed request as finished', async () => {
  const gate = new RequestGate(ready);
  gate.open(() => Promise.reject(new Error('a bug')));
  await expect(exchange(gate, '/x')).rejects.toThrow('a bug');
  await gate.drain();
});
