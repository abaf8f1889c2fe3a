/** GET /metrics of the complete app with the fake engine. */
import { Engine } from '../../../../ts';
import type { Access } from '../../../../server/access';
import { App } from '../../../../server/inference/app';
import { Metrics } from '../../../../server/inference/metrics/metrics';
import { VLLM_ALIASES } from '../../../../server/inference/metrics/vllm-names';
import { fake } from '../../../fakes/fake-addon';
import { exchange } from '../../../fakes/memory-exchange';
import { loadPoolingEngine } from '../../../fakes/pooling-engine';
import { tinyModel } from '../../../fakes/tiny-model';

const log = { debug: jest.fn(), info: jest.fn(), warn: jest.fn(), error: jest.fn() };
const CHAT = '/v1/chat/completions';
const MESSAGES = [{ role: 'user', content: 'Hi' }];

let engine: Engine;
beforeAll(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../../../fakes/fake-addon');
  engine = await Engine.load(tinyModel());
});
beforeEach(() => {
  fake.reset();
  fake.answer = () => ({ text: 'Hello.' });
});
afterAll(() => engine.close());

function makeServer(
  compat: 'none' | 'vllm' = 'none',
  access?: Pick<Access, 'check' | 'stats'>,
  served = engine,
): { app: App; metrics: Metrics } {
  const metrics = new Metrics({ compat });
  const app = new App({
    servedNames: ['tiny'],
    healthStallTimeoutMs: 1000,
    sse: { pingIntervalMs: 15_000, slowClientTimeoutMs: 60_000 },
    log: log as never,
    routes: [metrics.route],
    onEnd: metrics.onEnd,
    ...(access === undefined ? {} : { access: metrics.counting(access as Access) }),
  });
  metrics.watch(app);
  app.serve(metrics.observing(served, 'tiny'));
  return { app, metrics };
}

/** Returns the value of a sample, with labels in any order, or undefined. */
async function scrape(
  app: App,
  headers: [string, string][] = [],
): Promise<(name: string, labels?: Record<string, string>) => number | undefined> {
  const reply = await exchange(app, '/metrics', undefined, { headers });
  expect([reply.status, reply.headers['Content-Type']]).toEqual([200, 'text/plain; version=0.0.4; charset=utf-8']);
  const samples = new Map(
    reply.text
      .split('\n')
      .filter((line) => line !== '' && !line.startsWith('#'))
      .map((line) => {
        const [, name, labels = '', value] = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line) ?? [];
        return [`${name} ${labels.split(',').sort().join(',')}`, Number(value)];
      }),
  );
  return (name, labels = {}) =>
    samples.get(
      `${name} ${Object.entries(labels)
        .map(([key, text]) => `${key}="${text}"`)
        .sort()
        .join(',')}`,
    );
}

test('the observed engine has stable methods and all properties of the engine', async () => {
  const observed = new Metrics({ compat: 'none' }).observing(engine, 'tiny');
  expect(Reflect.get(observed, 'stats')).toBe(Reflect.get(observed, 'stats'));
  expect(observed.info).toBe(engine.info);
  expect([...(await observed.tokenize('a'))]).toEqual([97]);
});

test('observes a finished request once, with and without streaming', async () => {
  const { app } = makeServer();
  await exchange(app, CHAT, { messages: MESSAGES, max_tokens: 50 });
  await exchange(app, CHAT, { messages: MESSAGES, stream: true, n: 2, temperature: 1 });
  const sample = await scrape(app);
  expect(sample('capstan_request_latency_seconds_count')).toBe(2);
  // Times of the fake engine: 1 ms queue, 2 ms prefill, 3 ms for the 5 tokens after the first.
  expect(sample('capstan_queue_time_seconds_sum')).toBeCloseTo(0.002);
  expect(sample('capstan_prefill_time_seconds_sum')).toBeCloseTo(0.004);
  expect(sample('capstan_decode_time_seconds_sum')).toBeCloseTo(0.006);
  expect(sample('capstan_inference_time_seconds_sum')).toBeCloseTo(0.01);
  expect(sample('capstan_request_latency_seconds_sum')).toBeCloseTo(0.012);
  expect(sample('capstan_time_to_first_token_seconds_sum')).toBeCloseTo(0.006);
  expect(sample('capstan_time_per_output_token_seconds_sum')).toBeCloseTo((2 * 0.003) / 5);
  expect(sample('capstan_request_prompt_tokens_sum')).toBe(42);
  expect(sample('capstan_request_completion_tokens_sum')).toBe(18);
  expect(sample('capstan_request_longest_choice_tokens_sum')).toBe(12);
  expect([sample('capstan_request_max_tokens_count'), sample('capstan_request_max_tokens_sum')]).toEqual([1, 50]);
  expect(sample('capstan_request_choices_sum')).toBe(3);
});

test('observes embeddings and scores, and none that failed', async () => {
  const embedder = await loadPoolingEngine('embed');
  const { app } = makeServer('none', undefined, embedder);
  await exchange(app, '/v1/embeddings', { input: ['ab', 'c'] });
  await exchange(app, '/rerank', { query: 'a', documents: ['b', 'c', 'd'] });
  await exchange(app, '/score', { queries: 'a', documents: 'b' });
  expect((await exchange(app, '/v1/embeddings', { input: 'a', dimensions: 99 })).status).toBe(400);
  const sample = await scrape(app);
  expect(sample('capstan_request_inputs_count')).toBe(3);
  expect(sample('capstan_request_inputs_sum')).toBe(2 + 3 + 1);
  expect(sample('capstan_request_prompt_tokens_sum')).toBe(3 + 6 + 2);
  expect(sample('capstan_request_latency_seconds_count')).toBe(3);
  expect(sample('capstan_time_to_first_token_seconds_count')).toBe(0);
  for (const [handler, status] of [
    ['/v1/embeddings', '200'],
    ['/v1/embeddings', '400'],
    ['/rerank', '200'],
    ['/score', '200'],
  ])
    expect(sample('capstan_http_requests_total', { handler, method: 'POST', status })).toBe(1);
  await embedder.close();
});

test('observes no token time for one token, and nothing for failed or aborted requests', async () => {
  const { app } = makeServer();
  fake.answer = () => ({ text: 'a' });
  await exchange(app, CHAT, { messages: MESSAGES });
  expect((await scrape(app))('capstan_time_per_output_token_seconds_count')).toBe(0);
  fake.answer = () => ({ text: 'ab', reason: 'error', errorCode: 'numeric_error' });
  expect((await exchange(app, CHAT, { messages: MESSAGES })).status).toBe(500);
  const sample = await scrape(app);
  expect(sample('capstan_request_latency_seconds_count')).toBe(1);
  expect(sample('capstan_http_requests_total', { handler: CHAT, method: 'POST', status: '500' })).toBe(1);
});

test('reads the counts of the engine at each scrape', async () => {
  const { app } = makeServer();
  const stats = engine.stats();
  const counts = {
    ...stats,
    numRunning: 3,
    numWaiting: 4,
    queuedPromptTokens: 50,
    numBlocks: 10,
    numFreeBlocks: 2,
    numCachedBlocks: 3,
    snapshotBytes: 5_000,
    numSnapshotHits: 9,
    grammarCacheBytes: 12_345,
    numEvictions: 6,
    numDiskBlocks: 21,
    diskBytes: 22,
    numDiskHits: 23,
    numDiskDeclined: 24,
    diskCachedTokens: 25,
    diskBytesRead: 26,
    diskBytesWritten: 27,
    numDiskEvictions: 28,
    numDiskSkipped: 29,
    numDiskDamaged: 30,
    numDrafts: 8,
    numDraftTokens: 20,
    numAcceptedTokens: [7, 4, 1],
    numPreemptions: 7,
    numSteps: 100,
    promptTokens: 80,
    cachedTokens: 30,
    completionTokens: 90,
    msSinceLastStep: 1500,
    numFinished: { stop: 1, length: 2, abort: 3, error: 4 },
  };
  const spy = jest.spyOn(engine, 'stats').mockReturnValue(counts);
  for (const _again of [1, 2]) {
    const sample = await scrape(app);
    expect(sample('capstan_sequences_running')).toBe(3);
    expect(sample('capstan_sequences_waiting')).toBe(4);
    expect(sample('capstan_queued_prompt_tokens')).toBe(50);
    expect(sample('capstan_kv_cache_usage_ratio')).toBe(0.5);
    expect(['used', 'cached', 'free'].map((state) => sample('capstan_kv_cache_blocks', { state }))).toEqual([5, 3, 2]);
    expect([sample('capstan_state_snapshot_bytes'), sample('capstan_state_snapshot_hits_total')]).toEqual([5_000, 9]);
    expect(sample('capstan_grammar_cache_bytes')).toBe(12_345);
    expect(sample('capstan_evictions_total')).toBe(6);
    expect(
      [
        'blocks',
        'bytes',
        'hits_total',
        'declined_total',
        'tokens_total',
        'read_bytes_total',
        'written_bytes_total',
        'evictions_total',
        'skipped_total',
        'damaged_total',
      ].map((name) => sample(`capstan_disk_cache_${name}`)),
    ).toEqual([21, 22, 23, 24, 25, 26, 27, 28, 29, 30]);
    expect(sample('capstan_preemptions_total')).toBe(7);
    expect(sample('capstan_steps_total')).toBe(100);
    expect(
      ['drafts', 'draft_tokens', 'accepted_tokens'].map((name) => sample(`capstan_spec_decode_${name}_total`)),
    ).toEqual([8, 20, 12]);
    expect(
      ['0', '1', '2'].map((position) => sample('capstan_spec_decode_accepted_tokens_per_pos_total', { position })),
    ).toEqual([7, 4, 1]);
    expect([
      sample('capstan_prompt_tokens_total'),
      sample('capstan_cached_tokens_total'),
      sample('capstan_completion_tokens_total'),
    ]).toEqual([80, 30, 90]);
    expect([sample('capstan_prefix_cache_queries_total'), sample('capstan_prefix_cache_hits_total')]).toEqual([80, 30]);
    expect([sample('capstan_step_tokens_sum'), sample('capstan_step_tokens_count')]).toEqual([140, 100]);
    expect(
      ['stop', 'length', 'abort', 'error'].map((reason) => sample('capstan_sequences_finished_total', { reason })),
    ).toEqual([1, 2, 3, 4]);
    expect([sample('capstan_engine_up'), sample('capstan_seconds_since_last_step')]).toEqual([1, 1.5]);
  }
  spy.mockReturnValue({ ...counts, failure: 'device gone' });
  expect((await scrape(app))('capstan_engine_up')).toBe(0);
  spy.mockRestore();
});

test('labels requests by route, not by path, and unknown methods as one', async () => {
  const { app, metrics } = makeServer();
  for (const path of ['/v1/models/tiny', '/v1/models/other', '/nope', '/nope/2']) await exchange(app, path);
  for (const method of ['BREW', 'PROPFIND']) await exchange(app, '/nope', undefined, { method });
  const body = JSON.stringify({ messages: MESSAGES });
  const answer = await exchange(app, CHAT, body);
  const sample = await scrape(app);
  const requests = (handler: string, method: string, status: string) =>
    sample('capstan_http_requests_total', { handler, method, status });
  expect([
    requests('/v1/models/{model}', 'GET', '200'),
    requests('/v1/models/{model}', 'GET', '404'),
    requests('none', 'GET', '404'),
    requests('none', 'other', '404'),
  ]).toEqual([1, 1, 2, 2]);
  expect(sample('capstan_http_request_duration_seconds_count', { handler: CHAT, method: 'POST' })).toBe(1);
  expect(sample('capstan_http_request_size_bytes_sum', { handler: CHAT })).toBe(body.length);
  expect(sample('capstan_http_response_size_bytes_sum', { handler: CHAT })).toBe(Buffer.byteLength(answer.text));
  expect(sample('capstan_http_requests_open')).toBe(1);
  expect(await metrics.render()).not.toContain('nope');
});

test('counts open streams and clients that disconnect', async () => {
  const { app } = makeServer();
  fake.answer = () => ({ text: 'and on '.repeat(1000), stepMs: 5 });
  const controller = new AbortController();
  const running = exchange(app, CHAT, { messages: MESSAGES, stream: true }, { signal: controller.signal });
  while (fake.requests.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
  expect((await scrape(app))('capstan_http_streams_open')).toBe(1);
  controller.abort();
  await running;
  const waiting = exchange(app, CHAT, { messages: MESSAGES }, { signal: AbortSignal.abort() });
  await waiting;
  const sample = await scrape(app);
  expect(sample('capstan_http_streams_open')).toBe(0);
  expect(sample('capstan_client_aborts_total', { handler: CHAT })).toBe(2);
  expect(sample('capstan_http_requests_total', { handler: CHAT, method: 'POST', status: '499' })).toBe(1);
});

test('counts synchronous and asynchronous key checks by outcome', async () => {
  const granted = { ok: true as const, keyId: 'key_secretish', ownerId: 'own_1', done: () => {} };
  const denied = {
    ok: false as const,
    status: 401 as const,
    code: 'invalid_api_key' as const,
    message: 'no',
    headers: {},
  };
  const access: Pick<Access, 'check' | 'stats'> = {
    check: ({ headers }) =>
      headers.some(([, value]) => value === 'later') ? Promise.resolve(granted) : headers.length > 0 ? granted : denied,
    stats: () => ({ numKeys: 5, appliedRev: 1, staleMs: 250 }),
  };
  const { app, metrics } = makeServer('none', access);
  expect((await exchange(app, '/v1/models')).status).toBe(401);
  expect((await exchange(app, '/v1/models', undefined, { headers: [['authorization', 'later']] })).status).toBe(200);
  const sample = await scrape(app, [['authorization', 'now']]);
  expect([
    sample('capstan_access_checks_total', { outcome: 'granted' }),
    sample('capstan_access_checks_total', { outcome: 'invalid_api_key' }),
  ]).toEqual([2, 1]);
  expect([sample('capstan_access_keys'), sample('capstan_access_staleness_seconds')]).toEqual([5, 0.25]);
  expect(await metrics.render()).not.toContain('key_secretish');
});

test('reports zeros and no model before the model is loaded', async () => {
  const metrics = new Metrics({ compat: 'vllm' });
  const text = await metrics.render();
  expect(text).toContain('\ncapstan_engine_up 0\n');
  expect(text).not.toMatch(/^capstan_model_info\{/m);
  expect(text).toMatch(/^capstan_build_info\{version="\d+\.\d+\.\d+",node="v\d+\.[^"]*"\} 1$/m);
});

test('reports versions, the process and the event loop', async () => {
  const { metrics } = makeServer();
  const text = await metrics.render();
  expect(text).toMatch(
    /^capstan_model_info\{model_name="tiny",task="generate",architecture="[^"]+",.*backend="fake",isa="none",threads="?1"?,tensor_parallel_size="?1"?,max_model_len="?4096"?\} 1$/m,
  );
  for (const name of [
    'process_cpu_seconds_total',
    'process_resident_memory_bytes',
    'nodejs_eventloop_lag_p99_seconds',
    'nodejs_heap_size_used_bytes',
    'nodejs_gc_duration_seconds',
  ])
    expect(text).toContain(`# TYPE ${name} `);
});

describe('--metrics-compat vllm', () => {
  /** The names of the specification (section 5), including both names of renamed metrics. */
  const NAMES =
    `num_requests_running num_requests_waiting kv_cache_usage_perc gpu_cache_usage_perc cache_config_info prompt_tokens_total generation_tokens_total request_success_total prefix_cache_queries_total
    prefix_cache_hits_total gpu_prefix_cache_queries_total gpu_prefix_cache_hits_total num_preemptions_total time_to_first_token_seconds inter_token_latency_seconds time_per_output_token_seconds
    e2e_request_latency_seconds request_queue_time_seconds request_inference_time_seconds request_prefill_time_seconds request_decode_time_seconds request_prompt_tokens request_generation_tokens
    request_max_num_generation_tokens request_params_n request_params_max_tokens iteration_tokens_total`.split(/\s+/);

  test('emits every vLLM name with a model label and our value', async () => {
    const { app } = makeServer('vllm');
    await exchange(app, CHAT, { messages: MESSAGES, max_tokens: 50 });
    await exchange(app, '/v1/models/x');
    await exchange(app, '/nope');
    const { text } = await exchange(app, '/metrics');
    for (const name of NAMES)
      expect(text).toMatch(new RegExp(`^vllm:${name}(_sum)?\\{model_name="tiny"[^\n]*\\} `, 'm'));
    expect(text).not.toMatch(/^vllm:(?!.*model_name="tiny")/m);
    const sample = await scrape(app);
    const model = { model_name: 'tiny' };
    expect(sample('vllm:time_to_first_token_seconds_sum', model)).toBe(
      sample('capstan_time_to_first_token_seconds_sum'),
    );
    expect(sample('vllm:time_to_first_token_seconds_bucket', { ...model, le: '0.005' })).toBe(1);
    expect(sample('vllm:request_success_total', { ...model, finished_reason: 'stop' })).toBe(
      sample('capstan_sequences_finished_total', { reason: 'stop' }),
    );
    expect(sample('http_requests_total', { handler: CHAT, method: 'POST', status: '2xx' })).toBe(1);
    expect(sample('http_request_duration_seconds_count', { handler: 'none', method: 'GET' })).toBe(1);
  });

  test('merges statuses of one class', async () => {
    const { app } = makeServer('vllm');
    await exchange(app, CHAT, {});
    await exchange(app, CHAT, '{', { headers: [['content-type', 'text/plain']] });
    expect((await scrape(app))('http_requests_total', { handler: CHAT, method: 'POST', status: '4xx' })).toBe(2);
  });

  test('emits no vLLM names without it', async () => {
    const { metrics } = makeServer();
    const text = await metrics.render();
    expect(text).not.toMatch(/vllm|^http_/m);
    for (const { of } of VLLM_ALIASES) expect(text).toContain(`# TYPE ${of} `);
  });
});

test('renders valid Prometheus text: each family once, with a type and complete histograms', async () => {
  const { app, metrics } = makeServer('vllm');
  await exchange(app, CHAT, { messages: MESSAGES });
  const families = [...(await metrics.render()).matchAll(/^# TYPE (\S+) (\S+)$/gm)];
  expect(new Set(families.map(([, name]) => name)).size).toBe(families.length);
  for (const [, name, type] of families) {
    expect(type).toMatch(/^(counter|gauge|histogram|summary)$/);
    if (type === 'counter') expect(name).toMatch(/_total$/);
  }
});
