/** The ways in which routers fail, as others have reported them, and what ours does. */
import { createServer } from 'node:net';
import { closeAll, echo, type Echo, errorOf, type Running, startGateway, startReplica, target, until } from './support';

afterEach(closeAll);

/** Long enough to be cut into pieces for the prefix index. */
const prompt = (word: string): string =>
  JSON.stringify({ model: 'm', messages: [{ role: 'user', content: `${word} `.repeat(400) }] });

async function post({ url }: Running, slug: string, body: string, path = '/v1/chat/completions'): Promise<Response> {
  return fetch(`${url}/d/${slug}${path}`, { method: 'POST', body });
}

describe('a replica that cannot be reached', () => {
  test('its requests are tried once more, on another replica, and it is left alone for a while', async () => {
    const running = await startGateway();
    const dead = await startReplica(echo);
    await dead.stop();
    const alive = await startReplica(echo);
    running.targets.set(target('s', [dead, alive]));
    for (let i = 0; i < 6; i++) expect((await post(running, 's', prompt(`w${i}`))).status).toBe(200);
    await until(() => running.open.get(alive.id) === 0, 'the end of all');
    expect(running.open.get(dead.id) ?? 0).toBe(0);
  });

  test('alone, its requests are told so: 502', async () => {
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

  test('one that takes no connection is given up after the time to connect', async () => {
    const running = await startGateway({ times: { connectTimeoutMs: 1_000 } });
    // The queue of connections of this one is full: nothing answers to more.
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

  test('both of two: 502, after one try each', async () => {
    const running = await startGateway();
    const replicas = [await startReplica(echo), await startReplica(echo)];
    for (const replica of replicas) await replica.stop();
    running.targets.set(target('s', replicas));
    expect((await post(running, 's', '{}')).status).toBe(502);
  });
});

describe('a replica that breaks off before the first byte', () => {
  const breaking = (numBreaks: { n: number }) =>
    startReplica((request, response) => {
      if (numBreaks.n-- > 0) return void request.socket.destroy();
      echo(request, response);
    });

  test('a request of the inference interface is tried once more, elsewhere', async () => {
    const running = await startGateway();
    const broken = await breaking({ n: Infinity });
    const alive = await startReplica(echo);
    running.targets.set(target('s', [broken, alive]));
    for (let i = 0; i < 4; i++)
      expect(((await (await post(running, 's', prompt(`w${i}`))).json()) as Echo).body).toBe(prompt(`w${i}`));
  });

  test('any other POST is not: it may have had its effect', async () => {
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

  test('after the first byte nothing is tried again', async () => {
    const running = await startGateway();
    let numSeen = 0;
    const listener: Parameters<typeof startReplica>[0] = (_request, response) => {
      numSeen++;
      response.writeHead(200, { 'Content-Type': 'text/event-stream' });
      response.write('data: 1\n\n');
      setTimeout(() => response.destroy(), 20);
    };
    running.targets.set(target('s', [await startReplica(listener), await startReplica(listener)]));
    expect(await (await post(running, 's', '{}')).text()).toContain('upstream_unavailable');
    expect(numSeen).toBe(1);
  });

  test('a kept connection that its server just closed costs the client nothing', async () => {
    const running = await startGateway();
    let numRequests = 0;
    const replica = await startReplica((request, response) => {
      // The second request comes over the connection of the first, which dies under it.
      if (++numRequests === 2) return void request.socket.destroy();
      echo(request, response);
    });
    running.targets.set(target('s', [replica]));
    expect((await post(running, 's', '{}')).status).toBe(200);
    expect((await post(running, 's', '{}')).status).toBe(200);
    expect([numRequests, replica.numConnections()]).toEqual([3, 2]);
  });
});

describe('a replica that keeps silent', () => {
  test('before the first byte: 504, and its request is ended there', async () => {
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
    await until(() => isGone, 'the end at the replica');
    // Other deployments are not held up.
    running.targets.set(target('other', [await startReplica(echo)]));
    expect((await post(running, 'other', '{}')).status).toBe(200);
  });

  test('between two pieces: the answer is cut, with an error where it can hold one', async () => {
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

test('what is no HTTP is no answer: 502', async () => {
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

describe('a replica that leaves', () => {
  test('takes no new request while its open ones go on, and its count goes on too', async () => {
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

  test('and comes back at another address is asked there', async () => {
    const running = await startGateway();
    const replica = await startReplica((_request, response) => response.end('first'));
    running.targets.set(target('s', [replica]));
    expect(await (await post(running, 's', '{}')).text()).toBe('first');
    await replica.stop();
    const again = await startReplica((_request, response) => response.end('second'));
    running.targets.set(target('s', [{ ...again, id: replica.id }]));
    expect(await (await post(running, 's', '{}')).text()).toBe('second');
  });

  test('while it is down between two addresses costs one 502 and no more', async () => {
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

test('counts outlive changes of the target: what is open is not forgotten when readiness is told again', async () => {
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
  // Without a prompt the lightest takes it: four each.
  expect(replicas.map(({ id }) => running.open.get(id))).toEqual([4, 4]);
  waiting.forEach((finish) => finish());
  await Promise.all(open);
  await until(() => replicas.every(({ id }) => running.open.get(id) === 0), 'the end of all');
});
