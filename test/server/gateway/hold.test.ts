/** Deployments that do not serve right now: what their URL answers, and how a request wakes them. */
import type { DeploymentState } from '../../../server/service/deployment-state';
import { closeAll, echo, errorOf, pause, startGateway, startReplica, target, until } from './support';

afterEach(closeAll);

const STREAM = JSON.stringify({ model: 'm', stream: true, messages: [] });

test.each<[DeploymentState, number, string, RegExp | null]>([
  ['pending', 503, 'deployment_not_ready', /^\d+$/], ['paused', 503, 'deployment_paused', /^\d+$/], ['stopping', 503, 'deployment_stopping', /^\d+$/], ['failed', 503, 'deployment_failed', /^\d+$/],
  ['updating', 503, 'deployment_not_ready', /^\d+$/], ['deleting', 404, 'deployment_not_found', null],
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

test.each<DeploymentState>(['running', 'updating', 'update_failed', 'degraded'])('%s with a replica serves', async (state) => {
  const { url, targets } = await startGateway();
  targets.set(target('s', [await startReplica(echo)], { state }));
  expect((await fetch(`${url}/d/s/`)).status).toBe(200);
});

test.each<DeploymentState>(['paused', 'stopping', 'deleting'])('%s does not, though a replica is left', async (state) => {
  const { url, targets } = await startGateway();
  targets.set(target('s', [await startReplica(echo)], { state }));
  expect((await fetch(`${url}/d/s/`)).status).toBe(state === 'deleting' ? 404 : 503);
});

describe('scaled to zero', () => {
  test('requests wait for the replica that one of them wakes', async () => {
    const { url, targets, woken } = await startGateway();
    targets.set(target('s', [], { state: 'scaled_to_zero' }));
    const all = Array.from({ length: 10 }, (_, i) => fetch(`${url}/d/s/${i}`, { method: 'POST', body: '{}' }));
    await until(() => woken.length > 0);
    await pause(50);
    const replica = await startReplica(echo);
    targets.set(target('s', [], { state: 'scaled_to_zero' }));
    targets.set(target('s', [replica], { state: 'running' }));
    expect((await Promise.all(all)).map(({ status }) => status)).toEqual(Array.from({ length: 10 }, () => 200));
    expect(woken).toEqual(['dep_s']);
  });

  test('a controller that is at once ready is no trap', async () => {
    const replica = await startReplica(echo);
    const running = await startGateway({ onWake: () => running.targets.set(target('s', [replica])) });
    running.targets.set(target('s', [], { state: 'scaled_to_zero' }));
    expect((await fetch(`${running.url}/d/s/`)).status).toBe(200);
  });

  test('no longer than the deployment allows: 503 with Retry-After', async () => {
    const { url, targets } = await startGateway();
    targets.set(target('s', [], { state: 'scaled_to_zero', coldStartWaitMs: 80 }));
    const response = await fetch(`${url}/d/s/`);
    expect([response.status, errorOf(await response.text()).code]).toEqual([503, 'deployment_not_ready']);
    expect(response.headers.get('retry-after')).toMatch(/^\d+$/);
  });

  test.each<[DeploymentState, number, string]>([['failed', 503, 'deployment_failed'], ['paused', 503, 'deployment_paused'], ['deleting', 404, 'deployment_not_found']])('what becomes %s meanwhile is told at once', async (state, status, code) => {
    const { url, targets, woken } = await startGateway();
    targets.set(target('s', [], { state: 'scaled_to_zero' }));
    const waiting = fetch(`${url}/d/s/`);
    await until(() => woken.length > 0);
    targets.set(target('s', [], { state }));
    const response = await waiting;
    expect([response.status, errorOf(await response.text()).code]).toEqual([status, code]);
  });

  test('what is removed meanwhile is not there: 404', async () => {
    const { url, targets, woken } = await startGateway();
    targets.set(target('s', [], { state: 'scaled_to_zero' }));
    const waiting = fetch(`${url}/d/s/`);
    await until(() => woken.length > 0);
    targets.delete('s');
    expect((await waiting).status).toBe(404);
  });

  test('a client that leaves waits no longer', async () => {
    const { url, targets, gateway } = await startGateway();
    targets.set(target('s', [], { state: 'scaled_to_zero' }));
    const controller = new AbortController();
    const waiting = fetch(`${url}/d/s/`, { signal: controller.signal }).catch(() => 'gone');
    await until(() => gateway.numOpenRequests === 1);
    controller.abort();
    expect(await waiting).toBe('gone');
    await until(() => gateway.numOpenRequests === 0, 'the end');
  });

  describe('with a stream', () => {
    const times = { silentMs: 30, pingIntervalMs: 30 };

    test('comments tell that it waits, then comes the stream', async () => {
      const { url, targets } = await startGateway({ times });
      targets.set(target('s', [], { state: 'scaled_to_zero' }));
      const response = await fetch(`${url}/d/s/v1/chat/completions`, { method: 'POST', body: STREAM });
      expect([response.status, response.headers.get('content-type')]).toEqual([200, 'text/event-stream; charset=utf-8']);
      targets.set(target('s', [await startReplica((_request, reply) => {
        reply.writeHead(200, { 'Content-Type': 'text/event-stream' });
        reply.end('data: 1\n\ndata: [DONE]\n\n');
      })]));
      expect(await response.text()).toMatch(/^(: the deployment is starting\n\n)+data: 1\n\ndata: \[DONE\]\n\n$/);
    });

    test('errors are its last event: of the wait, and of the replica', async () => {
      const { url, targets } = await startGateway({ times });
      targets.set(target('s', [], { state: 'scaled_to_zero', coldStartWaitMs: 100 }));
      const late = await (await fetch(`${url}/d/s/v1/chat/completions`, { method: 'POST', body: STREAM })).text();
      expect(late).toMatch(/^(: .*\n\n)+data: \{"error":.*"deployment_not_ready"\}\}\n\ndata: \[DONE\]\n\n$/);

      targets.set(target('s', [], { state: 'scaled_to_zero' }));
      const refused = await fetch(`${url}/d/s/v1/chat/completions`, { method: 'POST', body: STREAM });
      targets.set(target('s', [await startReplica((_request, reply) => {
        reply.writeHead(400, { 'Content-Type': 'application/json' });
        reply.end('{"error":{"code":"theirs"}}');
      })]));
      expect(await refused.text()).toMatch(/^(: .*\n\n)+data: \{"error":\{"code":"theirs"\}\}\n\ndata: \[DONE\]\n\n$/);
    });
  });
});
