/** Metrics of the gateway after requests over real sockets. */
import { Registry } from 'prom-client';
import type { GatewayRecord } from '../../../../server/platform/gateway/gateway';
import { Targets } from '../../../../server/platform/gateway/targets';
import { GatewayMetrics } from '../../../../server/platform/gateway/gateway-metrics';
import { breakOff, closeAll, echo, type Running, startGateway, startReplica, target, until } from './support';

afterEach(closeAll);

/** Non-zero samples, by name and labels as exposed. */
async function valuesOf(registry: Registry): Promise<Record<string, number>> {
  const lines = (await registry.metrics()).split('\n').filter((line) => line !== '' && !line.startsWith('#'));
  return Object.fromEntries(
    lines
      .map((line) => [line.slice(0, line.lastIndexOf(' ')), Number(line.slice(line.lastIndexOf(' ') + 1))] as const)
      .filter(([, value]) => value !== 0),
  );
}

interface Measured extends Running {
  values: () => Promise<Record<string, number>>;
}

async function measured(options: Parameters<typeof startGateway>[0] = {}): Promise<Measured> {
  const registry = new Registry();
  const running = await startGateway({ ...options, onEnd: (record) => metrics.onEnd(record) });
  const metrics = new GatewayMetrics(registry, running.targets);
  metrics.watch(running.gateway);
  return { ...running, values: () => valuesOf(registry) };
}

test('counts requests, bytes and times by deployment', async () => {
  const { url, targets, gateway, values } = await measured();
  targets.set(
    target('s', [
      await startReplica((request, response) => {
        request.resume();
        request.on('end', () => {
          response.statusCode = request.url === '/missing' ? 404 : 200;
          response.end('12345');
        });
      }),
    ]),
  );
  for (const path of ['/', '/', '/missing'])
    await (await fetch(`${url}/d/s${path}`, { method: 'POST', body: 'abc' })).text();
  expect((await fetch(`${url}/d/unknown/`)).status).toBe(404);
  await until(() => gateway.numOpenRequests === 0);
  expect(await values()).toMatchObject({
    'capstan_gateway_requests_total{deployment="s",status="2xx"}': 2,
    'capstan_gateway_requests_total{deployment="s",status="4xx"}': 1,
    'capstan_gateway_request_bytes_total{deployment="s"}': 9,
    'capstan_gateway_response_bytes_total{deployment="s"}': 15,
    'capstan_gateway_first_byte_seconds_count{deployment="s"}': 3,
    'capstan_gateway_request_duration_seconds_count{deployment="s"}': 3,
  });
  expect(Object.keys(await values()).filter((name) => name.includes('unknown'))).toEqual([]);
});

test('has gauges for open requests, streams and held requests', async () => {
  const { url, targets, values, gateway } = await measured();
  let finish!: () => void;
  const replica = await startReplica((_request, response) => {
    response.writeHead(200, { 'Content-Type': 'text/event-stream' });
    response.write(
      'data: {"usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}\n\n',
    );
    finish = () => response.end();
  });
  targets.set(target('s', [replica]));
  targets.set(target('sleeper', [], { state: 'scaled_to_zero' }));
  const stream = await fetch(`${url}/d/s/`);
  const held = fetch(`${url}/d/sleeper/`);
  await until(() => gateway.numOpenRequests === 2);
  expect(await values()).toMatchObject({
    capstan_gateway_requests_open: 2,
    capstan_gateway_streams_open: 1,
    capstan_gateway_requests_held: 1,
  });
  finish();
  await stream.text();
  targets.set(target('sleeper', [await startReplica(echo)]));
  await held;
  await until(() => gateway.numOpenRequests === 0);
  expect(await values()).not.toHaveProperty('capstan_gateway_streams_open');
  expect(await values()).toMatchObject({
    'capstan_gateway_tokens_total{deployment="s",type="prompt"}': 7,
    'capstan_gateway_tokens_total{deployment="s",type="completion"}': 2,
    'capstan_gateway_tokens_total{deployment="s",type="cached"}': 4,
  });
});

test('counts upstream failures by reason, and retries', async () => {
  const { url, targets, gateway, values } = await measured({ times: { firstByteTimeoutMs: 1_000 } });
  const dead = await startReplica(echo);
  await dead.stop();
  targets.set(target('dead', [dead]));
  targets.set(
    target('retried', [
      await startReplica((request) => request.socket.destroy()),
      await startReplica((request) => request.socket.destroy()),
    ]),
  );
  targets.set(target('silent', [await startReplica(() => {})]));
  targets.set(
    target('cut', [
      await startReplica((_request, response) => {
        response.writeHead(200, { 'Content-Type': 'text/event-stream' });
        response.write('data: 1\n\n');
        breakOff(response);
      }),
    ]),
  );
  for (const slug of ['dead', 'retried', 'silent', 'cut']) await (await fetch(`${url}/d/${slug}/`)).text();
  await until(() => gateway.numOpenRequests === 0);
  const all = await values();
  expect(Object.fromEntries(Object.entries(all).filter(([name]) => /upstream_errors|retries/.test(name)))).toEqual({
    'capstan_gateway_upstream_errors_total{deployment="dead",reason="unreachable"}': 1,
    'capstan_gateway_upstream_errors_total{deployment="retried",reason="reset"}': 2,
    'capstan_gateway_upstream_errors_total{deployment="silent",reason="timeout"}': 1,
    'capstan_gateway_upstream_errors_total{deployment="cut",reason="cut"}': 1,
    'capstan_gateway_retries_total{deployment="retried"}': 1,
  });
});

describe('labels', () => {
  const record = (slug: string): GatewayRecord => ({
    deploymentId: `dep_${slug}`,
    slug,
    keyId: undefined,
    status: 200,
    endedMs: 0,
    durationMs: 1,
    firstByteMs: 1,
    requestBytes: 1,
    responseBytes: 1,
    usage: { promptTokens: 1, completionTokens: 1, cachedTokens: 1 },
    numRetries: 1,
    failures: ['reset'],
  });
  const setUp = (maxDeployments?: number) => {
    const [registry, targets, woken] = [new Registry(), new Targets(), [] as string[]];
    const metrics = new GatewayMetrics(registry, targets, maxDeployments);
    const control = metrics.counting({ wake: (id) => woken.push(id), onOpenRequests: () => {} });
    return { registry, targets, woken, metrics, control };
  };

  test('are removed with their deployment and do not return with its last request', async () => {
    const { registry, targets, metrics, control, woken } = setUp();
    targets.set(target('s', []));
    metrics.onEnd(record('s'));
    control.wake('dep_s');
    expect(woken).toEqual(['dep_s']);
    const names = Object.keys(await valuesOf(registry));
    expect(names).toContain('capstan_gateway_wakes_total{deployment="s"}');
    expect(new Set(names.map((name) => name.replace(/(_bucket|_sum|_count)?\{.*/, ''))).size).toBe(9);
    targets.delete('s');
    metrics.onEnd(record('s'));
    expect(await valuesOf(registry)).toEqual({});
    expect(await registry.metrics()).not.toContain('deployment="s"');
  });

  test('are bounded: further deployments share one label', async () => {
    const { registry, targets, metrics } = setUp(2);
    for (const slug of ['a', 'b', 'c', 'd']) {
      targets.set(target(slug, []));
      metrics.onEnd(record(slug));
    }
    const requests = async () =>
      Object.fromEntries(
        Object.entries(await valuesOf(registry)).filter(([name]) => name.startsWith('capstan_gateway_requests_total')),
      );
    expect(await requests()).toEqual({
      'capstan_gateway_requests_total{deployment="a",status="2xx"}': 1,
      'capstan_gateway_requests_total{deployment="b",status="2xx"}': 1,
      'capstan_gateway_requests_total{deployment="other",status="2xx"}': 2,
    });
    // A removed deployment makes its label available to the next one.
    targets.delete('a');
    metrics.onEnd(record('c'));
    expect(await requests()).toMatchObject({ 'capstan_gateway_requests_total{deployment="c",status="2xx"}': 1 });
  });
});
