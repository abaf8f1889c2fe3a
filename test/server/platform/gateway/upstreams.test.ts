/** Upstreams: what they get, where they may be, and what of their responses reaches the client. */
import { readFileSync } from 'node:fs';
import { createServer as createTlsServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import dns from 'node:dns';
import tls from 'node:tls';
import { join } from 'node:path';
import { closeAll, echo, type Echo, errorOf, startGateway, target, until } from './support';
import {
  chunk,
  DONE,
  listen,
  post,
  SECRET,
  sendEvents,
  sendJson,
  startUpstream,
  upstream,
  usage,
  withBody,
} from './upstream-support';

afterEach(async () => {
  jest.restoreAllMocks();
  await closeAll();
});

const pem = (name: string) => readFileSync(join(__dirname, '../../../fakes/tls', name));

test('gets its own key and the body, and nothing else of the client', async () => {
  const { url, base } = await startUpstream(echo);
  const response = await post(url, { model: 'gpt', messages: [] }, '/v1/chat/completions?a=1', {
    headers: {
      Authorization: 'Bearer sk-capstan',
      Cookie: 'session=1',
      'X-Api-Key': 'sk-capstan',
      'X-Custom': 'mine',
      'OpenAI-Organization': 'org-1',
      'X-Request-Id': 'req-1',
      'X-Forwarded-For': '10.1.2.3',
    },
  });
  const seen = (await response.json()) as Echo;
  expect([seen.method, seen.url, seen.body]).toEqual(['POST', '/v1/chat/completions', '{"model":"gpt","messages":[]}']);
  expect(Object.fromEntries(seen.headers)).toEqual({
    host: new URL(base).host,
    accept: 'application/json',
    'accept-encoding': 'identity',
    'user-agent': 'capstan',
    authorization: `Bearer ${SECRET}`,
    'content-type': 'application/json',
    'x-request-id': 'req-1',
    'x-capstan-hops': '1',
    'content-length': '29',
    connection: 'keep-alive',
  });
});

test('a server with only messages gets its key as x-api-key, and the headers of that interface', async () => {
  const { url } = await startUpstream(echo, { interfaces: ['messages'] });
  const call = async (headers: Record<string, string>) => {
    const response = await post(url, { model: 'm', messages: [], max_tokens: 1 }, '/v1/messages', { headers });
    return Object.fromEntries(((await response.json()) as Echo).headers);
  };
  const own = await call({ 'x-api-key': 'sk-capstan' });
  expect(own).toMatchObject({ 'x-api-key': SECRET, 'anthropic-version': '2023-06-01' });
  expect(own.authorization).toBeUndefined();
  const given = await call({ 'anthropic-version': '2099-01-01', 'anthropic-beta': 'a,b' });
  expect(given).toMatchObject({ 'anthropic-version': '2099-01-01', 'anthropic-beta': 'a,b' });
});

test.each([
  ['/v1', '/v1/models', '/v1/models'],
  ['/api/openai/v1beta', '/v1/embeddings', '/api/openai/v1beta/embeddings'],
  ['/team', '/v1/chat/completions', '/team/chat/completions'],
])('with the base path "%s", %s is %s', async (path, asked, seen) => {
  const { url } = await startUpstream(echo, { path });
  const response = asked === '/v1/models' ? await fetch(`${url}/d/up${asked}`) : await post(url, { model: 'm' }, asked);
  expect(((await response.json()) as Echo).url).toBe(seen);
});

test.each([
  ['GET', '/v1/files'],
  ['DELETE', '/v1/files/file-1'],
  ['GET', '/v1/responses/resp_1'],
  ['POST', '/v1/fine_tuning/jobs'],
  ['POST', '/v1/../admin'],
  ['POST', '/v1/%2e%2e/admin'],
  ['POST', '/tokenize'],
  ['GET', '/admin'],
  ['GET', '/v1/chat/completions'],
])('%s %s does not reach it', async (method, path) => {
  let numSeen = 0;
  const { port } = await startUpstream(() => numSeen++);
  // fetch would resolve the dots.
  const { request } = await import('node:http');
  const status = await new Promise<number | undefined>((resolve, reject) => {
    const sent = request(
      { port, method, path: `/d/up${path}`, headers: { 'Content-Type': 'application/json' } },
      (got) => {
        got.resume();
        resolve(got.statusCode);
      },
    );
    sent.on('error', reject).end(method === 'POST' ? '{"model":"m"}' : undefined);
  });
  expect([404, 405]).toContain(status);
  expect(numSeen).toBe(0);
});

test('with a model, gets that one whatever the request names, and lists it alone', async () => {
  const { url } = await startUpstream(echo, { model: 'large' });
  const sentAs = async (text: string) =>
    ((await (await post(url, {}, '/v1/completions', { body: text })).json()) as Echo).body;
  expect(await sentAs('{"model":"small","prompt":"a","model":"other"}')).toBe('{"model":"large","prompt":"a"}');
  expect(await sentAs('{"prompt":"a"}')).toBe('{"model":"large","prompt":"a"}');
  const list = (await (await fetch(`${url}/d/up/v1/models`)).json()) as { data: { id: string }[] };
  expect(list.data.map(({ id }) => id)).toEqual(['up']);
});

test('the response has the name of the model that the client sent', async () => {
  const { url, records } = await startUpstream(
    withBody((body, response) => {
      if (body.stream !== true) return sendJson(response, { id: 'c', model: 'large-2026-01-01', choices: [], usage });
      sendEvents(response, chunk({ content: 'a "model":"b"' }), chunk({}, { finish_reason: 'stop' }), DONE);
      response.end();
    }),
    { model: 'large' },
  );
  expect(await (await post(url, { model: 'mine' })).json()).toEqual({ id: 'c', model: 'mine', choices: [], usage });
  const text = await (await post(url, { model: 'mine', stream: true })).text();
  const chunks = text
    .split('\n\n')
    .flatMap((event) => (event.startsWith('data: {') ? [JSON.parse(event.slice(6))] : []));
  expect(chunks.map(({ model }: { model: string }) => model)).toEqual(['mine', 'mine']);
  expect(chunks[0].choices[0].delta.content).toBe('a "model":"b"');
  expect(text.endsWith(DONE)).toBe(true);
  await until(() => records.length === 2);
  expect(records[0].usage).toEqual({ promptTokens: 7, completionTokens: 3, cachedTokens: 0 });
});

test('returns no header that names the account', async () => {
  const { url } = await startUpstream((_request, response) => {
    response.writeHead(200, {
      'Content-Type': 'application/json',
      'OpenAI-Organization': 'acme',
      'Set-Cookie': '__cf=1',
      'X-RateLimit-Remaining-Requests': '1',
      'X-Capstan-Usage': 'prompt=1;completion=1;cached=0',
      Connection: 'close, x-secret',
      'X-Secret': '1',
      Server: 'x',
    });
    response.end('{}');
  });
  const response = await post(url, {});
  const names = [...response.headers.keys()];
  for (const name of names)
    expect([
      'content-type',
      'content-length',
      'access-control-allow-origin',
      'x-request-id',
      'date',
      'uwebsockets',
      'connection',
      'keep-alive',
      'transfer-encoding',
    ]).toContain(name);
});

test('the usage of a response is its own, not a field of the tools that it repeats', async () => {
  const tools = [{ type: 'function', name: 'f', parameters: { usage: { input_tokens: 0, output_tokens: 0 } } }];
  const { url, records } = await startUpstream(
    (_request, response) => sendJson(response, { usage: { input_tokens: 7, output_tokens: 3 }, tools }),
    { interfaces: ['responses'] },
  );
  const ask = () => post(url, { model: 'x', input: 'a', tools }, '/v1/responses');
  expect((await ask()).status).toBe(200);
  await until(() => records.length === 1);
  expect(records[0].usage).toEqual({ promptTokens: 7, completionTokens: 3, cachedTokens: 0 });
});

test('a stream reports its usage, which a client that did not ask for it does not see', async () => {
  const options: unknown[] = [];
  const { url, records } = await startUpstream(
    withBody((body, response) => {
      options.push(body.stream_options);
      sendEvents(response, { ...chunk({ content: 'hi' }), usage: null }, chunk({}, { finish_reason: 'stop' }));
      sendEvents(response, { model: 'x', choices: [], usage }, DONE);
      response.end();
    }),
  );
  const plain = await (await post(url, { model: 'x', stream: true })).text();
  expect(plain).not.toContain('usage');
  const asked = await (
    await post(url, { model: 'x', stream: true, stream_options: { include_usage: true, other: 1 } })
  ).text();
  expect(asked).toContain(JSON.stringify(usage));
  expect(options).toEqual([{ include_usage: true }, { include_usage: true, other: 1 }]);
  await until(() => records.length === 2);
  for (const record of records) expect(record.usage).toMatchObject({ promptTokens: 7, completionTokens: 3 });
});

test('a stream is not buffered: each event reaches the client before the next one is sent', async () => {
  const steps: (() => void)[] = [];
  const { url } = await startUpstream((_request, response) => {
    for (const content of ['one', 'two']) steps.push(() => sendEvents(response, chunk({ content })));
    steps.push(() => response.end(DONE));
    steps.shift()?.();
  });
  const { body } = await post(url, { model: 'x', stream: true });
  const reader = (body as ReadableStream<Uint8Array>).getReader();
  const read = async () => Buffer.from((await reader.read()).value ?? []).toString();
  expect(await read()).toContain('one');
  steps.shift()?.();
  expect(await read()).toContain('two');
  steps.shift()?.();
  expect(await read()).toContain(DONE);
});

test('a long body arrives whole, and a longer one is refused', async () => {
  const { url } = await startUpstream(echo, { model: 'm' });
  const prompt = 'x'.repeat(2_000_000);
  const seen = (await (await post(url, { prompt, model: 'a' }, '/v1/completions')).json()) as Echo;
  expect(JSON.parse(seen.body)).toEqual({ prompt, model: 'm' });
  const response = await post(url, { prompt: 'x'.repeat(9_000_000) }, '/v1/completions');
  expect([response.status, errorOf(await response.text()).code]).toEqual([413, 'request_too_large']);
});

test.each([
  ['not JSON', 400, 'invalid_json'],
  ['[]', 400, 'invalid_json'],
])('the body %s is refused', async (body, status, code) => {
  const { url } = await startUpstream(echo);
  const response = await post(url, {}, '/v1/embeddings', { body });
  expect([response.status, errorOf(await response.text()).code]).toEqual([status, code]);
});

test('responses are not stored at an upstream', async () => {
  const { url } = await startUpstream(echo, { interfaces: ['chat', 'responses'] });
  const sentAs = async (body: object, path: string): Promise<unknown> =>
    JSON.parse(((await (await post(url, body, path)).json()) as Echo).body);
  for (const store of [{}, { store: true }, { store: null }]) {
    const response = { model: 'm', input: 'a' };
    expect(await sentAs({ ...response, ...store }, '/v1/responses')).toEqual({ ...response, store: false });
    const chat = { model: 'm', messages: [{ role: 'user', content: 'a' }] };
    expect(await sentAs({ ...chat, ...store }, '/v1/chat/completions')).toEqual({ ...chat, store: false });
  }
  const older = await startUpstream(echo);
  const seen = (await (await post(older.url, { model: 'm', messages: [], store: true })).json()) as Echo;
  expect(JSON.parse(seen.body)).toEqual({ model: 'm', messages: [], store: false });
});

const image = { type: 'image', source: { type: 'file', file_id: 'file_1' } };
const addition = (definition: object) => ({ type: 'tool_addition', tool: { type: 'tool_definition', definition } });
test.each([
  ['responses', { previous_response_id: 'resp_1' }],
  ['responses', { conversation: 'conv_1' }],
  ['responses', { prompt: { id: 'pmpt_1' } }],
  ['responses', { input: [{ type: 'item_reference', id: 'msg_1' }] }],
  ['responses', { background: true }],
  ['responses', { input: [{ role: 'user', content: [{ type: 'input_file', file_id: 'file-1' }] }] }],
  ['responses', { input: [{ role: 'user', content: [{ type: 'input_image', file_id: 'file-1' }] }] }],
  ['responses', { input: [{ type: 'computer_call_output', call_id: 'c', output: { file_id: 'file-1' } }] }],
  ['responses', { tools: [{ type: 'file_search', vector_store_ids: ['vs_1'] }] }],
  ['responses', { tools: [{ type: 'function', name: 'f' }, { type: 'web_search' }] }],
  ['responses', { tools: [{ type: 'code_interpreter', container: { type: 'auto' } }] }],
  ['responses', { tools: [{ type: 'mcp', server_url: 'https://example.com' }] }],
  ['responses', { tools: [{ type: 'namespace', name: 'n', tools: [{ type: 'web_search' }] }] }],
  ['responses', { service_tier: 'priority' }],
  ['chat/completions', { service_tier: 'priority' }],
  ['chat/completions', { messages: [{ role: 'user', content: [{ type: 'file', file: { file_id: 'file-1' } }] }] }],
  ['chat/completions', { messages: [{ role: 'assistant', audio: { id: 'audio_1' } }] }],
  ['chat/completions', { web_search_options: {} }],
  ['chat/completions', { models: ['expensive'] }],
  ['chat/completions', { tools: [{ type: 'web_search' }] }],
  ['messages', { messages: [{ role: 'user', content: [image] }] }],
  ['messages', { messages: [{ role: 'user', content: [{ type: 'tool_result', content: [image] }] }] }],
  ['messages', { messages: [{ role: 'user', content: [{ type: 'container_upload', file_id: 'file_1' }] }] }],
  ['messages', { tools: [{ type: 'web_search_20250305', name: 'web_search' }] }],
  ['messages', { tools: [{ type: 'code_execution_20250825', name: 'code_execution' }] }],
  ['messages', { mcp_servers: [{ type: 'url', url: 'https://example.com', name: 'a' }] }],
  ['messages', { container: 'container_1' }],
  ['messages', { fallbacks: [{ model: 'expensive' }] }],
  ['messages', { messages: [{ role: 'system', content: [addition({ type: 'web_search_20250305' })] }] }],
  ['responses', { input: [{ type: 'additional_tools', role: 'developer', tools: [{ type: 'web_search' }] }] }],
  ['messages', { speed: 'fast' }],
  ['messages/count_tokens', { messages: [{ role: 'user', content: [image] }] }],
  ['responses/input_tokens', { conversation: 'conv_1' }],
  ['embeddings', { service_tier: 'priority' }],
])('what the account stores or pays for extra is refused: %s %j', async (route, fields) => {
  let numSeen = 0;
  const { url } = await startUpstream(() => numSeen++, { interfaces: ['chat', 'responses', 'messages'] });
  const response = await post(url, { model: 'm', ...fields }, `/v1/${route}`);
  const { error } = (await response.json()) as { error: { message: string } };
  expect(response.status).toBe(400);
  expect(error.message.startsWith(`${Object.keys(fields)[0]}: expected`)).toBe(true);
  expect(numSeen).toBe(0);
});

test('no thread is stored in the account, and none is continued', async () => {
  const { url } = await startUpstream(echo, { interfaces: ['messages'] });
  const ask = (thread: object): Promise<Response> =>
    post(url, { model: 'm', messages: [], thread }, '/v1/messages', { headers: { 'anthropic-beta': 'threads' } });
  const { body } = (await (await ask({ type: 'create' })).json()) as Echo;
  expect(JSON.parse(body)).toEqual({ model: 'm', messages: [], thread: null });
  const refused = await ask({ type: 'continue', previous_message_id: 'msg_1' });
  const { error } = (await refused.json()) as { error: object };
  expect([refused.status, error]).toEqual([
    404,
    {
      type: 'not_found_error',
      message: expect.stringContaining('threads are not stored') as string,
      details: { error_code: 'thread_not_found' },
    },
  ]);
});

test.each([
  ['responses', { service_tier: 'auto', tools: [{ type: 'custom', name: 'f' }, { type: 'local_shell' }], input: 'a' }],
  [
    'responses',
    {
      tools: [{ type: 'function', name: 'f', parameters: { properties: { file_id: { type: 'string' } } } }],
      input: [],
    },
  ],
  ['responses/input_tokens', { input: 'a', tools: [{ type: 'custom', name: 'f' }] }],
  ['chat/completions', { service_tier: 'default', messages: [{ role: 'user', content: 'a' }], tools: null }],
  ['embeddings', { input: [[1, 2]] }],
  ['rerank', { documents: [{ file_id: 'mine', text: 'a' }], tools: [{ type: 'other' }] }],
  [
    'messages',
    {
      tools: [
        { type: 'bash_20250124', name: 'bash' },
        { name: 'f', input_schema: {} },
      ],
      messages: [
        { role: 'system', content: [addition({ name: 'g', input_schema: {} })] },
        { role: 'assistant', content: [{ type: 'tool_use', name: 'f', id: 't', input: { file_id: 'mine' } }] },
      ],
    },
  ],
])('what the client runs or sends itself passes: %s %j', async (route, fields) => {
  const { url } = await startUpstream(echo, { interfaces: ['chat', 'responses', 'messages'] });
  const response = await post(url, { model: 'm', ...fields }, `/v1/${route}`);
  expect(JSON.parse(((await response.json()) as Echo).body)).toMatchObject({ model: 'm', ...fields });
});

test('betas that make tokens cost more do not pass', async () => {
  const { url } = await startUpstream(echo, { interfaces: ['messages'] });
  const sentAs = async (betas: string) => {
    const headers = { 'anthropic-beta': betas };
    const response = await post(url, { model: 'm', messages: [] }, '/v1/messages', { headers });
    return Object.fromEntries(((await response.json()) as Echo).headers)['anthropic-beta'];
  };
  expect(await sentAs('context-1m-2025-08-07, interleaved-thinking-2025-05-14')).toBe(
    'interleaved-thinking-2025-05-14',
  );
  expect(await sentAs('fast-mode-2026-02-01')).toBeUndefined();
});

test('long numbers keep their digits, also if other fields change', async () => {
  const { url } = await startUpstream(echo, { model: 'large', interfaces: ['chat', 'responses'] });
  const text =
    '{"seed":9007199254740993,"tools":[{"type":"function","function":{"name":"f","parameters":{"maximum":12345678901234567890}}}],' +
    '"model":"mine","stream":true,"messages":[{"role":"user","content":"a"}]}';
  const seen = (await (await post(url, {}, '/v1/chat/completions', { body: text })).json()) as Echo;
  expect(seen.body).toContain('"seed":9007199254740993');
  expect(seen.body).toContain('{"maximum":12345678901234567890}');
  expect(JSON.parse(seen.body)).toMatchObject({
    model: 'large',
    stream: true,
    store: false,
    stream_options: { include_usage: true },
  });
});

test('of repeated fields only the one that was checked reaches it', async () => {
  const { url } = await startUpstream(echo, { interfaces: ['chat', 'responses'] });
  const body =
    '{"model":"m","input":[{"content":[{"file_id":"file-1","file_id":null}]}],"prompt":{"id":"p"},"prompt":null}';
  const seen = (await (await post(url, {}, '/v1/responses', { body })).json()) as Echo;
  expect(seen.body).not.toContain('file-1');
  expect(seen.body).not.toContain('"id"');
});

describe('where it may be', () => {
  test.each([
    'http://127.0.0.1',
    'http://[::1]',
    'http://localhost',
    'http://169.254.169.254',
    'http://10.0.0.1',
    'https://localhost',
  ])('%s is not reached without the flag', async (origin) => {
    let numSeen = 0;
    const running = await startUpstream(() => numSeen++, { options: { allowsPrivateUpstreams: false } });
    const { port } = new URL(running.base);
    running.targets.set(target('up', [upstream(`${origin}:${port}/v1`)]));
    const response = await post(running.url, { model: 'x' });
    expect([response.status, errorOf(await response.text()).code]).toEqual([502, 'upstream_unavailable']);
    expect(numSeen).toBe(0);
    await until(() => running.records.length === 1);
    expect(running.records[0].failures).toEqual(['unreachable']);
  });

  test('a name that is public first and private later is not reached', async () => {
    let numSeen = 0;
    const running = await startUpstream(() => numSeen++, { options: { allowsPrivateUpstreams: false } });
    const { port } = new URL(running.base);
    const answers = [
      [
        { address: '93.184.215.14', family: 4 },
        { address: '127.0.0.1', family: 4 },
      ],
      [{ address: '127.0.0.1', family: 4 }],
    ];
    jest
      .spyOn(dns, 'lookup')
      .mockImplementation(((_name: string, _options: object, callback: (...args: unknown[]) => void) =>
        callback(null, answers.shift() ?? [])) as never);
    running.targets.set(target('up', [upstream(`http://rebinding.example.com:${port}/v1`)]));
    for (let i = 0; i < 2; i++) expect((await post(running.url, { model: 'x' })).status).toBe(502);
    expect(numSeen).toBe(0);
    expect(answers).toEqual([]);
  });

  test('an untrusted certificate is refused before the key is sent', async () => {
    let numSeen = 0;
    const server = createTlsServer({ cert: pem('cert.pem'), key: pem('key.pem') }, () => numSeen++);
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const running = await startGateway({ allowsPrivateUpstreams: true });
    const { port } = server.address() as AddressInfo;
    running.targets.set(target('up', [upstream(`https://localhost:${port}/v1`)]));
    expect((await post(running.url, { model: 'x' })).status).toBe(502);
    expect(numSeen).toBe(0);
    server.close();
  });

  test('with a trusted certificate, requests and streams pass over TLS', async () => {
    const server = createTlsServer({ cert: pem('cert.pem'), key: pem('key.pem') }, (request, response) => {
      if (request.url === '/v1/embeddings') return echo(request, response);
      sendEvents(response, chunk({ content: 'over TLS' }), DONE);
      response.end();
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const { connect } = tls;
    jest
      .spyOn(tls, 'connect')
      .mockImplementation(((options: tls.ConnectionOptions) => connect({ ...options, ca: pem('cert.pem') })) as never);
    const running = await startGateway({ allowsPrivateUpstreams: true });
    const { port } = server.address() as AddressInfo;
    running.targets.set(target('up', [upstream(`https://localhost:${port}/v1`)]));
    const seen = (await (await post(running.url, { model: 'x' }, '/v1/embeddings')).json()) as Echo;
    expect(Object.fromEntries(seen.headers).authorization).toBe(`Bearer ${SECRET}`);
    expect(await (await post(running.url, { model: 'x', stream: true })).text()).toContain('over TLS');
    running.gateway.close();
    server.close();
  });
});

test('upstreams that form a circle end', async () => {
  let numSeen = 0;
  const running = await startUpstream(() => numSeen++);
  running.targets.set(target('up', [upstream(`${running.url}/d/up/v1`)], { fallbacks: ['dep_spare'] }));
  running.targets.set(target('spare', [upstream(running.base)]));
  const response = await post(running.url, { model: 'x' });
  expect([response.status, errorOf(await response.text()).code]).toEqual([400, 'invalid_value']);
  expect(numSeen).toBe(0);
  await until(() => running.records.length === 6);
});

test.each([
  ['of many levels', '['.repeat(30_000) + ']'.repeat(30_000)],
  ['of many lists', `[${'[],'.repeat(500_000)}[]]`],
  ['of many fields', `[{${'"a":1,'.repeat(500_000)}"a":1}]`],
])('hostile JSON %s is refused, or passes as it is', async (_name, hostile) => {
  const { url } = await startUpstream((request, response) => {
    if (request.url === '/v1/embeddings') {
      response.writeHead(200, { 'Content-Type': 'application/json' });
      return void response.end(`{"model":"a","data":${hostile}}`);
    }
    sendEvents(response, `data: {"model":"a","data":${hostile}}\n\n`, 'data: {"model"\n\n', ': note\n\n', DONE);
    response.end();
  });
  expect(await (await post(url, { model: 'x' }, '/v1/embeddings')).text()).toContain(hostile);
  const text = await (await post(url, { model: 'x', stream: true })).text();
  expect([text.includes(hostile), text.includes(': note'), text.endsWith(DONE)]).toEqual([true, true, true]);
  const tools = '{"tools":['.repeat(10_000) + ']}'.repeat(10_000);
  for (const body of [`{"model":"x","prompt":${hostile}}`, tools]) {
    const response = await post(url, {}, '/v1/chat/completions', { body });
    expect([response.status, errorOf(await response.text()).code]).toEqual([400, 'invalid_json']);
  }
});

test('a new version serves new requests, and open ones end with the old one', async () => {
  let finish = (): void => {};
  const { url, targets } = await startUpstream((_request, response) => {
    sendEvents(response, chunk({ content: 'old' }));
    finish = () => response.end(DONE);
  });
  const open = await post(url, { model: 'x', stream: true });
  const base = await listen(echo);
  targets.set(target('up', [upstream(base, { secret: 'sk-new' })]));
  const seen = (await (await post(url, { model: 'x' }, '/v1/embeddings')).json()) as Echo;
  expect(Object.fromEntries(seen.headers).authorization).toBe('Bearer sk-new');
  finish();
  expect(await open.text()).toContain(DONE);
});
