import { pino } from 'pino';
import { redactKeys } from './key-format';
import type { LOG_LEVELS } from './log-levels';
import { LogStream } from './log-stream';

/** Structured lines on standard error. Callers never pass prompts, completions or secrets. */
export type Log = Pick<pino.Logger, 'debug' | 'info' | 'warn' | 'error'>;

/** Shorter secrets are not redacted, because they occur in ordinary words. */
const MIN_SECRET_LENGTH = 8;
const STDERR = 2;

/**
 * Creates the log. As a last defence it redacts access keys, by their form, and `secrets` from every line.
 * @param secrets Fixed keys, passphrases and the like.
 */
export function createLog(level: (typeof LOG_LEVELS)[number], secrets: readonly string[] = []): Log {
  const escapedSecrets = secrets
    .filter(({ length }) => length >= MIN_SECRET_LENGTH)
    .map((secret) => JSON.stringify(secret).slice(1, -1));
  const stream = new LogStream(STDERR);
  const write = (line: string): void =>
    stream.write(escapedSecrets.reduce((text, secret) => text.replaceAll(secret, '…'), redactKeys(line)));
  return pino({ level, base: undefined, timestamp: pino.stdTimeFunctions.isoTime }, { write });
}
