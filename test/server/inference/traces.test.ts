/** Spans of the server: in a tracer provider of OpenTelemetry's own SDK, and at a receiver of OTLP over HTTP. */
import { createServer, type IncomingHttpHeaders, type Server } from 'node:http';
import { getEventListeners } from 'node:events';
import type { AddressInfo } from 'node:net';
import { InMemorySpanExporter, SimpleSpanProcessor, TracerProvider } from '@opentelemetry/sdk-trace';
import { openTracing } from '../../../server/base/traces/open-tracing';
import { type OtlpOptions, OtlpSink } from '../../../server/base/traces/otlp-sink';
import { createHandler, type Handler } from '../../../server';
import { fake } from '../../fakes/fake-addon';
import { tinyModel } from '../../fakes/tiny-model';

const TRACE_ID = '0af7651916cd43dd8448eb211c80319c';
const PARENT_ID = 'b7ad6b7169203331';
const SECRET_TEXT = 'a prompt that no span may hold';

const exporter = new InMemorySpanExporter();
const tracerProvider = new TracerProvider({ spanProcessors: [new SimpleSpanProcessor({ exporter })] } as never);
let handler: Handler;

const post = (path: string, body: object, headers: Record<string, string> = {}) =>
  handler(
    new Request(`http://app.example${path}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...headers },
      body: JSON.stringify(body),
    }),
  );
const chat = (body: object = {}, headers: Record<string, string> = {}) =>
  post('/v1/chat/completions', { messages: [{ role: 'user', content: SECRET_TEXT }], ...body }, headers);

async function eventually<T>(find: () => T | undefined): Promise<T> {
  for (;;) {
    const found = find();
    if (found !== undefined) return found;
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}
const finishedSpan = () => eventually(() => exporter.getFinishedSpans()[0]);

beforeAll(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../../fakes/fake-addon');
  handler = await createHandler({ model: tinyModel(), servedModelNames: ['tiny'], tracerProvider });
});
beforeEach(() => {
  fake.reset();
  fake.answer = () => ({ text: 'Hello there.' });
  exporter.reset();
});
afterAll(() => handler.close());

describe('a tracer provider gets a span of a chat', () => {
  test('with its model, parameters, tokens, finish reasons and times, and without its texts', async () => {
    await (await chat({ max_tokens: 50, temperature: 0.5, seed: 3 })).json();
    const span = await finishedSpan();
    expect([span.name, span.kind, span.status.code]).toEqual(['chat tiny', 1, 0]);
    expect(span.attributes).toEqual({
      'gen_ai.operation.name': 'chat',
      'gen_ai.provider.name': 'capstan',
      'gen_ai.request.model': 'tiny',
      'gen_ai.response.model': expect.any(String),
      'gen_ai.response.id': expect.stringMatching(/^chatcmpl-/),
      'gen_ai.response.finish_reasons': ['stop'],
      'gen_ai.request.max_tokens': 50,
      'gen_ai.request.temperature': 0.5,
      'gen_ai.request.seed': 3,
      'gen_ai.output.type': 'text',
      'gen_ai.usage.input_tokens': expect.any(Number),
      'gen_ai.usage.output_tokens': expect.any(Number),
      'gen_ai.usage.cache_read.input_tokens': 0,
      'gen_ai.latency.time_in_queue': expect.any(Number),
      'gen_ai.latency.time_in_model_prefill': expect.any(Number),
      'gen_ai.latency.time_in_model_decode': expect.any(Number),
      'gen_ai.latency.time_to_first_token': expect.any(Number),
      'http.request.method': 'POST',
      'http.route': '/v1/chat/completions',
      'http.response.status_code': 200,
    });
    expect(span.attributes['gen_ai.usage.output_tokens']).toBeGreaterThan(0);
    expect(span.events.map(({ name }) => name)).toEqual(['gen_ai.first_token']);
    expect(JSON.stringify([span.attributes, span.events])).not.toMatch(/a prompt that|Hello/);
  });

  test('that continues the trace of the client', async () => {
    await (await chat({}, { traceparent: `00-${TRACE_ID}-${PARENT_ID}-01`, tracestate: 'a=1' })).json();
    const span = await finishedSpan();
    expect([span.spanContext().traceId, span.parentSpanContext?.spanId]).toEqual([TRACE_ID, PARENT_ID]);
  });

  test.each([
    'ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01',
    '00-00000000000000000000000000000000-b7ad6b7169203331-01',
    '00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01',
    '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more',
    'nonsense',
  ])('in a new trace after the invalid header %s', async (traceparent) => {
    await (await chat({}, { traceparent })).json();
    const span = await finishedSpan();
    expect(span.spanContext().traceId).not.toBe(TRACE_ID);
    expect(span.parentSpanContext).toBeUndefined();
  });

  test('when it is streamed', async () => {
    await (await chat({ stream: true })).text();
    expect((await finishedSpan()).attributes).toMatchObject({ 'gen_ai.response.finish_reasons': ['stop'] });
  });

  test('with the sums of all prompts of a completion', async () => {
    await (await post('/v1/completions', { prompt: ['One', 'Two'], max_tokens: 5 })).json();
    const { name, attributes, events } = await finishedSpan();
    expect(name).toBe('text_completion tiny');
    expect(attributes['gen_ai.response.finish_reasons']).toHaveLength(2);
    expect(events).toHaveLength(1);
  });

  test('with the code of its error', async () => {
    expect((await chat({ temperature: -1 })).status).toBe(400);
    const span = await finishedSpan();
    expect(span.attributes).toMatchObject({ 'error.type': expect.any(String), 'http.response.status_code': 400 });
    expect(span.status.code).toBe(0);
  });
});

test('requests that run no model have no span', async () => {
  await handler(new Request('http://app.example/v1/models'));
  await post('/tokenize', { prompt: 'a' });
  await (await chat()).json();
  await finishedSpan();
  expect(exporter.getFinishedSpans().map(({ name }) => name)).toEqual(['chat tiny']);
});

test('a value that is no tracer provider is refused', async () => {
  await expect(createHandler({ model: tinyModel(), tracerProvider: {} as never })).rejects.toThrow(
    'tracerProvider: expected a tracer provider of OpenTelemetry, got an object',
  );
});

describe('OTLP over HTTP', () => {
  let receiver: Server;
  let statuses: number[];
  /** The collector responds to nothing. */
  let isHanging: boolean;
  let received: { path: string; headers: IncomingHttpHeaders; body: any }[];
  const log = { debug: jest.fn(), info: jest.fn(), warn: jest.fn(), error: jest.fn() };
  const open = (env: NodeJS.ProcessEnv = {}, endpoint = urlOf('')) =>
    openTracing({ endpoint, serviceName: 'capstan' }, log as never, env)!;
  const urlOf = (path: string) => `http://127.0.0.1:${(receiver.address() as AddressInfo).port}${path}`;
  const request = (traceparent?: string) => ({
    method: 'POST',
    headers: traceparent === undefined ? [] : [['traceparent', traceparent] as const],
  });

  beforeAll(async () => {
    receiver = createServer((message, response) => {
      let text = '';
      message.on('data', (piece) => (text += piece));
      message.on('end', () => {
        received.push({ path: message.url!, headers: message.headers, body: JSON.parse(text) });
        if (!isHanging) response.writeHead(statuses.shift() ?? 200).end('{}');
      });
    });
    await new Promise<void>((resolve) => receiver.listen(0, '127.0.0.1', resolve));
  });
  beforeEach(() => {
    [statuses, received, isHanging] = [[], [], false];
    jest.clearAllMocks();
  });
  afterAll(() => {
    receiver.close();
    receiver.closeAllConnections();
  });

  test('sends spans with times, attributes, events and the resource', async () => {
    const tracing = open({
      OTEL_RESOURCE_ATTRIBUTES: 'deployment.environment=test,team=a%20b',
      OTEL_EXPORTER_OTLP_HEADERS: 'api-key=secret%3D',
    });
    const before = Date.now();
    const trace = tracing.start(request(`00-${TRACE_ID}-${PARENT_ID}-01`), '/v1/embeddings', performance.now())!;
    trace.nameModel('bge');
    trace.set({ 'gen_ai.usage.input_tokens': 7, 'a.share': 0.5, 'a.flag': true, 'a.list': ['x', 'y'] });
    trace.addEvent('gen_ai.first_token', performance.now());
    trace.fail('internal_error');
    trace.end(500, '/v1/embeddings');
    await Promise.resolve();
    await tracing.close();
    const [{ path, headers, body }] = received;
    expect([path, headers['content-type'], headers['api-key']]).toEqual(['/v1/traces', 'application/json', 'secret=']);
    const [{ resource, scopeSpans }] = body.resourceSpans;
    const entries = Object.fromEntries(resource.attributes.map(({ key, value }: any) => [key, value.stringValue]));
    expect(entries).toMatchObject({ 'service.name': 'capstan', 'deployment.environment': 'test', team: 'a b' });
    const [span] = scopeSpans[0].spans;
    expect(span).toMatchObject({
      traceId: TRACE_ID,
      parentSpanId: PARENT_ID,
      name: 'embeddings bge',
      kind: 2,
      status: { code: 2, message: 'internal_error' },
      events: [{ name: 'gen_ai.first_token' }],
    });
    expect(span.spanId).toMatch(/^[0-9a-f]{16}$/);
    for (const attribute of [
      { key: 'gen_ai.usage.input_tokens', value: { intValue: '7' } },
      { key: 'a.share', value: { doubleValue: 0.5 } },
      { key: 'a.flag', value: { boolValue: true } },
      { key: 'a.list', value: { arrayValue: { values: [{ stringValue: 'x' }, { stringValue: 'y' }] } } },
      { key: 'http.response.status_code', value: { intValue: '500' } },
      { key: 'error.type', value: { stringValue: 'internal_error' } },
    ])
      expect(span.attributes).toContainEqual(attribute);
    const startedMs = Number(BigInt(span.startTimeUnixNano) / 1_000_000n);
    expect(startedMs).toBeGreaterThanOrEqual(before - 1000);
    expect(BigInt(span.endTimeUnixNano)).toBeGreaterThanOrEqual(BigInt(span.startTimeUnixNano));
  });

  const send = async (env: NodeJS.ProcessEnv, traceparent?: string): Promise<void> => {
    const tracing = open(env);
    tracing.start(request(traceparent), '/v1/completions', performance.now())!.end(200, undefined);
    await Promise.resolve();
    await tracing.close();
  };

  test.each([
    ['always_off', undefined, '01', 0],
    ['traceidratio', '0', '01', 0],
    ['traceidratio', '1', '00', 1],
    ['parentbased_always_on', undefined, '00', 0],
    ['parentbased_always_off', undefined, '01', 1],
  ])('samples by %s %s with the parent flag %s: %i', async (OTEL_TRACES_SAMPLER, share, flags, numSent) => {
    await send({ OTEL_TRACES_SAMPLER, OTEL_TRACES_SAMPLER_ARG: share }, `00-${TRACE_ID}-${PARENT_ID}-${flags}`);
    expect(received).toHaveLength(numSent);
  });

  test('a collector that refuses spans loses them, with one line in the log', async () => {
    statuses = [400];
    await send({});
    expect(received).toHaveLength(1);
    expect(log.warn.mock.calls).toEqual([
      [{ endpoint: urlOf('/v1/traces'), problem: 'status 400', lostSpans: 1 }, expect.stringContaining('collector')],
    ]);
  });

  const openSink = (options: Partial<OtlpOptions>) =>
    new OtlpSink({
      url: new URL(urlOf('/v1/traces')),
      headers: {},
      timeoutMs: 600_000,
      resource: {},
      sampler: () => true,
      log,
      ...options,
    });
  const endSpan = (sink: OtlpSink) => sink.start('chat', undefined, 0).end(1, undefined);

  test('a collector that is down leaves no listeners behind', async () => {
    const spy = jest.spyOn(AbortSignal.prototype, 'addEventListener');
    const sink = openSink({ delayMs: 0, retryMs: 0 });
    for (let numBatches = 1; numBatches <= 8; numBatches++) {
      statuses = [503, 503, 503];
      endSpan(sink);
      await eventually(() => (received.length === 3 * numBatches && statuses.length === 0 ? true : undefined));
    }
    const signals = spy.mock.contexts as unknown as AbortSignal[];
    const numListeners = signals.map((signal) => getEventListeners(signal, 'abort').length);
    spy.mockRestore();
    await sink.close();
    expect(Math.max(...numListeners)).toBeLessThan(5);
  });

  test('a collector that hangs delays the end only by the limit, and the spans are dropped with one line', async () => {
    isHanging = true;
    const sink = openSink({ closeMs: 20 });
    for (let i = 0; i < 2_600; i++) endSpan(sink);
    await sink.close();
    expect(log.warn.mock.calls).toEqual([
      [
        expect.objectContaining({ problem: expect.stringContaining('within 20 ms'), lostSpans: 2_600 }),
        expect.anything(),
      ],
    ]);
    expect(received.length).toBeLessThan(2);
  });

  test.each([
    ['OTEL_EXPORTER_OTLP_ENDPOINT', '/base/', '/base/v1/traces'],
    ['OTEL_EXPORTER_OTLP_ENDPOINT', '', '/v1/traces'],
    ['OTEL_EXPORTER_OTLP_TRACES_ENDPOINT', '/own', '/own'],
  ])('%s with the path "%s" sends to %s', async (variable, path, expected) => {
    const tracing = openTracing({ endpoint: undefined, serviceName: 'capstan' }, log as never, {
      [variable]: urlOf(path),
    })!;
    tracing.start(request(), '/v1/completions', performance.now())!.end(200, undefined);
    await Promise.resolve();
    await tracing.close();
    expect(received.map((one) => one.path)).toEqual([expected]);
  });

  test('is off without an endpoint, and when the variables of OpenTelemetry say so', () => {
    const options = { endpoint: undefined, serviceName: 'capstan' };
    const OTEL_EXPORTER_OTLP_ENDPOINT = urlOf('');
    for (const env of [
      {},
      { OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SDK_DISABLED: 'true' },
      { OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_EXPORTER: 'none' },
    ])
      expect(openTracing(options, log as never, env)).toBeUndefined();
  });

  test.each([
    [{}, 'localhost:4317', '--otlp-traces-endpoint: expected the URL of a collector'],
    [{ OTEL_TRACES_SAMPLER: 'mine' }, undefined, 'OTEL_TRACES_SAMPLER: expected always_on'],
    [
      { OTEL_TRACES_SAMPLER: 'traceidratio', OTEL_TRACES_SAMPLER_ARG: '2' },
      undefined,
      'OTEL_TRACES_SAMPLER_ARG: expected a number from 0 to 1, got 2',
    ],
    [{ OTEL_EXPORTER_OTLP_HEADERS: 'secret' }, undefined, 'OTEL_EXPORTER_OTLP_HEADERS: expected NAME=VALUE'],
  ])('a wrong value gets an error: %j %s', (env, endpoint, message) => {
    expect(() => open(env, endpoint)).toThrow(message);
  });
});
