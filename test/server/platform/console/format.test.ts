import { RUNTIME } from './fixtures';
import { agentName } from '../../../../server/platform/console/format/agent';
import { neutralise } from '../../../../server/platform/console/format/neutral';
import {
  formatBytes,
  formatAmount,
  formatCompact,
  formatCores,
  formatMs,
  niceTicks,
} from '../../../../server/platform/console/format/numbers';
import { loneIndexes, plotColumns } from '../../../../server/platform/console/format/plot-data';
import { qrRows } from '../../../../server/platform/console/format/qr';
import { slugOf } from '../../../../server/platform/console/format/slug';
import { modelName, snippet } from '../../../../server/platform/console/format/snippets';
import { commandsOf, exitCodeBeside, isMoving, STATE_LOOKS } from '../../../../server/platform/console/format/states';
import {
  formatClock,
  formatPast,
  formatRelative,
  formatSeconds,
  formatTime,
  fromLocalInput,
  toLocalInput,
} from '../../../../server/platform/console/format/times';
import { DEPLOYMENT_STATES } from '../../../../server/platform/deployments/deployment-state';

describe('neutralise', () => {
  test.each([
    ['plain text, tabs\tand lines\n', 'plain text, tabs\tand lines\n'],
    ['\u001b[31mred\u001b[0m and \u001b[1;38;5;4mblue\u001b[m', 'red and blue'],
    ['\u001b]8;;https://evil.example\u0007link\u001b]8;;\u0007', 'link'],
    ['\u001b]0;title\u001b\\rest', 'rest'],
    ['a\u009b2Jb', 'ab'],
    ['bell\u0007 null\u0000', 'bell␇ null␀'],
    ['abc\u202egpj.exe', 'abc<U+202E>gpj.exe'],
    ['\u2066hidden\u2069\u200b', '<U+2066>hidden<U+2069><U+200B>'],
    ['line\r\n', 'line\n'],
    ['\u2028', '<U+2028>'],
    ['\ud800', '<U+D800>'],
    ['运行中 😀 <b>', '运行中 😀 <b>'],
  ])('%j', (text, shown) => expect(neutralise(text)).toBe(shown));

  test('handles a long row of escapes in linear time', () => {
    expect(neutralise('\u001b['.repeat(100_000)).length).toBeLessThan(400_000);
    expect(neutralise('\u001b]'.repeat(50_000))).toBe('');
  });
});

test('formats bytes, durations, cores and compact numbers', () => {
  expect([
    formatBytes(0, 'en'),
    formatBytes(1_536, 'en'),
    formatBytes(3_087_467_144, 'en'),
    formatBytes(null, 'en'),
  ]).toEqual(['0 B', '1.5 KiB', '2.9 GiB', '–']);
  expect([
    formatMs(0.42, 'en'),
    formatMs(12.34, 'en'),
    formatMs(431.2, 'en'),
    formatMs(1_240, 'en'),
    formatMs(null, 'en'),
  ]).toEqual(['0.42 ms', '12.3 ms', '431 ms', '1.24 s', '–']);
  expect([
    formatCores(1_500, 'en'),
    formatCompact(950, 'en'),
    formatCompact(12_345, 'en'),
    formatCompact(320_000, 'zh-CN'),
  ]).toEqual(['1.5', '950', '12.3K', '32万']);
  expect([0, 0.00002, 0.025, 0.125].map((value) => formatCompact(value, 'en'))).toEqual([
    '0',
    '0.00002',
    '0.025',
    '0.125',
  ]);
  expect([0, 0.000041, 12.345].map((value) => formatAmount(value, 'en'))).toEqual(['0', '0.000041', '12.35']);
});

test('shows an exit code that the message does not name', () => {
  expect(exitCodeBeside({ message: 'exited once: Ended with exit code 3', exit_code: 3 })).toBeNull();
  expect(exitCodeBeside({ message: 'exited once: Ended with exit code 31', exit_code: 3 })).toBe(3);
  expect(exitCodeBeside({ message: 'exited once, last by a signal', exit_code: null })).toBeNull();
});

test('returns round ticks up to the maximum', () => {
  expect(niceTicks(52)).toEqual([0, 20, 40, 60]);
  expect(niceTicks(0.07)).toEqual([0, 0.02, 0.04, 0.06, 0.08]);
  expect(niceTicks(0)).toEqual([0, 1]);
  expect(niceTicks(121, 1024)).toEqual([0, 50, 100, 150]);
  expect(niceTicks(3_000, 1024)).toEqual([0, 1024, 2048, 3072]);
  expect(niceTicks(Number.NaN)).toEqual([0, 1]);
  for (const max of [1, 3, 7, 99, 1_000, 123_456_789]) {
    const ticks = niceTicks(max);
    expect(ticks.at(-1)).toBeGreaterThanOrEqual(max);
    expect(ticks.length).toBeLessThanOrEqual(6);
  }
});

test('formats and parses times', () => {
  const now = Date.parse('2026-11-21T16:00:00Z');
  expect(formatRelative('2026-11-21T15:57:00Z', 'en', now)).toBe('3 minutes ago');
  expect(formatRelative('2026-11-23T16:00:00Z', 'en', now)).toBe('in 2 days');
  expect(formatRelative('2026-11-21T15:57:00Z', 'zh-CN', now)).toBe('3分钟前');
  // The browser's clock is behind, or the page read it before the event arrived.
  expect(formatPast('2026-11-21T16:00:02Z', 'en', now)).toBe('now');
  expect(formatPast('2026-11-21T16:00:02Z', 'zh-CN', now)).toBe('现在');
  expect(formatPast('2026-11-21T15:57:00Z', 'en', now)).toBe('3 minutes ago');
  expect([formatPast(null, 'en', now), formatPast('soon', 'en', now)]).toEqual(['–', '–']);
  expect([formatTime(null, 'en'), formatTime('soon', 'en'), formatClock('soon')]).toEqual(['–', '–', '–']);
  const seconds = [0, 90, 1_200, 86_460, 90_061];
  expect(seconds.map((value) => formatSeconds(value, 'en'))).toEqual(['0s', '1m 30s', '20m', '1d 1m', '1d 1h']);
  expect(seconds.map((value) => formatSeconds(value, 'zh-CN'))).toEqual([
    '0秒',
    '1分钟 30秒',
    '20分钟',
    '1天 1分钟',
    '1天 1小时',
  ]);
  expect(fromLocalInput('')).toBeNull();
  expect(fromLocalInput(toLocalInput('2026-11-21T16:04:00.000Z'))).toBe('2026-11-21T16:04:00.000Z');
});

test('arranges plot values in columns, and finds values without a neighbour', () => {
  const points = [
    ['t0', 0],
    ['t1', 10],
    ['t2', null],
    ['t3', 5],
  ] as const;
  const columns = plotColumns([{ name: 'a', points }]);
  expect(columns).toEqual([
    [0, 1, 2, 3],
    [0, 10, null, 5],
  ]);
  expect(loneIndexes(columns[1])).toEqual([3]);
  expect(loneIndexes([7])).toEqual([0]);
  expect(plotColumns([])).toEqual([[]]);
});

test('has a style for every state, and offers only accepted commands', () => {
  for (const state of DEPLOYMENT_STATES) expect(STATE_LOOKS).toHaveProperty(state);
  expect(commandsOf('running')).toEqual({ start: false, stop: true, restart: true, scaleToZero: true, wake: false });
  expect(commandsOf('paused')).toEqual({ start: true, stop: false, restart: false, scaleToZero: false, wake: false });
  expect([isMoving('pending'), isMoving('updating'), isMoving('running'), isMoving('failed')]).toEqual([
    true,
    true,
    false,
    false,
  ]);
});

describe('snippets', () => {
  const values = { url: 'http://127.0.0.1:8091/d/a-b', model: "it's", task: 'generate', isRestricted: true } as const;

  test('escapes a quote in the model name for curl', () => {
    const text = snippet('curl', values);
    expect(text).toContain('Authorization: Bearer $CAPSTAN_API_KEY');
    expect(text).toContain(`"model":"it'\\''s"`);
    expect(snippet('curl', { ...values, isRestricted: false })).not.toContain('Authorization');
  });

  test('gives the OpenAI clients the URL with /v1', () => {
    expect(snippet('python', values)).toContain(
      'base_url="http://127.0.0.1:8091/d/a-b/v1", api_key=os.environ["CAPSTAN_API_KEY"]',
    );
    expect(snippet('javascript', { ...values, isRestricted: false })).toContain("apiKey: 'none'");
  });

  test.each([
    ['generate', '/v1/chat/completions', 'client.chat.completions.create('],
    ['embed', '/v1/embeddings', 'client.embeddings.create('],
    ['score', '/v1/rerank', 'client.post('],
  ] as const)('calls a model with the task %s', (task, path, call) => {
    expect(snippet('curl', { ...values, task })).toContain(`http://127.0.0.1:8091/d/a-b${path} `);
    for (const language of ['python', 'javascript'] as const)
      expect(snippet(language, { ...values, task })).toContain(call);
  });

  test('names the model that clients send', () => {
    const runtime = { ...RUNTIME, model: '/platform/input/input0/' };
    expect([
      modelName(undefined, 'chat'),
      modelName({ ...runtime, model: null }, 'chat'),
      modelName(runtime, 'chat'),
      modelName({ ...runtime, served_name: 'qwen' }, 'chat'),
      modelName({ ...runtime, model: 'hf:Qwen/Qwen3-4B@main:Q4_K_M' }, 'chat'),
    ]).toEqual(['demo', 'demo', 'chat', 'qwen', 'Qwen/Qwen3-4B']);
  });
});

test('names the browser and system of a user agent', () => {
  expect(
    agentName('Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0 Safari/537.36'),
  ).toBe('Chrome · Linux');
  expect(agentName('Mozilla/5.0 (Windows NT 10.0) Chrome/140.0 Safari/537.36 Edg/140.0')).toBe('Edge · Windows');
  expect([agentName(null), agentName('my-script/1.0')]).toEqual([undefined, 'my-script/1.0']);
});

test('derives DNS labels from names', () => {
  expect([slugOf('Acme Research!'), slugOf('  --Über  Labor--'), slugOf('实验室'), slugOf('a'.repeat(80))]).toEqual([
    'acme-research',
    'u-ber-labor',
    '',
    'a'.repeat(63),
  ]);
});

describe('QR codes', () => {
  const bits = (rows: boolean[][]) => rows.map((row) => row.map((dark) => (dark ? '#' : '.')).join('')).join('\n');

  test('have the size of their version, three finder patterns and timing patterns', () => {
    const url =
      'otpauth://totp/Capstan:ada%40example.com?secret=JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP&issuer=Capstan&algorithm=SHA1&digits=6&period=30';
    const rows = qrRows(url);
    expect(rows).toHaveLength(41);
    for (const [x, y] of [
      [0, 0],
      [34, 0],
      [0, 34],
    ]) {
      expect(
        rows.slice(y, y + 7).map((row) =>
          row
            .slice(x, x + 7)
            .map(Number)
            .join(''),
        ),
      ).toEqual(['1111111', '1000001', '1011101', '1011101', '1011101', '1000001', '1111111']);
    }
    expect(rows[6].slice(8, 33).every((dark, i) => dark === (i % 2 === 0))).toBe(true);
    expect(rows[33][8]).toBe(true);
  });

  test('contain the format information twice', () => {
    const rows = qrRows('HELLO');
    const first = [
      ...[0, 1, 2, 3, 4, 5, 7, 8].map((i) => rows[i][8]),
      rows[8][7],
      ...[5, 4, 3, 2, 1, 0].map((i) => rows[8][i]),
    ];
    const second = [
      ...Array.from({ length: 8 }, (_, i) => rows[8][20 - i]),
      ...Array.from({ length: 7 }, (_, i) => rows[14 + i][8]),
    ];
    expect(first).toEqual(second);
    const value = first.reduce((sum, dark, i) => sum | (Number(dark) << i), 0) ^ 0x5412;
    expect(value >> 13).toBe(1);
    expect(bits(rows).length).toBe(21 * 22 - 1);
  });

  test('grow with the text', () => expect(qrRows('x'.repeat(1_000)).length).toBeGreaterThan(100));
});
