import { InMemorySpanExporter, SimpleSpanProcessor, TracerProvider } from '@opentelemetry/sdk-trace';
import { openTracing } from '../../../../server/base/traces/open-tracing';
import { closeAll, echo, type Echo, startGateway, startReplica, target, until } from './support';

const TRACE_ID = '0af7651916cd43dd8448eb211c80319c';
const PARENT = `00-${TRACE_ID}-b7ad6b7169203331-01`;
const exporter = new InMemorySpanExporter();
const provider = new TracerProvider({ spanProcessors: [new SimpleSpanProcessor({ exporter })] } as never);
const tracing = openTracing({ endpoint: undefined, provider, serviceName: 'gateway' }, {} as never);

const headersOf = ({ headers }: Echo, name: string): string[] =>
  headers.filter(([header]) => header === name).map(([, value]) => value);
const post = async (url: string, headers: Record<string, string>): Promise<Echo> =>
  (await (
    await fetch(url, { method: 'POST', headers: { 'content-type': 'application/json', ...headers }, body: '{}' })
  ).json()) as Echo;

beforeEach(() => exporter.reset());
afterEach(closeAll);

test('a span of the gateway continues the trace of the client and is the parent of that of the replica', async () => {
  const { url, targets } = await startGateway({ tracing });
  const replica = await startReplica(echo);
  targets.set(target('chatbot', [replica]));
  const seen = await post(`${url}/d/chatbot/v1/chat/completions`, { traceparent: PARENT, tracestate: 'a=1' });
  await until(() => exporter.getFinishedSpans().length === 1);
  const [span] = exporter.getFinishedSpans();
  const { traceId, spanId } = span.spanContext();
  expect([traceId, span.parentSpanContext?.spanId]).toEqual([TRACE_ID, 'b7ad6b7169203331']);
  expect(headersOf(seen, 'traceparent')).toEqual([`00-${TRACE_ID}-${spanId}-01`]);
  expect(headersOf(seen, 'tracestate')).toEqual(['a=1']);
  expect(span.name).toBe('chat chatbot');
  expect(span.attributes).toMatchObject({
    'gen_ai.operation.name': 'chat',
    'capstan.deployment.name': 'chatbot',
    'capstan.replica.id': replica.id,
    'http.response.status_code': 200,
  });
  expect(span.events.map(({ name }) => name)).toEqual(['gen_ai.first_byte']);
});

test('a request to no deployment has a span with its error', async () => {
  const { url } = await startGateway({ tracing });
  await fetch(`${url}/d/missing/v1/embeddings`, { method: 'POST', body: '{}' });
  await until(() => exporter.getFinishedSpans().length === 1);
  const [{ attributes, status }] = exporter.getFinishedSpans();
  expect(attributes).toMatchObject({ 'error.type': expect.any(String), 'http.response.status_code': 404 });
  expect(status.code).toBe(0);
});

test('without tracing, the headers of the client are forwarded unchanged', async () => {
  const { url, targets } = await startGateway();
  targets.set(target('chatbot', [await startReplica(echo)]));
  const seen = await post(`${url}/d/chatbot/v1/chat/completions`, { traceparent: PARENT, tracestate: 'a=1' });
  expect([headersOf(seen, 'traceparent'), headersOf(seen, 'tracestate')]).toEqual([[PARENT], ['a=1']]);
});
