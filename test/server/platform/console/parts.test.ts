/** Routes, event streams, problems, log lines and drafts, without a browser. */
import { describeProblem } from '../../../../server/platform/console/api/describe';
import {
  ApiProblem,
  detailOf,
  fieldMessage,
  problemOf,
  toProblem,
} from '../../../../server/platform/console/api/problem';
import { readEvents, SseParser } from '../../../../server/platform/console/api/sse';
import en from '../../../../server/platform/console/i18n/en';
import { showTexts } from '../../../../server/platform/console/i18n/texts';
import zhCn from '../../../../server/platform/console/i18n/zh-cn';
import { translateServiceText } from '../../../../server/platform/console/i18n/zh-cn-service';
import {
  draftOfKey,
  EMPTY_KEY,
  keyProblems,
  toKeyEdit,
  toKeyRequest,
} from '../../../../server/platform/console/keys/draft';
import {
  addLines,
  markMatches,
  MAX_LINES,
  parseLines,
  withSelection,
} from '../../../../server/platform/console/logs/lines';
import { findRoute, matchPath, withQuery } from '../../../../server/platform/console/router/match';
import { draftOf, emptyDraft, problemsOf, toRequest } from '../../../../server/platform/console/spec/draft';
import {
  ResponseReader,
  chatDelta,
  parseTestEvent,
  prettyBody,
} from '../../../../server/platform/console/test-tool/response-reader';
import {
  type RequestDraft,
  requestExample,
  requestProblems,
  toTestRequest,
} from '../../../../server/platform/console/test-tool/request';
import { linesOf, toEmbedded, toRanked } from '../../../../server/platform/console/test-tool/texts';
import { CONTAINERS, KEYS, VERSIONS, id } from './fixtures';
import { ANSWERED, REFUSED } from './fake-service';
import { DEFAULT_SCALE, isScale, type ScaleDraft, toScale } from '../../../../server/platform/console/format/scale';

describe('routes', () => {
  test.each([
    ['/deployments/:id', '/deployments/dep_1', { id: 'dep_1' }],
    ['/deployments/:id', '/deployments/dep_1/', { id: 'dep_1' }],
    ['/deployments/:id', '/deployments', undefined],
    ['/deployments/:id/versions/:n/logs', '/deployments/a/versions/3/logs', { id: 'a', n: '3' }],
    ['/a/:b', '/a/%E8%BF%90', { b: '运' }],
    ['/a/:b', '/a/%E8', undefined],
    ['/a/:b', '/a/x%2Fy', { b: 'x/y' }],
    ['/', '/', {}],
  ])('%s and %s', (pattern, path, params) => expect(matchPath(pattern, path)).toEqual(params));

  test('takes the first route that matches', () => {
    const routes = [{ path: '/deployments/new' }, { path: '/deployments/:id' }];
    expect(findRoute(routes, '/deployments/new')?.route.path).toBe('/deployments/new');
    expect(findRoute(routes, '/deployments/x')?.params).toEqual({ id: 'x' });
    expect(findRoute(routes, '/x')).toBeUndefined();
  });

  test('omits empty values of a query', () => {
    expect(withQuery('/keys', { scope: 'org', org: 'a&b', q: '', after: null, limit: 5 })).toBe(
      '/keys?scope=org&org=a%26b&limit=5',
    );
    expect(withQuery('/keys', {})).toBe('/keys');
  });
});

describe('event streams', () => {
  const STREAM =
    ': comment\n\nid: 7\ndata: one\n\nevent: change\ndata: a\ndata:b\n\ndata\n\nid: 8\r\ndata: 运行中\r\n\r\ndata: unfinished';

  test('are parsed however they are cut into chunks', () => {
    const expected = [
      { id: '7', event: 'message', data: 'one' },
      { id: '7', event: 'change', data: 'a\nb' },
      { id: '7', event: 'message', data: '' },
      { id: '8', event: 'message', data: '运行中' },
    ];
    for (let size = 1; size <= STREAM.length; size++) {
      const parser = new SseParser();
      const events = [];
      for (let i = 0; i < STREAM.length; i += size) events.push(...parser.push(STREAM.slice(i, i + size)));
      expect(events).toEqual(expected);
    }
  });

  test('may be cut inside a multi-byte character', async () => {
    const bytes = new TextEncoder().encode('data: 运\n\n');
    const body = new ReadableStream<Uint8Array>({
      start(controller) {
        for (const byte of bytes) controller.enqueue(new Uint8Array([byte]));
        controller.close();
      },
    });
    const events = [];
    for await (const event of readEvents(body)) events.push(event.data);
    expect(events).toEqual(['运']);
  });

  test('are cancelled when the reader stops early', async () => {
    let isCancelled = false;
    const body = new ReadableStream<Uint8Array>({
      pull(controller) {
        controller.enqueue(new TextEncoder().encode('data: x\n\n'));
      },
      cancel() {
        isCancelled = true;
      },
    });
    for await (const event of readEvents(body)) if (event.data === 'x') break;
    await new Promise((resolve) => setImmediate(resolve));
    expect(isCancelled).toBe(true);
  });
});

describe('problems', () => {
  test('are read from the response body, or derived from the status', () => {
    const problem = problemOf(
      422,
      JSON.stringify({
        code: 'invalid_argument',
        detail: 'name: taken',
        errors: [{ pointer: '/name', message: 'taken' }, 'odd'],
        request_id: 'r1',
      }),
    );
    expect(problem).toMatchObject({ status: 422, code: 'invalid_argument', message: 'name: taken', requestId: 'r1' });
    expect([fieldMessage(problem, '/name'), fieldMessage(problem, '/other'), fieldMessage(null, '/name')]).toEqual([
      'taken',
      undefined,
      undefined,
    ]);
    expect(problemOf(502, '<html>')).toMatchObject({ status: 502, code: 'internal_error', message: '' });
    expect(problemOf(429, '{"code":"too_many_attempts"}', '30').retryAfterS).toBe(30);
    expect(toProblem(new TypeError('Failed to fetch'))).toMatchObject({ status: 0, code: 'unreachable' });
    expect(toProblem(problem)).toBe(problem);
    expect(problem).toBeInstanceOf(ApiProblem);
  });

  test('omit the detail if the translated title is complete', () => {
    const said = (status: number, code: string, detail: string) =>
      detailOf(problemOf(status, JSON.stringify({ code, detail })));
    expect([
      said(401, 'bad_credentials', 'wrong email address or password'),
      said(409, 'conflict', 'name: taken'),
    ]).toEqual(['', 'name: taken']);
  });

  test('are shown in the language of the page', () => {
    const taken = problemOf(
      409,
      JSON.stringify({ code: 'conflict', detail: 'name: the owner already has a container with this name' }),
    );
    const empty = problemOf(
      400,
      JSON.stringify({
        code: 'invalid_request',
        detail: '/name: unknown field',
        errors: [{ pointer: '/name', message: 'unknown field' }],
      }),
    );
    const shown = () => [describeProblem(taken).detail, describeProblem(empty).detail, fieldMessage(empty, '/name')];
    try {
      expect(shown()).toEqual([taken.message, '/name: unknown field', 'unknown field']);
      showTexts(zhCn, translateServiceText);
      expect(shown()).toEqual(['所有者已有同名的容器，请使用其他名称', '/name：未知字段', '未知字段']);
    } finally {
      showTexts(en);
    }
  });
});

describe('log lines', () => {
  const line = (seq: number, text = `line ${seq}`) => ({
    seq,
    at: '2026-11-21T16:00:00Z',
    stream: 'stdout' as const,
    level: 'unknown' as const,
    replica: 0,
    text,
  });

  test('are merged in order without duplicates, and limited to the newest', () => {
    expect(addLines([line(1), line(2)], [line(2), line(3)]).map(({ seq }) => seq)).toEqual([1, 2, 3]);
    expect(addLines([line(5)], [line(3), line(4)]).map(({ seq }) => seq)).toEqual([3, 4, 5]);
    const many = Array.from({ length: MAX_LINES }, (_, i) => line(i + 1));
    expect(addLines(many, [line(MAX_LINES + 1)]).at(0)?.seq).toBe(2);
    expect(addLines(many.slice(1), [line(1), line(0)], 'oldest').at(0)?.seq).toBe(0);
  });

  test('mark matches in any case', () => {
    expect(markMatches('Error: an ERROR', 'error')).toEqual(['', 'Error', ': an ', 'ERROR', '']);
    expect(markMatches('nothing', '')).toEqual(['nothing']);
    expect(markMatches('İstanbul', 'istanbul')).toEqual(['İstanbul']);
  });

  test('stay in the document while they are selected', () => {
    const lines = Array.from({ length: 10 }, (_, i) => line(i + 100));
    expect(withSelection([7, 8], lines, null)).toEqual([7, 8]);
    expect(withSelection([7, 8], lines, [103, 101])).toEqual([1, 2, 3, 7, 8]);
    expect(withSelection([2, 3], lines, [101, 102])).toEqual([1, 2, 3]);
  });

  test('are parsed as one line or a list, without invalid entries', () => {
    expect(parseLines(JSON.stringify(line(1)))).toHaveLength(1);
    expect(parseLines(JSON.stringify([line(1), line(2), { odd: true }]))).toHaveLength(2);
    expect([parseLines('{'), parseLines('"x"'), parseLines('{}')]).toEqual([[], [], []]);
  });
});

describe('specification drafts', () => {
  const spec = VERSIONS[id('dep', 1)][0].spec;

  test('send only changed fields', () => {
    const from = draftOf(spec);
    expect(toRequest(from, from)).toEqual({});
    expect(toRequest({ ...from, memoryMb: '8192' }, from)).toEqual({ compute: { ...spec.compute, memory_mb: 8_192 } });
    expect(toRequest({ ...from, usesScript: true, startCommand: 'exec x' }, from)).toEqual({ start_command: 'exec x' });
    expect(problemsOf(from, from)).toEqual({});
  });

  test('keep stored secrets, and need all values once a secret changes', () => {
    const from = draftOf(spec);
    expect(toRequest({ ...from, env: [...from.env, { name: 'A', value: '1', isSecret: false }] }, from)).toEqual({
      env: { LOG_LEVEL: 'info', A: '1' },
    });
    const added = { ...from, env: [...from.env, { name: 'NEW', value: 's', isSecret: true }] };
    expect(problemsOf(added, from)).toEqual({ env: 'spec.error.secret' });
    const retyped = {
      ...from,
      env: added.env.map((row) => (row.name === 'HF_TOKEN' ? { ...row, value: 'again' } : row)),
    };
    expect(problemsOf(retyped, from)).toEqual({});
    expect(toRequest(retyped, from)).toEqual({
      env: { LOG_LEVEL: 'info' },
      secret_env: { HF_TOKEN: 'again', NEW: 's' },
    });
    expect(toRequest({ ...from, env: from.env.filter(({ isSecret }) => !isSecret) }, from)).toEqual({
      env: { LOG_LEVEL: 'info' },
      secret_env: {},
    });
    expect(problemsOf(from)).toEqual({ env: 'spec.error.secret' });
  });

  test('send all fields of a new deployment, and no health check of a container', () => {
    const draft = emptyDraft('img_1');
    expect(problemsOf(draft)).toEqual({});
    expect(toRequest(draft)).toMatchObject({
      image_id: 'img_1',
      compute: { cpu_millis: 1_000 },
      bindings: [],
      start_command: null,
      runtime: { model: 'demo' },
      health_path: '/v1/models',
      env: {},
    });
    expect(toRequest(draft, undefined, { withHealth: false })).not.toHaveProperty('health_path');
    expect(toRequest(draftOf(CONTAINERS[1]))).toMatchObject({
      env: { SEED: '42' },
      start_command: CONTAINERS[1].start_command,
    });
  });

  test.each([
    [{ cores: '0' }, 'cores'],
    [{ cores: 'x' }, 'cores'],
    [{ memoryMb: '1.5' }, 'memoryMb'],
    [{ gpuCount: '-1' }, 'gpuCount'],
    [{ usesScript: true, startCommand: ' ' }, 'startCommand'],
    [{ healthPath: 'v1' }, 'healthPath'],
    [{ gpuMemory: '1.1' }, 'gpuMemory'],
    [{ env: [{ name: '1A', value: '', isSecret: false }] }, 'env'],
    [
      {
        env: [
          { name: 'A', value: '', isSecret: false },
          { name: 'A', value: '', isSecret: false },
        ],
      },
      'env',
    ],
    [{ bindings: [{ mount: 'input0' as const, source_id: '' }] }, 'bindings'],
    [
      {
        bindings: [
          { mount: 'home' as const, source_id: 'a' },
          { mount: 'home' as const, source_id: 'b' },
        ],
      },
      'bindings',
    ],
    [{ imageId: '' }, 'imageId'],
  ])('report %j at its field', (part, field) =>
    expect(Object.keys(problemsOf({ ...emptyDraft('img_1'), ...part }))).toEqual([field]),
  );
});

describe('key drafts', () => {
  const NOW = Date.parse('2026-11-21T16:00:00Z');

  test('send empty fields as no limit', () => {
    expect(toKeyRequest({ ...EMPTY_KEY, name: ' Phone ', cidrs: '10.0.0.0/8, 192.168.0.0/16\n::1/128' })).toEqual({
      name: 'Phone',
      type: 'user-level',
      deployments: [],
      expires_at: null,
      limits: { rpm: null, tpm: null, parallel: null },
      allowed_cidrs: ['10.0.0.0/8', '192.168.0.0/16', '::1/128'],
      budget: null,
    });
  });

  test('send only changes, and the bindings with a change to deployment-level', () => {
    const from = draftOfKey(KEYS[0]);
    expect(toKeyEdit(from, from)).toEqual({});
    expect(toKeyEdit({ ...from, name: 'Other' }, from)).toEqual({ name: 'Other' });
    expect(toKeyEdit({ ...from, type: 'deployment-level', deployments: ['dep_1'] }, from)).toEqual({
      type: 'deployment-level',
      deployments: ['dep_1'],
    });
    const bound = draftOfKey(KEYS[1]);
    expect(toKeyEdit({ ...bound, type: 'user-level' }, bound)).toEqual({ type: 'user-level' });
  });

  test('report mistakes before the request is sent', () => {
    expect(keyProblems(EMPTY_KEY, NOW)).toEqual({ name: 'spec.error.required' });
    expect(
      keyProblems({ ...EMPTY_KEY, name: 'a', type: 'deployment-level', rpm: '0', expires: '2020-01-01T00:00' }, NOW),
    ).toEqual({ deployments: 'keys.error.binding', rpm: 'keys.error.limit', expires: 'keys.error.past' });
  });
});

describe('the test tool', () => {
  const DRAFT: RequestDraft = {
    method: 'POST',
    path: '/v1/x',
    query: [
      ['a', '1'],
      ['', 'x'],
    ],
    headers: [['X-A', 'b']],
    body: '{}',
    bodyType: 'json',
    auth: 'key',
    key: ' sk-1 ',
  };

  test('sends the request of the form', () => {
    expect(toTestRequest(DRAFT)).toEqual({
      method: 'POST',
      path: '/v1/x',
      query: [['a', '1']],
      headers: [
        ['X-A', 'b'],
        ['Content-Type', 'application/json'],
      ],
      body: '{}',
      auth: { type: 'key', key: 'sk-1' },
    });
    expect(toTestRequest({ ...DRAFT, method: 'GET', auth: 'none' })).toMatchObject({
      headers: [['X-A', 'b']],
      body: null,
      auth: { type: 'none' },
    });
    expect(toTestRequest({ ...DRAFT, headers: [['content-type', 'text/csv']], bodyType: 'text' }).headers).toEqual([
      ['content-type', 'text/csv'],
    ]);
  });

  test.each([
    [{ path: 'v1' }, 'path'],
    [{ path: '//evil.example' }, 'path'],
    [{ path: '/\\evil' }, 'path'],
    [{ path: '/a b' }, 'path'],
    [{ body: '{' }, 'body'],
    [{ headers: [['a b', 'c']] as [string, string][] }, 'headers'],
    [{ headers: [['a', 'b\r\nc: d']] as [string, string][] }, 'headers'],
    [{ key: ' ' }, 'key'],
  ])('reports %j', (part, field) => expect(Object.keys(requestProblems({ ...DRAFT, ...part }))).toEqual([field]));

  test('assembles a streamed response with the time of each event', () => {
    const reader = new ResponseReader();
    for (const event of ANSWERED) reader.add(parseTestEvent(JSON.stringify(event))!);
    const { status, pieces, isEventStream, firstEventMs, end } = reader.response;
    expect([status, isEventStream, firstEventMs, end?.bytes]).toEqual([200, true, 60, 640]);
    expect(pieces.map(({ atMs, gapMs }) => [atMs, gapMs])).toEqual([
      [60, 60],
      [81.5, 21.5],
      [103, 21.5],
      [124.5, 21.5],
      [150, 25.5],
      [150, 0],
    ]);
    expect(pieces.map(({ text }) => chatDelta(text).text).join('')).toBe('Hello there, <b>friend</b>!');
    expect(chatDelta(pieces[4].text).usage).toMatchObject({ completion_tokens: 4 });
  });

  test('keeps the chunks of other responses', () => {
    const reader = new ResponseReader();
    for (const event of REFUSED) reader.add(parseTestEvent(JSON.stringify(event))!);
    expect(reader.response).toMatchObject({ status: 401, isEventStream: false, pieces: [{ atMs: 1.4 }] });
    expect(reader.add({ type: 'error', code: 'upstream_timeout', message: 'late', at_ms: 9 }).error).toEqual({
      code: 'upstream_timeout',
      message: 'late',
    });
    expect([parseTestEvent('{'), parseTestEvent('{"type":"odd"}')]).toEqual([undefined, undefined]);
    expect([prettyBody('{"a":1}'), prettyBody('plain'), prettyBody('{odd')]).toEqual([
      '{\n  "a": 1\n}',
      'plain',
      '{odd',
    ]);
    expect(chatDelta('{"error":{"message":"no"}}').error).toBe('no');
  });
});

describe('texts', () => {
  test('are the different lines that are not empty', () => {
    expect(linesOf(' a\n\nb \na\n')).toEqual(['a', 'b']);
    expect(linesOf(' \n')).toEqual([]);
  });

  test('have embeddings with a size and a similarity', () => {
    const response = { data: [{ embedding: [1, 0, 0, 0, 0, 0] }, { embedding: [1, 1, 0, 0, 0, 0] }] };
    expect(toEmbedded(response, ['a', 'b'])).toEqual([
      { text: 'a', size: 6, first: [1, 0, 0, 0, 0], similarity: 1 },
      { text: 'b', size: 6, first: [1, 1, 0, 0, 0], similarity: expect.closeTo(Math.SQRT1_2, 10) },
    ]);
  });

  test('are sorted by their scores', () => {
    const results = [
      { index: 1, relevance_score: 0.9 },
      { index: 0, relevance_score: -1 },
    ];
    expect(toRanked({ results }, ['a', 'b'])).toEqual([
      { text: 'b', score: 0.9 },
      { text: 'a', score: -1 },
    ]);
  });

  test.each([null, [], 'x', {}, { data: [{ embedding: 'QUI=' }], results: [{ index: 7, relevance_score: 1 }] }])(
    'a response of another form has no result: %j',
    (response) => expect([toEmbedded(response, ['a']), toRanked(response, ['a'])]).toEqual([undefined, undefined]),
  );
});

test.each(['generate', 'embed', 'score'] as const)('the example request for the task %s is valid', (task) => {
  const { path, body } = requestExample(task, 'm');
  const draft: RequestDraft = {
    method: 'POST',
    path,
    body,
    query: [],
    headers: [],
    bodyType: 'json',
    auth: 'none',
    key: '',
  };
  expect([requestProblems(draft), JSON.parse(body).model]).toEqual([{}, 'm']);
});

test('the task of a model is part of the specification', () => {
  const draft = { ...emptyDraft('img_1'), task: 'embed' as const };
  expect(toRequest(draft).runtime).toMatchObject({ task: 'embed' });
  expect(toRequest(emptyDraft('img_1')).runtime).toMatchObject({ task: null });
  const [{ spec }] = Object.values(VERSIONS).flat();
  expect(draftOf({ ...spec, runtime: { ...spec.runtime, task: 'score' } }).task).toBe('score');
});

test('fields of the scale that are not shown are neither checked nor sent', () => {
  const hidden: ScaleDraft = { ...DEFAULT_SCALE, sleeps: false, idleTimeoutS: 'x', coldStartWaitS: 'x' };
  expect(isScale(hidden)).toBe(true);
  expect(toScale(hidden)).toEqual({ min_replicas: 1, max_replicas: 1, idle_timeout_s: null });
  expect(isScale({ ...hidden, sleeps: true })).toBe(false);
  expect(isScale({ ...DEFAULT_SCALE, sleeps: true, coldStartWaitS: '3601' })).toBe(false);
  expect(toScale({ ...DEFAULT_SCALE, sleeps: true })).toMatchObject({ idle_timeout_s: 900, cold_start_wait_s: 60 });
});
