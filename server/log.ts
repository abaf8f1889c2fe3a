import { pino } from 'pino';
import { redactKeys } from './access/key-format';
import type { LOG_LEVELS } from './log-levels';
import { LogStream } from './log-stream';
import type { RequestRecord } from './routes';

/** Structured lines on standard error. Prompts, answers and secrets are never given to it. */
export type Log = Pick<pino.Logger, 'debug' | 'info' | 'warn' | 'error'>;

/** A shorter secret would stand in too many words. */
const MIN_SECRET_LENGTH = 8;
const STDERR = 2;

/** @param secrets Fixed keys and the like: taken out of every line, as access keys are by their form, should one ever come that far. */
export function createLog(level: (typeof LOG_LEVELS)[number], secrets: readonly string[] = []): Log {
  const hidden = secrets
    .filter(({ length }) => length >= MIN_SECRET_LENGTH)
    .map((secret) => JSON.stringify(secret).slice(1, -1));
  const stream = new LogStream(STDERR);
  const write = (line: string): void =>
    stream.write(hidden.reduce((text, secret) => text.replaceAll(secret, '…'), redactKeys(line)));
  return pino({ level, base: undefined, timestamp: pino.stdTimeFunctions.isoTime }, { write });
}

const MAX_PATH_LENGTH = 200;

/** Half a key would no longer be known for one. */
function shortened(path: string): string {
  return redactKeys(path).slice(0, MAX_PATH_LENGTH);
}

/** One line per request, at level info or debug; nothing of its contents and its headers. */
export function requestLogger(
  log: Log,
  options: { logsRequests: boolean; unloggedPaths: readonly string[] },
): (record: RequestRecord) => void {
  const unlogged = new Set(options.unloggedPaths);
  return ({ method, path, status, durationMs, requestId, keyId, tokens }) => {
    if (unlogged.has(path)) return;
    const line = {
      method,
      path: shortened(path),
      status,
      ms: Math.round(durationMs * 10) / 10,
      requestId,
      ...(keyId === undefined ? {} : { key: keyId }),
      ...(tokens === 0 ? {} : { tokens }),
    };
    if (options.logsRequests) log.info(line, 'request');
    else log.debug(line, 'request');
  };
}
