/** The client of `capstan bench serve` against correct and faulty servers. */
import { readServeBenchFlags, type ServeBenchFlags } from '../../../server/cli/bench/serve-flags';
import type { ServeBenchOptions } from '../../../server/bench/options';
import { Random } from '../../../server/bench/random';
import { type BenchRun, runServeBench } from '../../../server/bench/run';
import { summarize } from '../../../server/bench/summary';
import { App } from '../../../server/inference/app';
import { createTransport } from '../../../server/http/create-transport';
import { Engine } from '../../../ts';
import { fake } from '../../fakes/fake-addon';
import { tinyModel } from '../../fakes/tiny-model';
import { sendCompletion, event, type Script, type ScriptedServer, startScripted, text, usage } from './scripted-server';

const DEFAULTS: ServeBenchFlags = {
  backend: 'openai',
  host: '127.0.0.1',
  port: '8080',
  datasetName: 'random',
  randomInputLen: '5',
  randomOutputLen: '3',
  randomRangeRatio: '0',
  randomPrefixLen: '0',
  prefixRepetitionPrefixLen: '4',
  prefixRepetitionSuffixLen: '2',
  prefixRepetitionNumPrefixes: '2',
  prefixRepetitionOutputLen: '1',
  numPrompts: '4',
  numWarmups: '0',
  requestRate: 'inf',
  burstiness: '1',
  seed: '0',
  timeout: '100',
  readyCheckTimeoutSec: '0',
  metricPercentiles: '50,99',
  percentileMetrics: 'ttft',
  resultDir: '.',
};

function options(url: string, flags: Partial<ServeBenchFlags> = {}): ServeBenchOptions {
  return readServeBenchFlags({ ...DEFAULTS, baseUrl: url, ...flags }, {});
}

function run(
  url: string,
  flags: Partial<ServeBenchFlags> = {},
  signal: AbortSignal = new AbortController().signal,
): Promise<BenchRun> {
  return runServeBench(options(url, flags), { signal, onProgress: () => {} });
}

let server: ScriptedServer;
const serve = async (script: Script, models?: object) => (server = await startScripted(script, models));
afterEach(() => server?.close());

test('sends the requests that the flags describe to the first model', async () => {
  await serve((_, response) => sendCompletion(response, 'a', 'b', 'c'));
  await run(`${server.url}/v1/`, {
    ignoreEos: true,
    temperature: '0.5',
    topK: '3',
    extraBody: '{"cache_salt": "s"}',
    apiKey: 'secret',
    header: ['X-Team=t'],
  });
  // The first request is the test request.
  expect(server.received).toHaveLength(1 + 4);
  const { path, headers, body } = server.received[1];
  expect([path, headers.authorization, headers['x-team']]).toEqual(['/v1/completions', 'Bearer secret', 't']);
  expect(body).toEqual({
    model: 'scripted',
    prompt: expect.anything(),
    max_tokens: 3,
    temperature: 0.5,
    top_k: 3,
    stream: true,
    stream_options: { include_usage: true },
    ignore_eos: true,
    cache_salt: 's',
  });
  for (const {
    body: { prompt },
  } of server.received) {
    expect(prompt).toHaveLength(5);
    for (const id of prompt) expect(id).toBeLessThan(500);
  }
});

test("takes token counts from the server's usage and times from chunks with text", async () => {
  const gapMs = 200;
  await serve(async (_, response) => {
    response.writeHead(200, { 'Content-Type': 'text/event-stream' });
    response.write(': a comment\n\n' + event({ choices: [{ index: 0, text: '' }] }));
    for (const piece of ['a', 'b']) {
      await new Promise((resolve) => setTimeout(resolve, gapMs));
      response.write(text(piece));
    }
    response.end(usage(11, 5, 8) + event('[DONE]'));
  });
  const { outcomes } = await run(server.url, { numPrompts: '1' });
  const [{ sentAt, chunkTimes, endedAt, ...counts }] = outcomes;
  expect(counts).toMatchObject({ promptTokens: 11, completionTokens: 5, cachedTokens: 8 });
  expect(chunkTimes).toHaveLength(2);
  // Timers may fire slightly early, but much later than the chunk without text was sent.
  expect(chunkTimes[0] - sentAt).toBeGreaterThan(gapMs / 2);
  expect(chunkTimes[1] - chunkTimes[0]).toBeGreaterThan(gapMs / 2);
  expect(endedAt).toBeGreaterThanOrEqual(chunkTimes[1]);
});

test('reads events however the stream is split', async () => {
  const stream = `: ping\n\n${text('ü')}event: x\ndata:${JSON.stringify({ choices: [{ text: 'b' }] })}\r\n\r\n${usage(3, 2)}data: [DONE]\n`;
  const bytes = Buffer.from(stream);
  const random = new Random(2);
  await serve(async (_, response) => {
    response.writeHead(200, { 'Content-Type': 'text/event-stream' });
    for (let at = 0; at < bytes.length;) {
      const end = at + random.integer(1, 40);
      response.write(bytes.subarray(at, end));
      await new Promise((resolve) => setImmediate(resolve));
      at = end;
    }
    response.end();
  });
  const { outcomes } = await run(server.url, { numPrompts: '20' });
  for (const { errorKind, chunkTimes, promptTokens, completionTokens } of outcomes)
    expect([errorKind, chunkTimes.length, promptTokens, completionTokens]).toEqual([undefined, 2, 3, 2]);
});

test('--max-concurrency limits the open requests', async () => {
  let onThird = () => {};
  const third = new Promise<void>((resolve) => (onThird = resolve));
  await serve(async (_, response, index) => {
    // The first request checks that the server is ready.
    if (index === 0) return sendCompletion(response, 'a');
    if (index === 3) onThird();
    await third;
    // Time for a fourth request to arrive, if the limit did not hold.
    await new Promise((resolve) => setTimeout(resolve, 20));
    sendCompletion(response, 'a');
  });
  await run(server.url, { numPrompts: '12', maxConcurrency: '3' });
  expect(server.peakConcurrency()).toBe(3);
});

test('requests are sent on time, however slow the server is', async () => {
  const waiting: (() => void)[] = [];
  await serve((_, response, index) => {
    if (index === 0) return sendCompletion(response, 'a');
    waiting.push(() => sendCompletion(response, 'a'));
    // The server responds only when it has all requests: a client that waited for responses would hang.
    if (index === 8) waiting.forEach((respond) => respond());
  });
  const { outcomes } = await run(server.url, { numPrompts: '8', requestRate: '200' });
  expect(outcomes.filter(({ errorKind }) => errorKind !== undefined)).toEqual([]);
  for (const { sentAt, dueAt } of outcomes) expect(sentAt).toBeGreaterThanOrEqual(dueAt - 1);
});

test('errors are counted by kind', async () => {
  const scripts: Script[] = [
    (_, response) => sendCompletion(response, 'a'),
    (_, response) =>
      void response
        .writeHead(429, { 'Content-Type': 'application/json' })
        .end('{"error": {"message": "full", "type": "rate_limit_error", "param": null, "code": "queue_full"}}'),
    (_, response) =>
      void response
        .writeHead(429, {})
        .end('{"error": {"message": "full", "type": "rate_limit_error", "param": null, "code": "queue_full"}}'),
    (_, response) => void response.writeHead(502).end('<html>Bad gateway</html>'),
    (_, response) => void response.writeHead(401).end('{"error": "Unauthorized"}'),
    (_, response) =>
      void response
        .writeHead(200)
        .end(text('a') + event({ error: { message: 'lost', code: 'engine_dead' } }) + event('[DONE]')),
    (_, response) => void response.writeHead(200).end(text('a')),
    (_, response) => {
      response.writeHead(200);
      response.write(text('a'), () => response.destroy());
    },
    (_, response) => void response.writeHead(200).end('data: {"choices": [\n\n'),
    () => {},
  ];
  await serve((request, response, index) => scripts[index](request, response, index));
  const { outcomes } = await run(server.url, {
    numPrompts: String(scripts.length - 1),
    maxConcurrency: '1',
    timeout: '3',
  });
  const { errors, completed, failed } = summarize(
    { model: '', outcomes, durationMs: 1, numUnsent: 0 },
    options(server.url),
  );
  expect([completed, failed]).toEqual([0, 9]);
  expect(Object.fromEntries(errors.map(({ kind, count }) => [kind, count]))).toEqual({
    'http 429 queue_full': 2,
    'http 502': 1,
    'http 401': 1,
    'stream error engine_dead': 1,
    'stream without [DONE]': 1,
    'connection cut': 1,
    'unreadable event': 1,
    timeout: 1,
  });
  expect(errors.map(({ message }) => message)).toEqual(
    expect.arrayContaining(['full', '<html>Bad gateway</html>', 'Unauthorized', 'lost']),
  );
});

test('a failure of the first request ends the run', async () => {
  await serve(
    (_, response) =>
      void response.writeHead(404).end('{"error": {"message": "no such model", "code": "model_not_found"}}'),
  );
  await expect(run(server.url)).rejects.toThrow('the first request to http://127.0.0.1:');
  await expect(run(server.url)).rejects.toThrow('failed (http 404 model_not_found): no such model');
  await expect(run('http://127.0.0.1:1')).rejects.toThrow('is not ready (connect ECONNREFUSED 127.0.0.1:1)');
});

test('stopping keeps the results so far', async () => {
  const stop = new AbortController();
  await serve((_, response, index) => {
    if (index < 3) return sendCompletion(response, 'a');
    stop.abort();
  });
  const { outcomes, numUnsent } = await run(server.url, { numPrompts: '10', maxConcurrency: '1' }, stop.signal);
  expect(outcomes.map(({ errorKind }) => errorKind)).toEqual([undefined, undefined, 'stopped']);
  expect(numUnsent).toBe(7);
});

test('sends prompts that share prefixes', async () => {
  await serve((_, response) => sendCompletion(response, 'a'));
  await run(server.url, { datasetName: 'prefix_repetition', numPrompts: '6' });
  const prompts: number[][] = server.received.slice(1).map(({ body }) => body.prompt);
  expect(prompts.every((prompt) => prompt.length === 6)).toBe(true);
  expect(new Set(prompts.map((prompt) => prompt.slice(0, 4).join())).size).toBe(2);
  expect(new Set(prompts.map((prompt) => prompt.slice(4).join())).size).toBe(6);
});

describe('against a Capstan server', () => {
  let engine: Engine;
  beforeAll(async () => {
    process.env.CAPSTAN_ADDON = require.resolve('../../fakes/fake-addon');
    engine = await Engine.load(tinyModel());
  });
  afterAll(() => engine.close());

  test.each(['uws', 'node'] as const)('chats over %s', async (name) => {
    fake.reset();
    const log = { debug: jest.fn(), info: jest.fn(), warn: jest.fn(), error: jest.fn() };
    const app = new App({
      servedNames: ['tiny'],
      healthStallTimeoutMs: 1000,
      sse: { pingIntervalMs: 1000, slowClientTimeoutMs: 60_000 },
      log: log as never,
    });
    app.serve(engine);
    const transport = await createTransport(name, {
      handler: (request, reply) => app.handle(request, reply),
      maxBodyBytes: 1 << 20,
      bodyTimeoutMs: 60_000,
    });
    const port = await transport.listen('127.0.0.1', 0);
    const { outcomes, model } = await run(`http://127.0.0.1:${port}`, {
      backend: 'openai-chat',
      numPrompts: '10',
      randomOutputLen: '6',
    });
    expect(model).toBe('tiny');
    expect(outcomes).toHaveLength(10);
    for (const { errorKind, completionTokens, chunkTimes } of outcomes)
      expect([errorKind, completionTokens, chunkTimes.length]).toEqual([undefined, 6, 6]);
    await transport.close();
  });
});
