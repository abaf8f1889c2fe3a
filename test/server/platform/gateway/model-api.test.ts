/** One /v1 over all deployments: owners, keys and names, and what replicas receive. */
import Anthropic from '@anthropic-ai/sdk';
import { request as sendRequest } from 'node:http';
import OpenAI from 'openai';
import { Access } from '../../../../server/access';
import type { Target } from '../../../../server/platform/gateway/targets';
import { ALICE, BOB, LAB, overSampleOfBackends } from '../../access/support';
import {
  closeAll,
  echo,
  type Echo,
  errorOf,
  type Replica,
  type Running,
  startGateway,
  startReplica,
  target,
  until,
} from './support';

let access: Access;
const keys: Record<'alice' | 'bound' | 'bob' | 'lab' | 'slow' | 'elsewhere' | 'spent', string> = {} as never;
const ids: Record<'chat' | 'public' | 'his' | 'team', { id: string; ownerId: string }> = {} as never;

/** Serves a list of models and echoes every other request. */
function startModels(names: readonly string[], onRequest: (path: string) => void = () => {}): Promise<Replica> {
  return startReplica((request, response) => {
    onRequest(`${request.method} ${request.url}`);
    if (request.url !== '/v1/models') return echo(request, response);
    response.setHeader('Content-Type', 'application/json');
    response.end(JSON.stringify({ object: 'list', data: names.map((id) => ({ id, object: 'model' })) }));
  });
}

interface Fixture extends Running {
  seen: string[];
}

const targetFor = (name: keyof typeof ids, replicas: readonly Replica[], fields: Partial<Target> = {}): Target =>
  target(name, replicas, {
    deploymentId: ids[name].id,
    ownerId: ids[name].ownerId,
    accessControl: true,
    ...fields,
  });

async function start(options: Parameters<typeof startGateway>[0] = {}): Promise<Fixture> {
  const running = await startGateway({ access, ...options });
  const seen: string[] = [];
  for (const [name, fields] of [
    ['chat', { aliases: ['gpt-4o', 'Qwen/Qwen3'] }],
    ['public', { accessControl: false }],
    ['his', { aliases: ['secret'] }],
    ['team', {}],
  ] as const) {
    const replica = await startModels([`${name}-model`, 'adapter'], (path) => seen.push(`${name} ${path}`));
    running.targets.set(targetFor(name, [replica], fields));
  }
  running.targets.set(
    target('con-1', [await startModels(['x'])], { isContainer: true, name: null, ownerId: ids.chat.ownerId }),
  );
  return { ...running, seen };
}

function post(url: string, key: string | undefined, body: unknown, init: RequestInit = {}): Promise<Response> {
  return fetch(url, {
    method: 'POST',
    body: typeof body === 'string' ? body : JSON.stringify(body),
    ...init,
    headers: {
      'Content-Type': 'application/json',
      ...(key === undefined ? {} : { Authorization: `Bearer ${key}` }),
      ...init.headers,
    },
  });
}

const listed = async (url: string, key: string): Promise<string[]> => {
  const response = await fetch(`${url}/v1/models`, { headers: { Authorization: `Bearer ${key}` } });
  expect(response.status).toBe(200);
  return ((await response.json()) as { data: { id: string }[] }).data.map(({ id }) => id);
};

overSampleOfBackends((make) => {
  beforeAll(async () => {
    access = await Access.open({ location: await make() });
    ids.chat = await access.openDeployment(ALICE, 'chat');
    ids.public = await access.openDeployment(ALICE, 'public');
    ids.his = await access.openDeployment(BOB, 'his');
    ids.team = await access.openDeployment(LAB, 'team');
    const create = async (name: keyof typeof keys, spec: Partial<Parameters<Access['createKey']>[0]> = {}) => {
      const made = await access.createKey({ owner: ALICE, name, type: 'user-level', ...spec } as Parameters<
        Access['createKey']
      >[0]);
      keys[name] = made.secret;
    };
    await create('alice');
    await create('bound', { type: 'deployment-level', deployments: ['public'] });
    await create('bob', { owner: BOB });
    await create('lab', { owner: LAB });
    await create('slow', { limits: { rpm: 1, tpm: null, parallel: null } });
    await create('elsewhere', { allowedCidrs: ['192.0.2.0/24'] } as never);
  });
  afterEach(closeAll);
  afterAll(() => access.close());

  const NAMES = [
    ...['chat', 'gpt-4o', 'Qwen/Qwen3', 'chat/adapter', 'Qwen/Qwen3/adapter', 'public', 'his', 'secret'],
    ...['secret/adapter', 'team', 'unknown', 'unknown/chat', 'con_1', '', 'CHAT'],
  ];
  const CHAT = ['chat', 'gpt-4o', 'Qwen/Qwen3'];
  const INNER = ['chat/adapter', 'Qwen/Qwen3/adapter'];
  const REACHES: Record<'alice' | 'bound' | 'bob' | 'lab', { ok: string[]; forbidden: string[]; listed: string[] }> = {
    alice: { ok: [...CHAT, ...INNER, 'public'], forbidden: [], listed: [...CHAT, 'public'] },
    bound: { ok: ['public'], forbidden: [...CHAT, ...INNER], listed: ['public'] },
    bob: { ok: ['his', 'secret', 'secret/adapter'], forbidden: [], listed: ['his', 'secret'] },
    lab: { ok: ['team'], forbidden: [], listed: ['team'] },
  };

  test.each(Object.keys(REACHES) as (keyof typeof REACHES)[])(
    'the key %s reaches exactly what is its own',
    async (who) => {
      const { url, seen } = await start();
      const { ok, forbidden, listed: names } = REACHES[who];
      expect((await listed(url, keys[who])).sort()).toEqual([...names].sort());
      for (const model of NAMES) {
        const before = seen.length;
        const response = await post(`${url}/v1/chat/completions`, keys[who], { messages: [], model });
        const expected = ok.includes(model) ? 200 : forbidden.includes(model) ? 403 : 404;
        expect([model, response.status]).toEqual([model, expected]);
        const text = await response.text();
        if (expected !== 200) {
          expect(errorOf(text).code).toBe(expected === 403 ? 'permission_denied' : 'model_not_found');
          expect(seen.length).toBe(before);
        }
        const described = await fetch(`${url}/v1/models/${encodeURIComponent(model)}`, {
          headers: { Authorization: `Bearer ${keys[who]}` },
        });
        if (model !== '') expect([model, described.status]).toEqual([model, expected]);
      }
    },
  );

  test('always needs a key, for public deployments too, and looks at nothing without one', async () => {
    const { url, seen, records } = await start();
    for (const key of [undefined, 'sk-wrong', `${keys.alice.slice(0, -1)}${keys.alice.endsWith('0') ? '1' : '0'}`])
      for (const path of ['/v1/chat/completions', '/v1/embeddings', '/tokenize', '/v1/unknown']) {
        const response = await post(
          `${url}${path}`,
          key,
          { model: 'public' },
          { headers: { Origin: 'https://a.example' } },
        );
        expect([response.status, errorOf(await response.text()).code]).toEqual([401, 'invalid_api_key']);
        expect(response.headers.get('www-authenticate')).toBe('Bearer');
        expect(response.headers.get('access-control-allow-origin')).toBe('*');
      }
    expect((await fetch(`${url}/v1/models`)).status).toBe(401);
    expect((await post(`${url}/d/public/v1/chat/completions`, undefined, { model: 'x' })).status).toBe(200);
    expect(seen).toEqual(['public POST /v1/chat/completions']);
    expect(records.length).toBe(1);
  });

  test('a fallback that the client could not call is passed over', async () => {
    const { url, targets, seen } = await start();
    const broken = await startReplica((_request, response) => response.writeHead(503).end());
    targets.set(targetFor('public', [broken], { accessControl: false, fallbacks: [ids.chat.id] }));
    const statusOf = async (path: string, key?: string) =>
      (await post(`${url}${path}/v1/completions`, key, { model: 'public' })).status;
    expect(await Promise.all([statusOf('', keys.bound), statusOf('/d/public')])).toEqual([503, 503]);
    expect(seen).toEqual([]);
    expect(await statusOf('', keys.alice)).toBe(200);
    targets.set({ ...(targets.find('chat') as Target), accessControl: false });
    expect(await Promise.all([statusOf('', keys.bound), statusOf('/d/public')])).toEqual([200, 200]);
  });

  test('addresses and limits of a key hold as at the URL of a deployment', async () => {
    const { url } = await start();
    for (const path of ['/v1/models', '/v1/models/chat'])
      expect((await fetch(`${url}${path}`, { headers: { Authorization: `Bearer ${keys.elsewhere}` } })).status).toBe(
        403,
      );
    const refused = await post(`${url}/v1/chat/completions`, keys.elsewhere, { model: 'chat' });
    expect(errorOf(await refused.text()).code).toBe('ip_not_allowed');
    expect((await post(`${url}/v1/completions`, keys.slow, { model: 'chat' })).status).toBe(200);
    // The limits count before a body has arrived.
    const limited = await post(`${url}/v1/completions`, keys.slow, '', {
      body: new ReadableStream({ start: (controller) => controller.enqueue(Buffer.from('{')) }),
      duplex: 'half',
    } as RequestInit);
    expect([limited.status, errorOf(await limited.text()).code]).toEqual([429, 'rate_limit_exceeded']);
    expect((await post(`${url}/d/chat/v1/completions`, keys.slow, { model: 'chat' })).status).toBe(429);
  });

  test('a request whose body arrives slowly has its place within the limits of its key', async () => {
    const { url } = await start();
    const { secret } = await access.createKey({
      owner: ALICE,
      name: 'one',
      type: 'user-level',
      limits: { rpm: null, tpm: null, parallel: 1 },
    } as never);
    const leaving = new AbortController();
    const slow = post(`${url}/v1/completions`, secret, '', {
      body: new ReadableStream({ start: (controller) => controller.enqueue(Buffer.from('{')) }),
      duplex: 'half',
      signal: leaving.signal,
    } as RequestInit);
    slow.catch(() => {});
    const statusOf = async () => (await post(`${url}/v1/completions`, secret, { model: 'public' })).status;
    for (let status = 200; status === 200;) status = await statusOf();
    expect(await statusOf()).toBe(429);
    leaving.abort();
    await expect(slow).rejects.toThrow();
    for (let status = 429; status === 429;) status = await statusOf();
    // A refused request gives its place back.
    for (let i = 0; i < 3; i++)
      expect((await post(`${url}/v1/completions`, secret, { model: 'his' })).status).toBe(404);
    expect(await statusOf()).toBe(200);
  });

  test.each([
    '/v1/chat/completions',
    '/v1/completions',
    '/v1/embeddings',
    '/v1/rerank',
    '/v2/rerank',
    '/rerank',
    '/v1/score',
    '/score',
    '/tokenize',
    '/detokenize',
    '/v1/responses',
    '/v1/responses/input_tokens',
    '/v1/messages',
    '/v1/messages/count_tokens',
  ])('%s: the replica gets a name that it knows, and the rest of the body as sent', async (path) => {
    const { url, records } = await start();
    const body = (model: string) => ` {"stream":false, "model" : ${JSON.stringify(model)},"é":"\\u0000", "n": 1.0} `;
    for (const [model, sent] of [
      ['chat', 'chat-model'],
      ['gpt-4o', 'chat-model'],
      ['chat/adapter', 'adapter'],
      ['Qwen/Qwen3/a/b', 'a/b'],
    ]) {
      const response = await post(`${url}${path}?a=1`, keys.alice, body(model), {
        headers: { Cookie: 'a=1', 'X-Request-Id': `id-${model.length}` },
      });
      expect([response.status, response.headers.get('x-request-id')]).toEqual([200, `id-${model.length}`]);
      const seen = (await response.json()) as Echo;
      expect([seen.url, seen.body]).toEqual([`${path}?a=1`, body(sent)]);
      const names = seen.headers.map(([name]) => name);
      expect(names).not.toContain('authorization');
      expect(names).not.toContain('cookie');
      expect(names).toContain('x-capstan-salt');
    }
    await until(() => records.length === 4);
    for (const record of records)
      expect(record).toMatchObject({
        deploymentId: ids.chat.id,
        status: 200,
        keyId: expect.stringMatching(/^key_/) as string,
      });
  });

  test('reads the list of a replica once, and keeps the name of a deployment that its replica serves', async () => {
    const { url, targets, seen } = await start();
    for (let i = 0; i < 3; i++) await post(`${url}/v1/completions`, keys.alice, { model: 'chat' });
    expect(seen.filter((line) => line === 'chat GET /v1/models').length).toBe(1);
    targets.set(targetFor('chat', [await startModels(['first', 'chat'])]));
    const kept = (await (await post(`${url}/v1/completions`, keys.alice, { model: 'chat' })).json()) as Echo;
    expect(kept.body).toBe('{"model":"chat"}');
    // A replica that is still warming up is asked again.
    let isWarm = false;
    const warming = await startReplica((request, response) => {
      if (request.url !== '/v1/models') return echo(request, response);
      response.writeHead(isWarm ? 200 : 503).end('{"data":[{"id":"warm"}]}');
    });
    targets.set(targetFor('chat', [warming]));
    for (const expected of ['chat', 'warm']) {
      const warm = (await (await post(`${url}/v1/completions`, keys.alice, { model: 'chat' })).json()) as Echo;
      expect(warm.body).toBe(`{"model":"${expected}"}`);
      isWarm = true;
    }
    // A replica without a list gets the name as sent.
    targets.set(
      targetFor(
        'chat',
        [
          await startReplica((request, response) => {
            if (request.url === '/v1/models') response.writeHead(404).end();
            else echo(request, response);
          }),
        ],
        { aliases: ['other'] },
      ),
    );
    const other = (await (await post(`${url}/v1/completions`, keys.alice, { model: 'other' })).json()) as Echo;
    expect(other.body).toBe('{"model":"other"}');
  });

  test('a renamed or deleted deployment is found under its new names only', async () => {
    const { url, targets } = await start();
    const statusOf = async (model: string) => (await post(`${url}/v1/completions`, keys.alice, { model })).status;
    const chat = targets.find('chat') as Target;
    targets.set({ ...chat, name: 'renamed', aliases: ['gpt-4o'] });
    expect(await Promise.all(['chat', 'renamed', 'gpt-4o', 'Qwen/Qwen3'].map(statusOf))).toEqual([404, 200, 200, 404]);
    // Another deployment takes over a name before the first one has lost it.
    targets.set({ ...(targets.find('public') as Target), aliases: ['gpt-4o'] });
    targets.set({ ...chat, name: 'renamed', aliases: [] });
    expect(await listed(url, keys.alice)).toEqual(['renamed', 'public', 'gpt-4o']);
    expect(await statusOf('gpt-4o')).toBe(200);
    targets.set({ ...(targets.find('public') as Target), state: 'deleting' });
    expect([await statusOf('public'), await listed(url, keys.alice)]).toEqual([404, ['renamed']]);
    targets.delete('chat');
    expect([await statusOf('renamed'), await listed(url, keys.alice)]).toEqual([404, []]);
  });

  test('wakes a deployment that is scaled to zero, and forwards the request then', async () => {
    const replica = await startModels(['woken']);
    const running = await start({
      onWake: () => setImmediate(() => running.targets.set(targetFor('chat', [replica]))),
    });
    running.targets.set(targetFor('chat', [], { state: 'scaled_to_zero' }));
    expect(await listed(running.url, keys.alice)).toContain('chat');
    expect(running.woken).toEqual([]);
    const response = await post(`${running.url}/v1/completions`, keys.alice, { model: 'chat' });
    expect([response.status, ((await response.json()) as Echo).body]).toEqual([200, '{"model":"woken"}']);
    expect(running.woken).toEqual([ids.chat.id]);
    running.targets.set(targetFor('chat', [], { state: 'paused' }));
    const paused = await post(`${running.url}/v1/completions`, keys.alice, { model: 'chat' });
    expect([paused.status, errorOf(await paused.text()).code]).toEqual([503, 'deployment_paused']);
  });

  test('long and chunked bodies pass while they arrive, wherever the model is', async () => {
    const { url } = await start();
    const text = 'é"\\'.repeat(500_000);
    for (const body of [
      { model: 'chat', messages: text },
      { messages: text, model: 'chat/adapter', n: text },
      { messages: text, n: 1, model: 'gpt-4o' },
    ]) {
      const sent = { ...body, model: body.model.endsWith('adapter') ? 'adapter' : 'chat-model' };
      const whole = await post(`${url}/v1/completions`, keys.alice, body);
      expect(((await whole.json()) as Echo).body).toBe(JSON.stringify(sent));
      const json = Buffer.from(JSON.stringify(body));
      const chunked = await post(`${url}/v1/completions`, keys.alice, '', {
        body: new ReadableStream({
          start(controller) {
            for (let at = 0; at < json.length; at += 100_000) controller.enqueue(json.subarray(at, at + 100_000));
            controller.close();
          },
        }),
        duplex: 'half',
      } as RequestInit);
      expect(((await chunked.json()) as Echo).body).toBe(JSON.stringify(sent));
    }
    const none = await post(`${url}/v1/completions`, keys.alice, { messages: text });
    expect([none.status, errorOf(await none.text()).code]).toEqual([400, 'missing_required_parameter']);
    const foreign = await post(`${url}/v1/completions`, keys.alice, { messages: text, model: 'his' });
    expect(foreign.status).toBe(404);
    const bound = await post(`${url}/v1/completions`, keys.bound, { messages: text, model: 'chat', n: text });
    expect(bound.status).toBe(403);
  });

  test('answers a preflight, HEAD and requests that it cannot route', async () => {
    const { url, seen } = await start();
    const preflight = await fetch(`${url}/v1/chat/completions`, {
      method: 'OPTIONS',
      headers: {
        Origin: 'https://a.example',
        'Access-Control-Request-Method': 'POST',
        'Access-Control-Request-Headers': 'authorization',
      },
    });
    expect([preflight.status, preflight.headers.get('access-control-allow-headers')]).toEqual([204, 'authorization']);
    const headers = { Authorization: `Bearer ${keys.alice}`, Origin: 'https://a.example' };
    const head = await fetch(`${url}/v1/models`, { method: 'HEAD', headers });
    expect([
      head.status,
      Number(head.headers.get('content-length')) > 10,
      head.headers.get('access-control-allow-origin'),
    ]).toEqual([200, true, '*']);
    for (const [method, path, status, code] of [
      ['POST', '/v1/models', 405, 'method_not_allowed'],
      ['GET', '/v1/chat/completions', 405, 'method_not_allowed'],
      ['DELETE', '/v1/responses', 405, 'method_not_allowed'],
      ['GET', '/v1', 404, 'unknown_url'],
      ['GET', '/v1/assistants', 404, 'unknown_url'],
      ['DELETE', '/v1/chat/completions/chatcmpl-1', 404, 'unknown_url'],
      ['POST', '/v1/chat/completions/chatcmpl-1', 404, 'unknown_url'],
      ['GET', '/', 404, 'deployment_not_found'],
      ['GET', '/metrics', 404, 'deployment_not_found'],
      ['GET', '/v1/models/nothing', 404, 'model_not_found'],
    ] as const) {
      const response = await fetch(`${url}${path}`, { method, headers });
      expect([method, path, response.status, errorOf(await response.text()).code]).toEqual([
        method,
        path,
        status,
        code,
      ]);
      if (status === 405) expect(response.headers.get('allow')).toMatch(/OPTIONS/);
    }
    for (const [body, init, status, code] of [
      ['', {}, 400, 'missing_required_parameter'],
      ['[]', {}, 400, 'invalid_json'],
      ['{"model":1}', {}, 400, 'invalid_type'],
      [
        'model=chat',
        { headers: { 'Content-Type': 'application/x-www-form-urlencoded' } },
        415,
        'unsupported_media_type',
      ],
      ['{"model":"chat"}', { headers: { 'Content-Encoding': 'gzip' } }, 415, 'unsupported_media_type'],
    ] as [string, RequestInit, number, string][]) {
      const response = await post(`${url}/v1/completions`, keys.alice, body, init);
      expect([body, response.status, errorOf(await response.text()).code]).toEqual([body, status, code]);
    }
    for (const [path, body, init] of [
      ['/v1/conversations', '{}', {}],
      ['/v1/uploads', '{"bytes":1}', {}],
      ['/v1/audio', 'x', { headers: { 'Content-Type': 'multipart/form-data; boundary=x' } }],
    ] as [string, string, RequestInit][]) {
      const response = await post(`${url}${path}`, keys.alice, body, init);
      expect([path, response.status, errorOf(await response.text()).code]).toEqual([path, 404, 'unknown_url']);
    }
    expect(seen).toEqual([]);
  });

  test('a path that only a deployment has is reached by its model', async () => {
    const { url } = await start();
    const response = await post(`${url}/v1/own/path`, keys.alice, { model: 'chat' });
    expect(response.status).toBe(200);
    expect((await response.json()) as Echo).toMatchObject({ url: '/v1/own/path' });
  });

  test('api.DOMAIN is the API, and no deployment', async () => {
    const { port, targets } = await start({ domain: 'serve.example' });
    targets.set(target('api', [await startReplica(echo)]));
    const ask = (path: string, key?: string) =>
      new Promise<number>((resolve, reject) => {
        sendRequest(
          {
            port,
            path,
            headers: {
              Host: `api.serve.example:${port}`,
              ...(key === undefined ? {} : { Authorization: `Bearer ${key}` }),
            },
          },
          (response) => {
            response.resume();
            resolve(response.statusCode ?? 0);
          },
        )
          .on('error', reject)
          .end();
      });
    expect([await ask('/v1/models'), await ask('/v1/models', keys.alice), await ask('/other', keys.alice)]).toEqual([
      401, 200, 404,
    ]);
  });

  test("Anthropic's interface takes the key from x-api-key, does not forward it, and has its errors", async () => {
    const { url } = await start();
    const ask = (path: string, key: string, model: string) =>
      post(`${url}${path}`, undefined, { model }, { headers: { 'X-Api-Key': key } });
    const seen = (await (await ask('/v1/messages', keys.alice, 'chat')).json()) as Echo;
    expect(seen.body).toBe('{"model":"chat-model"}');
    for (const name of ['x-api-key', 'authorization']) expect(seen.headers.map(([key]) => key)).not.toContain(name);
    expect((await ask('/v1/messages/count_tokens', keys.alice, 'gpt-4o')).status).toBe(200);
    for (const [key, model, status, type] of [
      [keys.alice, 'his', 404, 'not_found_error'],
      [keys.bound, 'chat', 403, 'permission_error'],
      ['sk-wrong', 'chat', 401, 'authentication_error'],
    ] as const) {
      const response = await ask('/v1/messages', key, model);
      expect([response.status, await response.json()]).toMatchObject([status, { type: 'error', error: { type } }]);
    }
    expect((await ask('/v1/chat/completions', keys.alice, 'chat')).status).toBe(401);
  });

  test("Anthropic's client lists exactly what its key may call", async () => {
    const { url } = await start();
    const clientOf = (apiKey: string) => new Anthropic({ baseURL: url, apiKey, maxRetries: 0 }).models;
    for (const [who, { listed: names, forbidden }] of Object.entries(REACHES)) {
      const models = clientOf(keys[who as keyof typeof REACHES]);
      const found: string[] = [];
      for await (const { id, type, display_name: name } of models.list({ limit: 2 })) {
        expect([type, name]).toEqual(['model', id]);
        found.push(id);
      }
      expect(found.sort()).toEqual([...names].sort());
      for (const name of found) expect((await models.retrieve(name)).id).toBe(name);
      for (const name of forbidden.filter((model) => CHAT.includes(model)))
        await expect(models.retrieve(name)).rejects.toMatchObject({ status: 403, type: 'permission_error' });
      await expect(models.retrieve('unknown')).rejects.toMatchObject({ status: 404, type: 'not_found_error' });
    }
    await expect(clientOf('sk-wrong').list()).rejects.toMatchObject({ status: 401, type: 'authentication_error' });
    const withoutVersion = await fetch(`${url}/v1/models`, { headers: { 'x-api-key': keys.alice } });
    expect(withoutVersion.status).toBe(401);
  });

  test('a cookie of a deployment does not reach the shared host name', async () => {
    const { url, targets } = await start();
    targets.set(
      targetFor('chat', [
        await startReplica((_request, response) => {
          response.writeHead(200, { 'Set-Cookie': 'a=1; Path=/', 'Content-Type': 'application/json' });
          response.end('{}');
        }),
      ]),
    );
    expect((await post(`${url}/v1/completions`, keys.alice, { model: 'chat' })).headers.get('set-cookie')).toBeNull();
    expect((await post(`${url}/d/chat/v1/completions`, keys.alice, { model: 'chat' })).headers.get('set-cookie')).toBe(
      'a=1; Path=/d/chat',
    );
  });

  test('cuts a stream when its key is deleted, and retries on another replica', async () => {
    const { url, targets, records } = await start();
    const dead = await startModels(['dead']);
    await dead.stop();
    targets.set(targetFor('chat', [dead, await startModels(['alive'])]));
    for (let i = 0; i < 4; i++) {
      const response = await post(`${url}/v1/completions`, keys.alice, { model: 'chat' });
      expect(((await response.json()) as Echo).body).toBe('{"model":"alive"}');
    }
    await until(() => records.length === 4);
    targets.set(
      targetFor('chat', [
        await startReplica((request, response) => {
          if (request.url === '/v1/models') return void response.writeHead(404).end();
          response.writeHead(200, { 'Content-Type': 'text/event-stream' });
          response.write('data: 1\n\n');
        }),
      ]),
    );
    const { key, secret } = await access.createKey({ owner: ALICE, name: 'short', type: 'user-level' } as never);
    const response = await post(`${url}/v1/completions`, secret, { model: 'chat', stream: true });
    await access.deleteKey(key.id);
    expect(await response.text()).toMatch(/^data: 1\n\ndata: \{"error":.*"invalid_api_key"\}\}\n\ndata: \[DONE\]\n\n$/);
    expect((await post(`${url}/v1/completions`, secret, { model: 'chat' })).status).toBe(401);
  });

  test('the official client lists models and streams', async () => {
    const { url, targets } = await start();
    targets.set(
      targetFor('chat', [
        await startReplica((request, response) => {
          if (request.url === '/v1/models') return void response.writeHead(404).end();
          response.writeHead(200, { 'Content-Type': 'text/event-stream' });
          response.end('data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\ndata: [DONE]\n\n');
        }),
      ]),
    );
    const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: keys.alice, maxRetries: 0 });
    const models: string[] = [];
    for await (const { id, created } of client.models.list()) models.push(`${id} ${created}`);
    expect(models).toContain('chat 1700000000');
    let text = '';
    for await (const chunk of await client.chat.completions.create({ model: 'chat', messages: [], stream: true }))
      text += chunk.choices[0].delta.content ?? '';
    expect(text).toBe('hi');
    await expect(client.models.retrieve('his')).rejects.toMatchObject({ status: 404, code: 'model_not_found' });
  });
});
