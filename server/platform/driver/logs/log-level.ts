/** Most severe first. `unknown`: the line has no recognizable level. */
export const LOG_LINE_LEVELS = ['error', 'warn', 'info', 'debug', 'unknown'] as const;
export type LogLineLevel = (typeof LOG_LINE_LEVELS)[number];

/** Level names of common loggers. */
const WORDS: Readonly<Record<string, LogLineLevel>> = {
  emerg: 'error',
  emergency: 'error',
  alert: 'error',
  panic: 'error',
  fatal: 'error',
  critical: 'error',
  crit: 'error',
  severe: 'error',
  error: 'error',
  err: 'error',
  e: 'error',
  f: 'error',
  warning: 'warn',
  warn: 'warn',
  w: 'warn',
  notice: 'info',
  information: 'info',
  info: 'info',
  i: 'info',
  debug: 'debug',
  dbg: 'debug',
  verbose: 'debug',
  trace: 'debug',
  fine: 'debug',
};
const WORD =
  'emerg|emergency|alert|panic|fatal|critical|crit|severe|error|err|warning|warn|notice|information|info|debug|dbg|verbose|trace';

/** The level is searched only near the beginning of a line. */
const MAX_CHARS = 500;
const COLOURS = /\u001b\[[0-9;]*m/g;
/** `"level":30` of pino, `"severity":"INFO"` and the like. */
const JSON_FIELD = /"(?:level|lvl|severity|levelname|log\.level|log_level)"\s*:\s*(?:"([A-Za-z]{1,12})"|(\d{1,3})\b)/;
/** `level=info`. */
const PAIR = new RegExp(`(?:^|\\s)(?:level|lvl|severity)="?(${WORD})\\b`, 'i');
/** `I0131 12:00:00.000000` of glog. */
const GLOG = /^([EFWI])\d{4} \d\d:\d\d:\d\d/;
/** `[info]`, or `error:` as the first word, optionally after a timestamp. */
const MARKED = new RegExp(`\\[\\s*(${WORD})\\s*\\]|^[\\d\\s:.,/TZ+\\[\\]-]*(${WORD}):`, 'i');
/** Upper-case level names: `2030-01-31 12:00:00,000 - name - INFO - text`, `INFO 01-31 12:00:00 [engine.py:1] text`. */
const CAPITALS = new RegExp(`(?:^|[\\s|(<-])(${WORD.toUpperCase()})(?=[\\s|)>:,-]|$)`);

/** Guesses the level of a line. System lines without a level count as info. */
export function levelOf({ stream, text }: { stream: string; text: string }): LogLineLevel {
  const level = levelOfText(text.slice(0, MAX_CHARS).replace(COLOURS, ''));
  return level === 'unknown' && stream === 'system' ? 'info' : level;
}

function levelOfText(text: string): LogLineLevel {
  if (/^\s*\{/.test(text)) {
    const [, word, number] = JSON_FIELD.exec(text) ?? [];
    return number === undefined ? (WORDS[word?.toLowerCase() ?? ''] ?? 'unknown') : levelOfNumber(Number(number));
  }
  const [, pair] = PAIR.exec(text) ?? [];
  const [, letter] = GLOG.exec(text) ?? [];
  const [, bracketed, first] = MARKED.exec(text) ?? [];
  const [, capital] = CAPITALS.exec(text) ?? [];
  return WORDS[(pair ?? letter ?? bracketed ?? first ?? capital ?? '').toLowerCase()] ?? 'unknown';
}

/** Numeric levels of pino: 10 trace, 20 debug, 30 info, 40 warn, 50 error, 60 fatal. */
function levelOfNumber(number: number): LogLineLevel {
  if (number >= 50) return 'error';
  if (number >= 40) return 'warn';
  return number >= 30 ? 'info' : 'debug';
}

/** @param wanted Matches this level and more severe ones. `unknown` matches only itself. */
export function isOfLevel(level: LogLineLevel, wanted: LogLineLevel): boolean {
  return level === wanted || (wanted !== 'unknown' && LOG_LINE_LEVELS.indexOf(level) < LOG_LINE_LEVELS.indexOf(wanted));
}
