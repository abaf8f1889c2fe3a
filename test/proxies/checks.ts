/** What must work through every reverse proxy. */
import assert from 'node:assert/strict';
import { Agent, type IncomingHttpHeaders, request } from 'node:http';
import OpenAI from 'openai';
import { waitUntil } from './proxies';

export interface Subject {
  /** The proxy. */
  url: string;
  /** The server itself. */
  serverUrl: string;
  key: string;
  /** A key that only 127.0.0.2 may use. */
  addressKey: string;
  forwardsAddress: boolean;
}

interface Answer {
  status: number;
  headers: IncomingHttpHeaders;
  text: string;
  isReused: boolean;
}

interface Sending {
  key: string;
  body: object;
  headers?: Record<string, string>;
  localAddress?: string;
  agent?: Agent;
  signal?: AbortSignal;
}

/** Uses node:http, because a server may respond before it has read the whole body. */
function post(url: string, { key, body, headers, ...options }: Sending): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const sent = request(
      `${url}/v1/chat/completions`,
      {
        method: 'POST',
        headers: { 'Content-Type': 'application/json', Authorization: `Bearer ${key}`, ...headers },
        ...options,
      },
      (response) => {
        let text = '';
        response.setEncoding('utf8').on('data', (part: string) => (text += part));
        response.on('error', reject);
        response.on('end', () =>
          resolve({
            status: response.statusCode!,
            headers: response.headers,
            text,
            isReused: sent.reusedSocket,
          }),
        );
      },
    );
    sent.on('error', reject);
    sent.end(JSON.stringify(body));
  });
}

const ask = (content: string, more: object = {}) => ({
  model: 'demo',
  messages: [{ role: 'user' as const, content }],
  ...more,
});
const question = (more: object = {}) => ask('What is Capstan?', more);
/** The server generates one sequence at a time, so this takes many seconds. */
const long = { max_tokens: 1900, ignore_eos: true, n: 8, temperature: 1 };
const client = ({ url, key }: Subject, apiKey = key) => new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });

async function metric({ serverUrl, key }: Subject, name: string): Promise<number> {
  const response = await fetch(`${serverUrl}/metrics`, { headers: { Authorization: `Bearer ${key}` } });
  const line = (await response.text()).split('\n').find((text) => text.startsWith(`${name} `));
  assert.ok(line !== undefined, `expected the metric ${name}`);
  return Number(line.slice(name.length + 1));
}

const runningOf = (subject: Subject) => metric(subject, 'capstan_sequences_running');
const abortsOf = (subject: Subject) => metric(subject, 'capstan_sequences_finished_total{reason="abort"}');

/** Runs `leave` and checks that the server ends the request before it has generated all of it. */
async function endsWhen(subject: Subject, leave: () => unknown): Promise<void> {
  const before = await abortsOf(subject);
  await leave();
  await waitUntil(
    'no request runs',
    async () => (await metric(subject, 'capstan_http_streams_open')) === 0 && (await runningOf(subject)) === 0,
  );
  assert.ok((await abortsOf(subject)) > before, 'expected that the server aborts the request');
}

async function streams(subject: Subject): Promise<void> {
  const stream = await client(subject).chat.completions.create({ ...question(long), stream: true });
  let chunks = 0;
  for await (const chunk of stream) {
    if (chunk.choices.length === 0 || ++chunks < 3) continue;
    assert.equal(await runningOf(subject), 1, 'expected that chunks arrive while the server generates');
    break;
  }
  await waitUntil('no request runs', async () => (await runningOf(subject)) === 0);
  let text = '';
  for await (const chunk of await client(subject).chat.completions.create({
    ...ask('Count from 1 to 5.'),
    stream: true,
  }))
    text += chunk.choices[0]?.delta.content ?? '';
  assert.equal(text, '1, 2, 3, 4, 5');
}

/** A few bytes arrive although nothing follows them: the stream waits for another request to end. */
async function doesNotBuffer(subject: Subject): Promise<void> {
  const first = new AbortController();
  const blocking = post(subject.serverUrl, {
    key: subject.key,
    body: question({ ...long, stream: true }),
    signal: first.signal,
  }).catch(() => {});
  await waitUntil('a request runs', async () => (await runningOf(subject)) === 1);
  const waiting = await fetch(`${subject.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json', Authorization: `Bearer ${subject.key}` },
    body: JSON.stringify(ask('Count from 1 to 5.', { stream: true })),
  });
  const reader = waiting.body!.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  const readMore = async () => {
    const { value, done } = await reader.read();
    text += value ?? '';
    return !done;
  };
  // A comment line follows the first chunk, which has no text yet.
  while (!text.includes('\n:\n')) assert.ok(await readMore(), 'expected a comment line');
  assert.match(text, /"content":""/);
  assert.doesNotMatch(text, /"content":"1/);
  first.abort();
  await blocking;
  while (await readMore());
  assert.match(text, /data: \[DONE\]\n\n$/);
}

async function endsStreams(subject: Subject): Promise<void> {
  const stream = await client(subject).chat.completions.create({ ...question(long), stream: true });
  await endsWhen(subject, async () => {
    for await (const _chunk of stream) break;
  });
}

async function endsRequests(subject: Subject): Promise<void> {
  const controller = new AbortController();
  const { signal } = controller;
  const answer = post(subject.url, { key: subject.key, body: question(long), signal }).catch((error: Error) => error);
  await waitUntil('a request runs', async () => (await runningOf(subject)) === 1);
  await endsWhen(subject, () => controller.abort());
  assert.equal(((await answer) as Error).name, 'AbortError');
}

/** The error arrives as the server sends it. */
async function refuses(subject: Subject, body: object, status: number, code: string): Promise<void> {
  const answer = await post(subject.url, { key: subject.key, body });
  assert.equal(answer.status, status, answer.text.slice(0, 200));
  assert.equal(JSON.parse(answer.text).error.code, code);
}

async function keepsConnections({ url, key }: Subject): Promise<void> {
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  let reused = 0;
  for (let i = 0; i < 200; i++) {
    const { status, isReused, text } = await post(url, { key, agent, body: question({ max_tokens: 1 }) });
    assert.equal(status, 200, text);
    if (isReused) reused++;
  }
  agent.destroy();
  assert.equal(reused, 199);
}

async function knowsClients({ url, addressKey: key, forwardsAddress }: Subject): Promise<void> {
  const body = question({ max_tokens: 1 });
  const from = async (localAddress: string, headers = {}) =>
    (await post(url, { key, body, localAddress, headers })).status;
  assert.equal(await from('127.0.0.3'), 403);
  if (!forwardsAddress) return;
  assert.equal(await from('127.0.0.2'), 200);
  assert.equal(await from('127.0.0.3', { 'X-Forwarded-For': '127.0.0.2' }), 403);
}

export const CHECKS: Record<string, (subject: Subject) => Promise<void>> = {
  chat: async (subject) => {
    const { choices } = await client(subject).chat.completions.create(question());
    assert.match(choices[0].message.content!, /Capstan/);
  },
  'chat, streamed': streams,
  'single bytes of a stream': doesNotBuffer,
  'the client leaves a stream': endsStreams,
  'the client leaves a request': endsRequests,
  'a prompt of 8 MB': (subject) => refuses(subject, ask('word '.repeat(1_600_000)), 400, 'context_length_exceeded'),
  'a body of 40 MB': async (subject) => {
    for (let i = 0; i < 5; i++) await refuses(subject, ask('x'.repeat(40_000_000)), 413, 'request_too_large');
  },
  '200 requests over one connection': keepsConnections,
  'an unknown key': async (subject) => {
    await assert.rejects(client(subject, 'csk_unknown').chat.completions.create(question()), { status: 401 });
  },
  'addresses of clients': knowsClients,
};
