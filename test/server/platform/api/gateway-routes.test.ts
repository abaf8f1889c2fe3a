/** Metrics, the test tool and snippets, over a real gateway. */
import { randomBytes } from 'node:crypto';
import { Access } from '../../../../server/access';
import { Api } from '../../../../server/platform/api/api';
import type { ApiContext } from '../../../../server/platform/api/context';
import * as metrics from '../../../../server/platform/api/routes/metrics';
import * as snippets from '../../../../server/platform/api/routes/snippets';
import * as testTool from '../../../../server/platform/api/routes/test-tool';
import { createTransport } from '../../../../server/http/create-transport';
import { openServiceStore, type ServiceStore } from '../../../../server/platform/store/store';
import { UsageRecorder } from '../../../../server/platform/usage/usage-recorder';
import { overBackends } from '../../access/support';
import { migrated } from '../support';
import {
  breakOff,
  closeAll,
  echo,
  type Echo,
  type Running,
  startGateway,
  startReplica,
  target,
  until,
} from '../gateway/support';

const PASSWORD = 'correct horse battery';
const URL_OF = (slug: string): string => `https://serve.example/d/${slug}`;

let store: ServiceStore;
let access: Access;
let running: Running;
let recorder: UsageRecorder;
let base: string;
let token: string;
let strangersToken: string;
let deployment: { id: string; ownerId: string };
const closers: (() => Promise<void>)[] = [];

async function makeToken(email: string): Promise<string> {
  const { userId } = await store.createAccount({ email, name: 'x', password: PASSWORD });
  return (
    await store.createToken(
      { userId, isAdmin: false, via: 'session', canWrite: true, ip: null, userAgent: null } as Parameters<
        ServiceStore['createToken']
      >[0],
      { name: 't', rights: 'write' } as Parameters<ServiceStore['createToken']>[1],
    )
  ).token;
}

async function serve(listener: Parameters<typeof startReplica>[0], fields: object = {}): Promise<void> {
  running.targets.set(
    target('abc', [await startReplica(listener)], {
      deploymentId: deployment.id,
      ownerId: deployment.ownerId,
      ...fields,
    }),
  );
}

const get = (route: string, as = token): Promise<Response> =>
  fetch(`${base}${route}`, { headers: { Authorization: `Bearer ${as}` } });

interface Event {
  type: string;
  at_ms: number;
  [field: string]: unknown;
}

/** Calls `onText` with all text so far after each write. */
async function tryOut(
  body: object,
  as = token,
  onText: (text: string) => void = () => {},
): Promise<{ status: number; text: string; events: Event[] }> {
  const response = await fetch(`${base}/deployments/${deployment.id}/test`, {
    method: 'POST',
    headers: { Authorization: `Bearer ${as}`, 'Content-Type': 'application/json' },
    body: JSON.stringify(body),
  });
  const decoder = new TextDecoder();
  let text = '';
  for await (const bytes of response.body!) {
    text += decoder.decode(bytes as Uint8Array, { stream: true });
    onText(text);
  }
  const isStream = response.headers.get('content-type')?.startsWith('text/event-stream') === true;
  return {
    status: response.status,
    text,
    events: isStream
      ? text
          .split('\n\n')
          .filter((part) => part.startsWith('data: '))
          .map((part) => JSON.parse(part.slice(6)) as Event)
      : [],
  };
}

const textOf = (events: readonly Event[]): string =>
  events
    .filter(({ type }) => type === 'chunk')
    .map(({ text }) => text)
    .join('');

overBackends((make) => {
  beforeEach(async () => {
    store = await openServiceStore({ location: await make(migrated), secretKey: randomBytes(32) } as Parameters<
      typeof openServiceStore
    >[0]);
    access = await Access.open({ store });
    running = await startGateway({ access, onEnd: (record) => recorder.record(record) });
    recorder = new UsageRecorder({
      store,
      targets: running.targets,
      log: running.log,
      driver: { usage: () => Promise.resolve(undefined) },
    });
    const context = {
      store,
      access,
      serving: { targets: running.targets, gateway: running.gateway, urlOf: URL_OF, apiUrl: 'https://serve.example' },
      log: running.log,
      now: Date.now,
      settings: { isSecure: false, ownOrigins: [], trustedProxies: [], sessionGuard: 'secret' },
    } as unknown as ApiContext;
    const api = new Api({ routes: [...metrics.ROUTES, ...testTool.ROUTES, ...snippets.ROUTES], context });
    const transport = await createTransport('uws', {
      handler: (request, reply) => api.handle(request, reply),
      maxBodyBytes: 50_000_000,
      bodyTimeoutMs: 60_000,
    });
    base = `http://127.0.0.1:${await transport.listen('127.0.0.1', 0)}/api/v1`;
    closers.push(
      () => transport.close(),
      () => access.close(),
      () => store.close(),
    );
    [token, strangersToken] = await Promise.all(['ann@example.com', 'eve@example.com'].map(makeToken));
    deployment = await access.openDeployment({ type: 'user', name: 'ann@example.com' }, 'mine');
  });
  afterEach(async () => {
    await closeAll();
    for (const close of closers.splice(0)) await close();
  });

  describe('the test tool', () => {
    test('sends the request as a client would, and reports the response with its times', async () => {
      await serve((request, response) => {
        response.setHeader('X-Theirs', 'yes');
        echo(request, response);
      });
      const { events } = await tryOut({
        method: 'PUT',
        path: '/v1/x?a=1',
        query: [
          ['b', 'ü &'],
          ['b', '2'],
        ],
        headers: [
          ['X-Mine', '1'],
          ['Content-Type', 'text/plain'],
        ],
        body: 'hello',
      });
      const [head, ...rest] = events;
      expect(head).toMatchObject({ type: 'head', status: 200 });
      expect(head.headers).toContainEqual(['X-Theirs', 'yes']);
      const seen = JSON.parse(textOf(events)) as Echo;
      expect([seen.method, seen.url, seen.body]).toEqual(['PUT', '/v1/x?a=1&b=%C3%BC+%26&b=2', 'hello']);
      expect(seen.headers).toContainEqual(['x-mine', '1']);
      expect(seen.headers).toContainEqual(['host', 'serve.example']);
      const end = rest.at(-1)!;
      expect(end).toMatchObject({ type: 'end', truncated: false, bytes: textOf(events).length });
      expect(end.first_byte_ms).toBeGreaterThanOrEqual(0);
      expect(end.at_ms).toBeGreaterThanOrEqual(end.first_byte_ms as number);
    });

    test('streams, with a time for each chunk', async () => {
      let more = () => {};
      await serve((_request, response) => {
        response.writeHead(200, { 'Content-Type': 'text/event-stream' });
        response.write('data: 1\n\n');
        more = () => void setTimeout(() => response.end('data: 2\n\n'), 60);
      });
      const { events } = await tryOut(
        { method: 'POST', path: '/v1/chat/completions', body: '{"stream":true}' },
        token,
        (text) => {
          if (text.includes('data: 1')) more();
        },
      );
      const chunks = events.filter(({ type }) => type === 'chunk');
      expect(chunks.map(({ text }) => text)).toEqual(['data: 1\n\n', 'data: 2\n\n']);
      expect(chunks[1].at_ms - chunks[0].at_ms).toBeGreaterThan(40);
    });

    test('shows the 401 of a restricted deployment without a key, and its response with one', async () => {
      await serve(echo, { accessControl: true });
      for (const auth of [undefined, { type: 'none' }, { type: 'key', key: 'sk-wrong' }]) {
        const { events } = await tryOut({ method: 'GET', path: '/v1/models', ...(auth === undefined ? {} : { auth }) });
        expect(events[0]).toMatchObject({ type: 'head', status: 401 });
        expect(textOf(events)).toContain('invalid_api_key');
      }
      const { secret } = await access.createKey({
        owner: { type: 'user', name: 'ann@example.com' },
        name: 'k',
        type: 'user-level',
      } as Parameters<Access['createKey']>[0]);
      const { events } = await tryOut({ method: 'GET', path: '/v1/models', auth: { type: 'key', key: secret } });
      expect(events[0]).toMatchObject({ type: 'head', status: 200 });
      expect(textOf(events)).not.toContain(secret);
      expect(JSON.stringify(Object.values(running.log).map(({ mock }) => mock.calls))).not.toContain(secret);
    });

    test('refuses paths that could leave the deployment or its request line', async () => {
      await serve(echo);
      for (const path of ['//evil.example/x', '/\\evil', '/a#b', '/%0d%0aX:y', '/%0Ax', '/a\\b']) {
        const { status, text } = await tryOut({ method: 'GET', path });
        expect([path, status, (JSON.parse(text) as { code: string }).code]).toEqual([path, 422, 'invalid_argument']);
      }
      for (const path of ['http://evil.example/', '@evil', 'evil', '', '/a b', '/ü'])
        expect([path, (await tryOut({ method: 'GET', path })).status]).toEqual([path, 400]);
    });

    test('refuses headers that the gateway sets, and invalid ones', async () => {
      await serve(echo);
      const names = [
        'Host',
        'Cookie',
        'Connection',
        'Transfer-Encoding',
        'X-Forwarded-For',
        'X-Forwarded-Proto',
        'X-Capstan-Salt',
        'Content-Length',
        'Upgrade',
        'a b',
        'a:',
      ];
      for (const name of names) {
        const { status } = await tryOut({ method: 'GET', path: '/', headers: [[name, 'x']] });
        expect([name, status]).toEqual([name, 422]);
      }
    });

    test('refuses multi-line headers', async () => {
      await serve(echo);
      expect((await tryOut({ method: 'GET', path: '/', headers: [['X-A', 'a\r\nHost: evil']] })).status).toBe(422);
      expect((await tryOut({ method: 'GET', path: '/', auth: { type: 'key', key: 'a\r\nHost: evil' } })).status).toBe(
        422,
      );
    });

    test('does not follow redirects', async () => {
      let numSeen = 0;
      await serve((_request, response) => {
        numSeen++;
        response.writeHead(302, { Location: 'http://127.0.0.1:1/' });
        response.end();
      });
      const { events } = await tryOut({ method: 'GET', path: '/' });
      expect([events[0].status, numSeen]).toEqual([302, 1]);
    });

    test('sends binary data as base64, and joins split characters', async () => {
      let more = () => {};
      const afterFirst = (text: string) => {
        if (text.includes('"text":"a')) more();
      };
      await serve((request, response) => {
        response.writeHead(200, { 'Content-Type': 'text/plain' });
        const [first, second] = request.url === '/text' ? [[0x61, 0xc3], [0xbc]] : [[0x61], [0xff, 0xfe]];
        response.write(Buffer.from(first));
        more = () => response.end(Buffer.from(second));
      });
      expect(textOf((await tryOut({ method: 'GET', path: '/text' }, token, afterFirst)).events)).toBe('aü');
      expect(
        (await tryOut({ method: 'GET', path: '/bytes' }, token, afterFirst)).events.find(
          ({ base64 }) => base64 !== undefined,
        ),
      ).toMatchObject({ type: 'chunk', base64: Buffer.from([0xff, 0xfe]).toString('base64') });
    });

    test('truncates an endless response, and reports one that breaks off', async () => {
      await serve((request, response) => {
        response.writeHead(200, { 'Content-Type': 'text/plain' });
        if (request.url === '/break') {
          response.write('half');
          return breakOff(response);
        }
        const timer = setInterval(() => response.write(Buffer.alloc(1_000_000, 'x')), 1);
        response.on('close', () => clearInterval(timer));
      });
      const endless = (await tryOut({ method: 'GET', path: '/endless' })).events;
      expect(endless.at(-1)).toMatchObject({ type: 'end', truncated: true, bytes: 10 * 1024 * 1024 });
      const broken = (await tryOut({ method: 'GET', path: '/break' })).events;
      expect(broken.map(({ type }) => type)).toEqual(['head', 'chunk', 'error', 'end']);
      expect(broken[2].code).toBe('upstream_unavailable');
    });

    test('limits concurrent tests', async () => {
      const waiting: (() => void)[] = [];
      await serve((_request, response) => waiting.push(() => response.end('x')));
      const open = Array.from({ length: 4 }, () => tryOut({ method: 'GET', path: '/' }));
      await until(() => waiting.length === 4);
      expect((await tryOut({ method: 'GET', path: '/' })).status).toBe(429);
      waiting.forEach((finish) => finish());
      await Promise.all(open);
      const again = (async () => {
        for (;;) {
          const answer = await tryOut({ method: 'GET', path: '/' });
          if (answer.status !== 429) return answer;
        }
      })();
      await until(() => waiting.length === 5);
      waiting[4]();
      expect((await again).status).toBe(200);
    });

    test('is hidden from strangers', async () => {
      await serve(echo);
      expect((await tryOut({ method: 'GET', path: '/' }, strangersToken)).status).toBe(404);
    });
  });

  describe('metrics', () => {
    test('report requests of the gateway, by time and by key', async () => {
      await serve((request, response) => {
        response.statusCode = request.url === '/bad' ? 500 : 200;
        response.setHeader('Content-Type', 'application/json');
        response.end(
          '{"usage":{"prompt_tokens":10,"completion_tokens":20,"prompt_tokens_details":{"cached_tokens":4}}}',
        );
      });
      for (const at of ['/v1/chat/completions', '/bad', '/x']) await fetch(`${running.url}/d/abc${at}`);
      await recorder.flush();
      const response = await get(`/deployments/${deployment.id}/metrics`);
      expect(response.status).toBe(200);
      const body = (await response.json()) as {
        step_s: number;
        from: string;
        to: string;
        tokens_counted: boolean;
        series: { name: string; points: [string, number | null][] }[];
        keys: object[];
      };
      const sumOf = (name: string) =>
        body.series.find((series) => series.name === name)!.points.reduce((sum, [, value]) => sum + (value ?? 0), 0);
      expect([
        sumOf('requests'),
        sumOf('errors'),
        sumOf('client_errors'),
        sumOf('prompt_tokens'),
        sumOf('completion_tokens'),
        sumOf('cached_tokens'),
      ]).toEqual([3, 1, 0, 30, 60, 12]);
      expect(sumOf('latency_p99_ms')).toBeGreaterThan(0);
      expect(body).toMatchObject({
        step_s: 60,
        tokens_counted: true,
        keys: [{ key_id: null, name: null, requests: 3, errors: 1, prompt_tokens: 30, completion_tokens: 60 }],
      });
      for (const { points } of body.series) expect([points.length >= 60, points[0][0]]).toEqual([true, body.from]);
    });

    test('refuse invalid queries', async () => {
      const queries: [string, number][] = [
        ['from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z', 422],
        ['step=90', 422],
        ['from=2020-01-01T00:00:00Z&step=60', 422],
        ['step=1', 400],
        ['from=yesterday', 400],
        ['unknown=1', 400],
      ];
      for (const [query, expected] of queries) {
        const { status } = await get(`/deployments/${deployment.id}/metrics?${query}`);
        expect([query, status]).toEqual([query, expected]);
      }
    });

    test('are hidden from strangers', async () => {
      expect((await get(`/deployments/${deployment.id}/metrics`, strangersToken)).status).toBe(404);
    });
  });

  describe('snippets', () => {
    test('call this deployment, with a placeholder if a key is needed', async () => {
      await serve(echo);
      const open = (await (await get(`/deployments/${deployment.id}/snippets?model=demo`)).json()) as {
        url: string;
        needs_key: boolean;
        snippets: { lang: string; code: string }[];
      };
      expect(open.snippets.map(({ lang }) => lang)).toEqual(['curl', 'python', 'javascript']);
      for (const { code } of open.snippets) {
        expect(code).toContain('https://serve.example/d/abc/v1');
        expect(code).toContain('"demo"');
        expect(code).not.toContain('YOUR_API_KEY');
      }
      await access.setAccessControl(deployment.id, true);
      for (const [task, path, call] of [
        ['embed', '/v1/embeddings', 'embeddings.create('],
        ['score', '/v1/rerank', 'client.post('],
      ]) {
        const other = (await (await get(`/deployments/${deployment.id}/snippets?task=${task}`)).json()) as typeof open;
        const [curl, ...clients] = other.snippets.map(({ code }) => code);
        expect(curl).toContain(`${other.url}${path}'`);
        for (const code of clients) expect(code).toContain(call);
      }
      const restricted = (await (await get(`/deployments/${deployment.id}/snippets?lang=curl&model=it's`)).json()) as {
        needs_key: boolean;
        snippets: { code: string }[];
      };
      expect(restricted.needs_key).toBe(true);
      expect(restricted.snippets).toHaveLength(1);
      expect(restricted.snippets[0].code).toContain('Authorization: Bearer YOUR_API_KEY');
      expect(restricted.snippets[0].code).toContain("it'\\''s");
      const shared = (await (await get(`/deployments/${deployment.id}/snippets?base=api`)).json()) as typeof open;
      expect([shared.url, shared.needs_key]).toEqual(['https://serve.example', true]);
      for (const { code } of shared.snippets) {
        expect(code).toMatch(/https:\/\/serve\.example\/v1/);
        expect(code).toMatch(/"model":"mine"|model: "mine"|model="mine"/);
        expect(code).toContain('YOUR_API_KEY');
      }
      expect((await get(`/deployments/${deployment.id}/snippets?lang=cobol`)).status).toBe(400);
      expect((await get(`/deployments/${deployment.id}/snippets`, strangersToken)).status).toBe(404);
    });
  });
});
