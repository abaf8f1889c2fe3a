import { LOG_LINE_LEVELS, levelOf } from '../../../../server/platform/driver/logs/log-level';
import { matcher } from '../../../../server/platform/driver/logs/log-line';

const line = (text: string, stream: 'stdout' | 'stderr' | 'system' = 'stderr') => ({
  seq: 1,
  at: 0,
  replica: 0,
  stream,
  text,
});

test.each([
  // The built-in runtime.
  ['{"level":30,"time":"2030-01-31T12:00:00.000Z","msg":"an error is not meant"}', 'info'],
  ['{"level":50,"msg":"x"}', 'error'],
  ['{"level":60}', 'error'],
  ['{"level":40}', 'warn'],
  ['{"level":20}', 'debug'],
  ['{"level":10}', 'debug'],
  // Other JSON loggers.
  ['{"timestamp":"2030-01-31","severity":"WARNING","message":"x"}', 'warn'],
  ['{"log.level": "error"}', 'error'],
  ['{"ts":1,"lvl":"dbg"}', 'debug'],
  ['{"message":"level"}', 'unknown'],
  ['{"level":"nice"}', 'unknown'],
  // uvicorn, gunicorn, Python's logging, vLLM, loguru, Flask.
  ['INFO:     127.0.0.1:5000 - "GET /v1/models HTTP/1.1" 200 OK', 'info'],
  ['[2030-01-31 12:00:00 +0000] [7] [ERROR] Worker died', 'error'],
  ['2030-01-31 12:00:00,123 - server - WARNING - slow', 'warn'],
  ['INFO 01-31 12:00:00 [api_server.py:1] started', 'info'],
  ['(EngineCore pid=7) ERROR 01-31 12:00:00 [core.py:2] failed', 'error'],
  ['2030-01-31 12:00:00.123 | CRITICAL | app:run:1 - no', 'error'],
  ['ERROR in app: Exception on / [GET]', 'error'],
  // logfmt, glog, nginx, log4j, npm.
  ['time=2030-01-31T12:00:00Z level=warning msg="disk"', 'warn'],
  ['ts=1 level="debug" caller=x', 'debug'],
  ['E0131 12:00:00.000000   7 main.go:1] no', 'error'],
  ['W0131 12:00:00.000000 x', 'warn'],
  ['2030/01/31 12:00:00 [notice] 1#1: start worker', 'info'],
  ['12:00:00.000 [main] DEBUG o.e.App - x', 'debug'],
  ['error: cannot find module', 'error'],
  ['2030-01-31T12:00:00Z warn: slow', 'warn'],
  ['Warning: model is old', 'warn'],
  // In colour.
  ['\u001b[32mINFO\u001b[0m:     started', 'info'],
  ['\u001b[1;31merror\u001b[0m: no', 'error'],
  // Without a level, whatever words they contain.
  ['an error occurred, and a warning too', 'unknown'],
  ['Traceback (most recent call last):', 'unknown'],
  ['    at Object.<anonymous> (x.js:1)', 'unknown'],
  ['information is power', 'unknown'],
  ['errors: 0', 'unknown'],
  ['INFORMATIVE', 'unknown'],
  ['', 'unknown'],
])('%j: %s', (text, level) => expect(levelOf(line(text))).toBe(level));

test('searches for a level only near the beginning of a line', () => {
  for (const text of [
    ' '.repeat(65_536),
    '['.repeat(65_536),
    '{'.repeat(65_536),
    `${'-'.repeat(65_536)}ERROR`,
    '1'.repeat(65_536),
  ])
    expect(levelOf(line(text))).toBe('unknown');
});

test('system lines are info unless they have a level', () => {
  expect(levelOf(line('replica 0 started', 'system'))).toBe('info');
  expect(levelOf(line('error: the disk is full', 'system'))).toBe('error');
});

test('a level matches itself and more severe ones; unknown matches only itself', () => {
  const lines = ['ERROR: a', 'WARNING: b', 'INFO: c', 'DEBUG: d', 'e'].map((text) => line(text));
  const found = Object.fromEntries(
    LOG_LINE_LEVELS.map((level) => [
      level,
      lines
        .filter(matcher({ level }))
        .map(({ text }) => text.at(-1))
        .join(''),
    ]),
  );
  expect(found).toEqual({ error: 'a', warn: 'ab', info: 'abc', debug: 'abcd', unknown: 'e' });
});
