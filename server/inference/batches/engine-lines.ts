import type { Engine } from '../../../ts';
import type { Access } from '../../access';
import { newId } from '../../base/ids';
import { BATCH_PRIORITY } from '../../http/replica-headers';
import { ANONYMOUS, type ClientIdentity } from '../../http/routes';
import type { LineOutcome } from '../../storage/batches/batch-runner';
import type { BatchWork } from '../../storage/batches/batch-service';
import { BATCH_ENDPOINTS, errorCode, lineDone, STREAM_REFUSED } from '../../storage/batches/line-results';
import type { BatchRecord } from '../../storage/batches/records';
import type { BatchLine } from '../../storage/batches/running-batch';
import type { App } from '../app';
import { LineReply, lineRequest } from './line-reply';

/** Slots for sequences of an engine without `maxNumSeqs`. */
const DEFAULT_SLOTS = { cpu: 64, cuda: 256 };
/** With more lines at the same time, an urgent request waits longer for the step that runs. */
const CPU_LINES = 16;

/** Errors after which a line runs again, and when. */
const RETRIES_MS: Readonly<Record<string, number>> = { queue_full: 1_000, model_loading: 2_000 };
/** Errors after which no line can run. */
const HALTS: ReadonlySet<string> = new Set(['engine_dead', 'shutting_down']);
/** Temporary denials, and when a line runs again. */
const DENIAL_RETRIES_MS: Readonly<Record<string, number>> = { budget_exceeded: 60_000, auth_unavailable: 5_000 };

/** Returns the engines that are loaded now. */
export type LoadedEngines = () => Iterable<{ readonly engine: Engine }>;

export interface EngineLinesOptions {
  app: App;
  loaded: LoadedEngines;
  access: Access | undefined;
  maxNumSeqs: number | undefined;
  concurrency: number | undefined;
}

/** Runs the lines of batches in the idle slots of the engines of this server. */
export class EngineLines implements BatchWork {
  readonly #options: EngineLinesOptions;

  constructor(options: EngineLinesOptions) {
    this.#options = options;
  }

  endpoints(): string[] {
    const { routes } = this.#options.app;
    return BATCH_ENDPOINTS.filter((path) =>
      routes.some(
        (route) =>
          route.method === 'POST' && route.path === path && !('isNotImplemented' in route && route.isNotImplemented),
      ),
    );
  }

  numPlaces(): number {
    const { loaded, maxNumSeqs } = this.#options;
    const engines = Array.from(loaded(), ({ engine }) => engine);
    if (engines.some(hasFailed)) return 0;
    const isCuda = engines.some(({ info }) => info.backend === 'cuda');
    let numIdle = maxNumSeqs ?? (isCuda ? DEFAULT_SLOTS.cuda : DEFAULT_SLOTS.cpu);
    const { concurrency = isCuda ? numIdle : CPU_LINES } = this.#options;
    for (const engine of engines) {
      const { numRunning, numWaiting, numBackground } = engine.stats();
      numIdle -= numRunning + numWaiting - numBackground;
    }
    return Math.max(0, Math.min(concurrency, numIdle));
  }

  async execute(batch: BatchRecord, line: BatchLine, signal: AbortSignal): Promise<LineOutcome> {
    const { app, loaded } = this.#options;
    const requestId = newId('batch');
    if (line.isStream) return lineDone(400, STREAM_REFUSED, requestId);
    const admitted = this.#admit(batch);
    if ('kind' in admitted) return admitted;
    const reply = new LineReply();
    try {
      await app.handleOwn(lineRequest(batch.endpoint, line.body, signal), reply, {
        requestId,
        identity: admitted,
        signal,
        priority: BATCH_PRIORITY,
      });
    } finally {
      admitted.done();
    }
    if (!reply.hasStarted) return { kind: 'retry', afterMs: 0 };
    if (reply.status !== 200) {
      const code = errorCode(reply.body);
      if (Object.hasOwn(RETRIES_MS, code)) return { kind: 'retry', afterMs: RETRIES_MS[code] };
      if (HALTS.has(code) || (reply.status >= 500 && Array.from(loaded(), ({ engine }) => engine).some(hasFailed)))
        return { kind: 'halt' };
    }
    return lineDone(reply.status, reply.body, requestId);
  }

  /** Checks that the key of a batch still has access. */
  #admit({ keyId, ownerId, cacheSalt, address }: BatchRecord): ClientIdentity | LineOutcome {
    const { access } = this.#options;
    if (access === undefined) return { ...ANONYMOUS, cacheSalt };
    const outcome = access.resume(keyId ?? '', address);
    if (outcome.ok) return { keyId, ownerId, cacheSalt, done: (tokens) => outcome.done(tokens) };
    const { code, message } = outcome;
    if (Object.hasOwn(DENIAL_RETRIES_MS, code)) return { kind: 'retry', afterMs: DENIAL_RETRIES_MS[code] };
    return { kind: 'refused', error: { code, message, param: null, line: null } };
  }
}

function hasFailed(engine: Engine): boolean {
  try {
    return engine.stats().failure !== null;
  } catch {
    // It is closed.
    return true;
  }
}
