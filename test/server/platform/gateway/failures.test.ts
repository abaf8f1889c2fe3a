/** Upstream failures that other routers are known to handle badly. */
import { createServer } from 'node:net';
import {
  breakOff,
  closeAll,
  echo,
  type Echo,
  errorOf,
  type Running,
  startGateway,
  startReplica,
  target,
  until,
} from './support';

afterEach(closeAll);

/** Long enough for several pieces in the prefix index. */
const prompt = (word: string): string =>
  JSON.stringify({ model: 'm', messages: [{ role: 'user', content: `${word} `.repeat(400) }] });

async function post({ url }: Running, slug: string, body: string, path = '/v1/chat/completions'): Promise<Response> {
  return fetch(`${url}/d/${slug}${path}`, { method: 'POST', body });
}

describe('an unreachable replica', () => {
  test('has its requests retried on another replica, and is avoided for a while', async () => {
    const running = await startGateway();
    const dead = await startReplica(echo);
    await dead.stop();
    const alive = await startReplica(echo);
    running.targets.set(target('s', [dead, alive]));
    for (let i = 0; i < 6; i++) expect((await post(running, 's', prompt(`w${i}`))).status).toBe(200);
    await until(() => running.open.get(alive.id) === 0, 'the end of all requests');
    expect(running.open.get(dead.id) ?? 0).toBe(0);
  });

  test('yields 502 when it is the only one', async () => {
    const running = await startGateway();
    const dead = await startReplica(echo);
    await dead.stop();
    running.targets.set(target('s', [dead]));
    const response = await post(running, 's', '{}');
    expect([response.status, errorOf(await response.text())]).toEqual([
      502,
      { code: 'upstream_unavailable', type: 'server_error' },
    ]);
    expect(running.open.get(dead.id)).toBe(0);
    expect(response.headers.get('access-control-allow-origin')).toBeNull();
  });

  test('yields 502 after the connect timeout when it accepts no connection', async () => {
    const running = await startGateway({ times: { connectTimeoutMs: 1_000 } });
    // The backlog of this server is full, so it accepts no further connection.
    const full = createServer();
    await new Promise<void>((resolve) => {
      full.listen({ port: 0, host: '127.0.0.1', backlog: 1 }, resolve);
    });
    const { port } = full.address() as { port: number };
    const alive = await startReplica(echo);
    running.targets.set(
      target('s', [{ ...alive, id: 'rep_blackhole', address: { type: 'tcp', host: '10.255.255.1', port } }, alive]),
    );
    for (let i = 0; i < 4; i++) expect((await post(running, 's', prompt(`w${i}`))).status).toBe(200);
    full.close();
  });

  test('yields 502 after one attempt each when both replicas are unreachable', async () => {
    const running = await startGateway();
    const replicas = [await startReplica(echo), await startReplica(echo)];
    for (const replica of replicas) await replica.stop();
    running.targets.set(target('s', replicas));
    expect((await post(running, 's', '{}')).status).toBe(502);
  });
});

describe('a replica that resets before the first byte', () => {
  const breaking = (numBreaks: { n: number }) =>
    startReplica((request, response) => {
      if (numBreaks.n-- > 0) return void request.socket.destroy();
      echo(request, response);
    });

  test('has an inference request retried on another replica', async () => {
    const running = await startGateway();
    const broken = await breaking({ n: Infinity });
    const alive = await startReplica(echo);
    running.targets.set(target('s', [broken, alive]));
    for (let i = 0; i < 4; i++)
      expect(((await (await post(running, 's', prompt(`w${i}`))).json()) as Echo).body).toBe(prompt(`w${i}`));
  });

  test('does not have any other POST retried: it may have taken effect', async () => {
    const running = await startGateway();
    let numSeen = 0;
    const listener: Parameters<typeof startReplica>[0] = (request) => {
      numSeen++;
      request.socket.destroy();
    };
    running.targets.set(target('s', [await startReplica(listener), await startReplica(listener)]));
    expect((await post(running, 's', '{}', '/orders')).status).toBe(502);
    expect(numSeen).toBe(1);
    expect((await fetch(`${running.url}/d/s/orders`)).status).toBe(502);
    expect(numSeen).toBe(3);
  });

  test('is not retried after the first byte', async () => {
    const running = await startGateway();
    let numSeen = 0;
    const listener: Parameters<typeof startReplica>[0] = (_request, response) => {
      numSeen++;
      response.writeHead(200, { 'Content-Type': 'text/event-stream' });
      response.write('data: 1\n\n');
      breakOff(response);
    };
    running.targets.set(target('s', [await startReplica(listener), await startReplica(listener)]));
    expect(await (await post(running, 's', '{}')).text()).toContain('upstream_unavailable');
    expect(numSeen).toBe(1);
  });

  test('costs the client nothing when it has just closed a kept-alive connection', async () => {
    const running = await startGateway();
    let numRequests = 0;
    const replica = await startReplica((request, response) => {
      // The second request reuses the first connection, which the server has just closed.
      if (++numRequests === 2) return void request.socket.destroy();
      echo(request, response);
    });
    running.targets.set(target('s', [replica]));
    expect((await post(running, 's', '{}')).status).toBe(200);
    expect((await post(running, 's', '{}')).status).toBe(200);
    expect([numRequests, replica.numConnections()]).toEqual([3, 2]);
  });
});

describe('a silent replica', () => {
  test('yields 504 before the first byte, and its request is aborted', async () => {
    const running = await startGateway({ times: { firstByteTimeoutMs: 1_000 } });
    let isGone = false;
    const silent = await startReplica((_request, response) => {
      response.on('close', () => {
        isGone = true;
      });
    });
    running.targets.set(
      target('s', [
        silent,
        await startReplica((_request, response) => {
          response.on('close', () => {
            isGone = true;
          });
        }),
      ]),
    );
    const response = await post(running, 's', '{}');
    expect([response.status, errorOf(await response.text()).code]).toEqual([504, 'upstream_timeout']);
    await until(() => isGone, 'the abort at the replica');
    // Other deployments are not affected.
    running.targets.set(target('other', [await startReplica(echo)]));
    expect((await post(running, 'other', '{}')).status).toBe(200);
  });

  test('has its response cut between two pieces, with an error event in a stream', async () => {
    const running = await startGateway({ times: { idleTimeoutMs: 100 } });
    running.targets.set(
      target('s', [
        await startReplica((_request, response) => {
          response.writeHead(200, { 'Content-Type': 'text/event-stream' });
          response.write('data: half');
        }),
      ]),
    );
    const text = await (await post(running, 's', '{}')).text();
    expect(text).toMatch(/^data: half\n\ndata: \{"error":.*"upstream_unavailable"\}\}\n\ndata: \[DONE\]\n\n$/);
  });
});

test('a response that is not HTTP yields 502', async () => {
  const running = await startGateway();
  const replica = await startReplica((request) => {
    request.socket.end('SSH-2.0-OpenSSH\r\n');
  });
  running.targets.set(target('s', [replica]));
  expect((await post(running, 's', '{}', '/x')).status).toBe(502);
  const long = await startReplica((request) => {
    request.socket.end(`HTTP/1.1 200 OK\r\nX-Long: ${'x'.repeat(100_000)}\r\n\r\n`);
  });
  running.targets.set(target('s', [long]));
  expect((await post(running, 's', '{}', '/x')).status).toBe(502);
});

describe('a removed replica', () => {
  test('gets no new requests, finishes its open ones and stays counted', async () => {
    const running = await startGateway();
    let finish!: () => void;
    const old = await startReplica((_request, response) => {
      finish = () => response.end('old');
    });
    running.targets.set(target('s', [old]));
    const open = post(running, 's', '{}');
    await until(() => running.open.get(old.id) === 1 && (finish as unknown) !== undefined);
    const fresh = await startReplica((_request, response) => response.end('fresh'));
    running.targets.set(target('s', [fresh]));
    for (let i = 0; i < 5; i++) expect(await (await post(running, 's', '{}')).text()).toBe('fresh');
    expect(running.open.get(old.id)).toBe(1);
    finish();
    expect(await (await open).text()).toBe('old');
    await until(() => running.open.get(old.id) === 0);
  });

  test('is called at its new address when it returns', async () => {
    const running = await startGateway();
    const replica = await startReplica((_request, response) => response.end('first'));
    running.targets.set(target('s', [replica]));
    expect(await (await post(running, 's', '{}')).text()).toBe('first');
    await replica.stop();
    const again = await startReplica((_request, response) => response.end('second'));
    running.targets.set(target('s', [{ ...again, id: replica.id }]));
    expect(await (await post(running, 's', '{}')).text()).toBe('second');
  });

  test('yields one 503 while it has no address', async () => {
    const running = await startGateway();
    const replica = await startReplica(echo);
    running.targets.set(target('s', [replica], { state: 'degraded' }));
    expect((await post(running, 's', '{}')).status).toBe(200);
    await replica.stop();
    running.targets.set(target('s', [], { state: 'degraded' }));
    const response = await post(running, 's', '{}');
    expect([response.status, errorOf(await response.text()).code, response.headers.get('retry-after')]).toEqual([
      503,
      'deployment_not_ready',
      '5',
    ]);
  });
});

test('keeps the counts of open requests when the target changes', async () => {
  const running = await startGateway();
  const waiting: (() => void)[] = [];
  const replicas = [
    await startReplica((_request, response) => waiting.push(() => response.end('a'))),
    await startReplica((_request, response) => waiting.push(() => response.end('b'))),
  ];
  running.targets.set(target('s', replicas));
  const open: Promise<Response>[] = [];
  for (let i = 0; i < 8; i++) {
    open.push(fetch(`${running.url}/d/s/`));
    await until(() => waiting.length === i + 1);
    running.targets.set(target('s', [...replicas]));
  }
  // Without a prompt the lightest replica is chosen: four each.
  expect(replicas.map(({ id }) => running.open.get(id))).toEqual([4, 4]);
  waiting.forEach((finish) => finish());
  await Promise.all(open);
  await until(() => replicas.every(({ id }) => running.open.get(id) === 0), 'the end of all requests');
});
