/** Responses for deployments that do not serve, and how a request wakes them. */
import type { DeploymentState } from '../../../../server/platform/deployments/deployment-state';
import {
  COLD_START_LIMITS,
  type QueueLimits,
  ColdStartQueue,
} from '../../../../server/platform/gateway/cold-start-queue';
import { type Target, type TargetReplica, Targets } from '../../../../server/platform/gateway/targets';
import { closeAll, echo, errorOf, startGateway, startReplica, target, until } from './support';

afterEach(closeAll);

const STREAM = JSON.stringify({ model: 'm', stream: true, messages: [] });

test.each<[DeploymentState, number, string, RegExp | null]>([
  ['pending', 503, 'deployment_not_ready', /^\d+$/],
  ['paused', 503, 'deployment_paused', /^\d+$/],
  ['stopping', 503, 'deployment_stopping', /^\d+$/],
  ['failed', 503, 'deployment_failed', /^\d+$/],
  ['updating', 503, 'deployment_not_ready', /^\d+$/],
  ['deleting', 404, 'deployment_not_found', null],
])('%s: %d %s', async (state, status, code, retryAfter) => {
  const { url, targets, woken, records } = await startGateway();
  targets.set(target('s', [], { state }));
  const response = await fetch(`${url}/d/s/v1/models`, { headers: { Origin: 'https://a.example' } });
  expect([response.status, errorOf(await response.text()).code]).toEqual([status, code]);
  if (retryAfter !== null) expect(response.headers.get('retry-after')).toMatch(retryAfter);
  expect(response.headers.get('access-control-allow-origin')).toBe('*');
  expect(woken).toEqual([]);
  if (status === 503) expect(records).toMatchObject([{ deploymentId: 'dep_s', status: 503, firstByteMs: undefined }]);
});

test.each<DeploymentState>(['running', 'updating', 'update_failed', 'degraded'])(
  '%s with a replica serves',
  async (state) => {
    const { url, targets } = await startGateway();
    targets.set(target('s', [await startReplica(echo)], { state }));
    expect((await fetch(`${url}/d/s/`)).status).toBe(200);
  },
);

test.each<DeploymentState>(['paused', 'stopping', 'deleting'])(
  '%s does not serve, although a replica is left',
  async (state) => {
    const { url, targets } = await startGateway();
    targets.set(target('s', [await startReplica(echo)], { state }));
    expect((await fetch(`${url}/d/s/`)).status).toBe(state === 'deleting' ? 404 : 503);
  },
);

describe('scaled to zero', () => {
  test('requests wait for the replica that the first of them wakes', async () => {
    const { url, targets, woken, gateway } = await startGateway();
    targets.set(target('s', [], { state: 'scaled_to_zero' }));
    const all = Array.from({ length: 10 }, (_, i) => fetch(`${url}/d/s/${i}`, { method: 'POST', body: '{}' }));
    await until(() => gateway.numOpenRequests === all.length);
    const replica = await startReplica(echo);
    targets.set(target('s', [], { state: 'scaled_to_zero' }));
    targets.set(target('s', [replica], { state: 'running' }));
    expect((await Promise.all(all)).map(({ status }) => status)).toEqual(Array.from({ length: 10 }, () => 200));
    expect(woken).toEqual(['dep_s']);
  });

  test('serves when the wake call itself makes a replica ready', async () => {
    const replica = await startReplica(echo);
    const running = await startGateway({ onWake: () => running.targets.set(target('s', [replica])) });
    running.targets.set(target('s', [], { state: 'scaled_to_zero' }));
    expect((await fetch(`${running.url}/d/s/`)).status).toBe(200);
  });

  test('waits at most the cold start time of the deployment: 503 with Retry-After', async () => {
    const { url, targets } = await startGateway();
    targets.set(target('s', [], { state: 'scaled_to_zero', coldStartWaitMs: 80 }));
    const response = await fetch(`${url}/d/s/`);
    expect([response.status, errorOf(await response.text()).code]).toEqual([503, 'deployment_not_ready']);
    expect(response.headers.get('retry-after')).toMatch(/^\d+$/);
  });

  test.each<[DeploymentState, number, string]>([
    ['failed', 503, 'deployment_failed'],
    ['paused', 503, 'deployment_paused'],
    ['deleting', 404, 'deployment_not_found'],
  ])('responds at once when the deployment becomes %s', async (state, status, code) => {
    const { url, targets, woken } = await startGateway();
    targets.set(target('s', [], { state: 'scaled_to_zero' }));
    const waiting = fetch(`${url}/d/s/`);
    await until(() => woken.length > 0);
    targets.set(target('s', [], { state }));
    const response = await waiting;
    expect([response.status, errorOf(await response.text()).code]).toEqual([status, code]);
  });

  test('responds with 404 when the deployment is removed', async () => {
    const { url, targets, woken } = await startGateway();
    targets.set(target('s', [], { state: 'scaled_to_zero' }));
    const waiting = fetch(`${url}/d/s/`);
    await until(() => woken.length > 0);
    targets.delete('s');
    expect((await waiting).status).toBe(404);
  });

  test('stops waiting when the client disconnects', async () => {
    const { url, targets, gateway } = await startGateway();
    targets.set(target('s', [], { state: 'scaled_to_zero' }));
    const controller = new AbortController();
    const waiting = fetch(`${url}/d/s/`, { signal: controller.signal }).catch(() => 'gone');
    await until(() => gateway.numOpenRequests === 1);
    controller.abort();
    expect(await waiting).toBe('gone');
    await until(() => gateway.numOpenRequests === 0, 'the end');
  });

  test('queues at most 256 requests for one deployment, without blocking other deployments', async () => {
    const { url, targets, gateway, woken } = await startGateway();
    for (const slug of ['crowded', 'other'])
      targets.set(target(slug, [], { state: 'scaled_to_zero', coldStartWaitMs: 60_000 }));
    const crowd = Array.from({ length: 256 }, () => fetch(`${url}/d/crowded/`).then(({ status }) => status));
    await until(() => gateway.numHeldRequests === 256, 'the crowd');
    const refused = await fetch(`${url}/d/crowded/`);
    const text = await refused.text();
    expect([refused.status, errorOf(text).code, refused.headers.get('retry-after')]).toEqual([
      503,
      'deployment_not_ready',
      '5',
    ]);
    expect(text).toContain('its queue is full (256 requests)');
    const other = fetch(`${url}/d/other/`);
    await until(() => gateway.numHeldRequests === 257, 'the request to the other deployment');
    const replica = await startReplica(echo);
    targets.set(target('other', [replica]));
    expect((await other).status).toBe(200);
    targets.set(target('crowded', [replica]));
    expect(new Set(await Promise.all(crowd))).toEqual(new Set([200]));
    expect([gateway.numHeldRequests, new Set(woken)]).toEqual([0, new Set(['dep_crowded', 'dep_other'])]);
  });

  describe('over all deployments', () => {
    const setUp = (limits: Partial<QueueLimits>) => {
      const [targets, woken] = [new Targets(), [] as string[]];
      const queue = new ColdStartQueue(
        targets,
        { wake: (id) => woken.push(id), onOpenRequests: () => {} },
        { ...COLD_START_LIMITS, ...limits },
      );
      const ask = (slug: string, bodyBytes = 0): Promise<Target> => {
        const sleeping = target(slug, [], { state: 'scaled_to_zero', coldStartWaitMs: 60_000 });
        if (targets.find(slug) === undefined) targets.set(sleeping);
        return Promise.resolve().then(() => queue.ready(sleeping, new AbortController().signal, bodyBytes));
      };
      return { targets, woken, queue, ask };
    };
    const replica: TargetReplica = {
      id: 'rep_1',
      address: { type: 'tcp', host: '127.0.0.1', port: 1 },
      secret: '',
      isBuiltin: false,
    };

    test('limits the number of waiting requests, and wakes the deployment of a refused one', async () => {
      const { targets, woken, queue, ask } = setUp({ total: 3 });
      const waiting = ['a', 'b', 'c'].map((slug) => ask(slug));
      await expect(ask('d')).rejects.toMatchObject({ code: 'deployment_not_ready', status: 503 });
      expect([queue.size, woken]).toEqual([3, ['dep_a', 'dep_b', 'dep_c', 'dep_d']]);
      targets.set(target('b', [replica]));
      expect((await waiting[1]).replicas).toEqual([replica]);
      const late = ask('d');
      targets.set(target('d', [replica]));
      await late;
      queue.close();
      await expect(waiting[0]).rejects.toMatchObject({ code: 'shutting_down' });
      await expect(waiting[2]).rejects.toMatchObject({ code: 'shutting_down' });
      expect(queue.size).toBe(0);
    });

    test('limits the memory of waiting bodies', async () => {
      const { targets, queue, ask } = setUp({ totalBytes: 1_000 });
      const waiting = ask('a', 600);
      await expect(ask('b', 401)).rejects.toMatchObject({ code: 'deployment_not_ready' });
      const small = ask('b', 400);
      targets.set(target('a', [replica]));
      await waiting;
      const next = ask('c', 600);
      await Promise.resolve();
      for (const slug of ['b', 'c']) targets.set(target(slug, [replica]));
      await Promise.all([small, next]);
      expect(queue.size).toBe(0);
    });
  });

  describe('with a stream', () => {
    const times = { silentMs: 30, pingIntervalMs: 30 };

    test('sends comments while it waits, then the stream', async () => {
      const { url, targets } = await startGateway({ times });
      targets.set(target('s', [], { state: 'scaled_to_zero' }));
      const response = await fetch(`${url}/d/s/v1/chat/completions`, { method: 'POST', body: STREAM });
      expect([response.status, response.headers.get('content-type')]).toEqual([
        200,
        'text/event-stream; charset=utf-8',
      ]);
      targets.set(
        target('s', [
          await startReplica((_request, reply) => {
            reply.writeHead(200, { 'Content-Type': 'text/event-stream' });
            reply.end('data: 1\n\ndata: [DONE]\n\n');
          }),
        ]),
      );
      expect(await response.text()).toMatch(/^(: the deployment is starting\n\n)+data: 1\n\ndata: \[DONE\]\n\n$/);
    });

    test('sends the error of the wait or of the replica as the last event', async () => {
      const { url, targets } = await startGateway({ times });
      targets.set(target('s', [], { state: 'scaled_to_zero', coldStartWaitMs: 100 }));
      const late = await (await fetch(`${url}/d/s/v1/chat/completions`, { method: 'POST', body: STREAM })).text();
      expect(late).toMatch(/^(: .*\n\n)+data: \{"error":.*"deployment_not_ready"\}\}\n\ndata: \[DONE\]\n\n$/);

      targets.set(target('s', [], { state: 'scaled_to_zero' }));
      const refused = await fetch(`${url}/d/s/v1/chat/completions`, { method: 'POST', body: STREAM });
      targets.set(
        target('s', [
          await startReplica((_request, reply) => {
            reply.writeHead(400, { 'Content-Type': 'application/json' });
            reply.end('{"error":{"code":"theirs"}}');
          }),
        ]),
      );
      expect(await refused.text()).toMatch(/^(: .*\n\n)+data: \{"error":\{"code":"theirs"\}\}\n\ndata: \[DONE\]\n\n$/);
    });
  });
});
