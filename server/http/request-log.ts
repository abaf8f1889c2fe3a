import { redactKeys } from '../base/key-format';
import type { Log } from '../base/log';
import type { RequestRecord } from './routes';

const MAX_PATH_LENGTH = 200;

/** NOTE: keys are redacted first. A key cut in half would no longer match. */
function shortened(path: string): string {
  return redactKeys(path).slice(0, MAX_PATH_LENGTH);
}

/**
 * Creates a function that logs one line per request, at level info or debug. The line holds neither headers nor
 * contents.
 */
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
