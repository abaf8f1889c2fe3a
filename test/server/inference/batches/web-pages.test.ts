/** A server without keys keeps web pages from what it stores: responses, chat completions, files and batches. */
import { request as httpRequest } from 'node:http';
import type { Engine } from '../../../../ts';
import { fake } from '../../../fakes/fake-addon';
import { loadTiny } from '../interfaces/support';
import { chatLine, openServer, startBatch } from './support';

const PAGE = { origin: 'https://evil.example' };
const EVIL_HOST = { host: 'evil.example:8080' };

let engine: Engine;
let server: Awaited<ReturnType<typeof openServer>>;

beforeAll(async () => {
  engine = await loadTiny();
});
beforeEach(async () => {
  fake.reset();
  server = await openServer({ engine });
});
afterEach(() => server.close());
afterAll(() => engine.close());

/** Sends any headers. `fetch` sets those that browsers set. */
function send(
  url: string,
  [method, path]: readonly [string, string],
  headers: Record<string, string>,
  body = '',
): Promise<{ status: number; body: any }> {
  return new Promise((resolve, reject) => {
    const sent = httpRequest(url + path, { method, headers }, (response) => {
      const pieces: Buffer[] = [];
      response.on('data', (piece: Buffer) => pieces.push(piece));
      response.on('end', () => {
        const text = Buffer.concat(pieces).toString();
        resolve({ status: response.statusCode!, body: text.startsWith('{') ? JSON.parse(text) : text });
      });
    });
    sent.on('error', reject);
    sent.end(body);
  });
}

/** Stores one object of each kind and returns all requests that read, change or delete it. */
async function privateRequests(): Promise<(readonly [string, string])[]> {
  const client = server.client();
  const messages = [{ role: 'user', content: 'Hi' }] as const;
  const completion = await client.chat.completions.create({ model: 'tiny', messages: [...messages], store: true });
  const response = await client.responses.create({ model: 'tiny', input: 'Hi' });
  const batch = await startBatch(client, [chatLine('a')]);
  const file = batch.input_file_id;
  return [
    ['GET', '/v1/chat/completions'],
    ['GET', `/v1/chat/completions/${completion.id}`],
    ['GET', `/v1/chat/completions/${completion.id}/messages`],
    ['POST', `/v1/chat/completions/${completion.id}`],
    ['GET', `/v1/responses/${response.id}`],
    ['GET', `/v1/responses/${response.id}/input_items`],
    ['POST', `/v1/responses/${response.id}/cancel`],
    ['GET', '/v1/files'],
    ['POST', '/v1/files'],
    ['GET', `/v1/files/${file}`],
    ['HEAD', `/v1/files/${file}`],
    ['GET', `/v1/files/${file}/content`],
    ['GET', '/v1/batches'],
    ['POST', '/v1/batches'],
    ['GET', `/v1/batches/${batch.id}`],
    ['POST', `/v1/batches/${batch.id}/cancel`],
    ['DELETE', `/v1/files/${file}`],
    ['DELETE', `/v1/responses/${response.id}`],
    ['DELETE', `/v1/chat/completions/${completion.id}`],
  ];
}

test.each<[string, Record<string, string>]>([
  ['another origin', PAGE],
  ['an opaque origin', { origin: 'null' }],
  ['another port of the same host', { origin: 'http://127.0.0.1:1' }],
  ['a page that sends no origin', { 'sec-fetch-site': 'cross-site' }],
  ['a domain whose address was changed to this server', EVIL_HOST],
  ['a page of such a domain', { ...EVIL_HOST, origin: 'http://evil.example:8080' }],
])('pages get 403 for all stored objects: %s', async (_, headers) => {
  for (const wanted of await privateRequests()) {
    const { status, body } = await send(server.url, wanted, headers);
    const expected = wanted[0] === 'HEAD' ? '' : { error: { code: 'permission_denied' } };
    expect([wanted, status]).toEqual([wanted, 403]);
    if (expected !== '') expect(body).toMatchObject(expected);
  }
  expect((await server.client().files.list()).data).toHaveLength(1);
});

test.each<[string, Record<string, string>]>([
  ['no page', {}],
  ['an address in the bar of a browser', { 'sec-fetch-site': 'none' }],
  ['an IPv6 address', { host: '[::1]:8080' }],
  ['localhost', { host: 'LOCALHOST:8080' }],
  ['a name of one label', { host: 'capstan' }],
  ['a name of a private network', { host: 'capstan.default.svc.cluster.local:8080' }],
])('other clients reach all stored objects: %s', async (_, headers) => {
  for (const wanted of await privateRequests()) {
    const { status } = await send(server.url, wanted, headers);
    expect([wanted, status]).not.toEqual([wanted, 403]);
  }
});

test('a form of a page uploads no file, which a browser sends without asking first', async () => {
  const form = new FormData();
  form.set('purpose', 'batch');
  form.set('file', new Blob([JSON.stringify(chatLine('a'))]), 'a.jsonl');
  const refused = await fetch(`${server.url}/v1/files`, { method: 'POST', headers: PAGE, body: form });
  expect(refused.status).toBe(403);
  expect((await server.client().files.list()).data).toEqual([]);
});

test('a page neither stores nor continues a conversation', async () => {
  const client = server.client();
  const { id } = await client.responses.create({ model: 'tiny', input: 'Hi' });
  const ask = (path: string, body: object, headers = PAGE) =>
    send(server.url, ['POST', path], { ...headers, 'content-type': 'application/json' }, JSON.stringify(body));
  for (const fields of [
    { previous_response_id: id, input: 'And?' },
    { input: [{ type: 'item_reference', id: id.replace('resp_', 'msg_') }] },
  ])
    expect(await ask('/v1/responses', { model: 'tiny', ...fields })).toMatchObject({
      status: 400,
      body: { error: { code: 'unsupported_value' } },
    });
  const made = await ask('/v1/responses', { model: 'tiny', input: 'Hi' });
  expect(made).toMatchObject({ status: 200, body: { store: false } });
  await expect(client.responses.retrieve(made.body.id)).rejects.toMatchObject({ status: 404 });
  const messages = [{ role: 'user', content: 'Hi' }];
  expect((await ask('/v1/chat/completions', { model: 'tiny', messages, store: true })).status).toBe(200);
  expect((await client.chat.completions.list()).data).toEqual([]);
});

test('pages of origins that were set reach stored objects, and those of others do not', async () => {
  const other = await openServer({ engine, allowedOrigins: ['https://app.example', 'http://capstan.example:8080'] });
  const statusOf = async (headers: Record<string, string>) =>
    (await send(other.url, ['GET', '/v1/files'], headers)).status;
  expect(await statusOf({ origin: 'https://app.example' })).toBe(200);
  expect(await statusOf({ origin: 'https://app.example', host: 'capstan.example:8080' })).toBe(200);
  expect(await statusOf({ host: 'capstan.example:8080' })).toBe(200);
  expect(await statusOf({ host: 'app.example:443' })).toBe(200);
  for (const refused of [PAGE, { origin: 'null' }, { origin: 'https://app.example:1' }, EVIL_HOST])
    expect(await statusOf(refused)).toBe(403);
  await other.close();
  const open = await openServer({ engine, allowedOrigins: ['*'] });
  for (const allowed of [PAGE, { origin: 'null' }, EVIL_HOST])
    expect((await send(open.url, ['GET', '/v1/files'], allowed)).status).toBe(200);
  await open.close();
});

test('with keys, pages reach the files of their key', async () => {
  const other = await openServer({ engine, hasAccess: true });
  const headers = { ...PAGE, ...EVIL_HOST, authorization: 'Bearer alice' };
  expect((await send(other.url, ['GET', '/v1/files'], headers)).status).toBe(200);
  await other.close();
});
