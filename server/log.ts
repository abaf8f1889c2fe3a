import { pino } from 'pino';
import type { LOG_LEVELS } from './log-levels';

/** Structured lines on standard error. Prompts, answers and secrets are never given to it. */
export type Log = Pick<pino.Logger, 'debug' | 'info' | 'warn' | 'error'>;

export function createLog(level: (typeof LOG_LEVELS)[number]): Log {
  return pino({ level, base: undefined, timestamp: pino.stdTimeFunctions.isoTime }, pino.destination({ dest: 2, sync: true }));
}
