import { randomBytes } from 'node:crypto';
import type { Log } from '../log';
import { packageVersion } from '../version';
import { exportRequest, type FinishedSpan } from './otlp-json';
import type { Sampler } from './sampler';
import type { Attributes, ParentSpan, Span, SpanSink } from './span';

export interface OtlpOptions {
  /** Where to POST traces. */
  url: URL;
  /** Additional headers, such as a key of the collector. */
  headers: Readonly<Record<string, string>>;
  /** Time limit of one request. */
  timeoutMs: number;
  /** Attributes of this process, such as `service.name`. */
  resource: Attributes;
  sampler: Sampler;
  log: Pick<Log, 'warn'>;
  /** Longest time until a span is sent. Default: 5,000. */
  delayMs?: number;
  /** First pause before a batch is sent again. Default: 1,000. */
  retryMs?: number;
  /** Time limit of {@link OtlpSink.close}. Default: 3,000. */
  closeMs?: number;
}

const MAX_QUEUED = 2_048;
const MAX_BATCH = 512;
const DEFAULT_DELAY_MS = 5_000;
const DEFAULT_RETRY_MS = 1_000;
const DEFAULT_CLOSE_MS = 3_000;
const MAX_TRIES = 3;
const LOG_INTERVAL_MS = 60_000;
/** Responses after which OTLP repeats a request. */
const RETRIED = new Set([429, 502, 503, 504]);

/** Sends spans to a collector by OTLP over HTTP, in JSON. A collector that fails loses spans and delays nothing. */
export class OtlpSink implements SpanSink {
  readonly #options: OtlpOptions;
  readonly #queue: FinishedSpan[] = [];
  /** A batch that fails is not sent again. */
  #isClosing = false;
  /** The time of `close` is over. */
  #isOver = false;
  #request: AbortController | undefined;
  #endPause: (() => void) | undefined;
  #timer: NodeJS.Timeout | undefined;
  #sending: Promise<void> | undefined;
  #numLost = 0;
  #loggedMs = -Infinity;

  constructor(options: OtlpOptions) {
    this.#options = options;
  }

  start(name: string, parent: ParentSpan | undefined, startMs: number): Span {
    const traceId = parent?.traceId ?? randomBytes(16).toString('hex');
    const isSampled = this.#options.sampler(traceId, parent);
    const spanId = randomBytes(8).toString('hex');
    const traceState = parent?.traceState ?? '';
    const attributes: Record<string, Attributes[string]> = {};
    const events: { name: string; atMs: number }[] = [];
    return {
      traceId,
      spanId,
      isSampled,
      traceState,
      rename: (next) => {
        name = next;
      },
      set: (more) => void Object.assign(attributes, more),
      addEvent: (event, atMs) => void events.push({ name: event, atMs }),
      end: (endMs, error) => {
        const parentSpanId = parent?.spanId;
        if (isSampled)
          this.#add({ traceId, spanId, parentSpanId, traceState, name, startMs, endMs, attributes, events, error });
      },
    };
  }

  /** Sends what is left. Drops what the collector does not take in time. */
  async close(): Promise<void> {
    const closeMs = this.#options.closeMs ?? DEFAULT_CLOSE_MS;
    this.#isClosing = true;
    this.#endPause?.();
    const limit = setTimeout(() => {
      this.#isOver = true;
      this.#request?.abort();
    }, closeMs);
    await this.#send();
    clearTimeout(limit);
    if (!this.#isOver) return;
    this.#numLost += this.#queue.splice(0).length;
    if (this.#numLost === 0) return;
    this.#report(`it did not take all spans within ${closeMs} ms at the end`);
  }

  #add(span: FinishedSpan): void {
    if (this.#queue.length >= MAX_QUEUED) {
      this.#numLost++;
      return;
    }
    this.#queue.push(span);
    if (this.#queue.length >= MAX_BATCH) void this.#send();
    else this.#timer ??= setTimeout(() => void this.#send(), this.#options.delayMs ?? DEFAULT_DELAY_MS).unref();
  }

  /** Sends the queue. One request at a time. */
  #send(): Promise<void> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    return (this.#sending ??= this.#sendAll().finally(() => {
      this.#sending = undefined;
    }));
  }

  async #sendAll(): Promise<void> {
    while (this.#queue.length > 0 && !this.#isOver) {
      const batch = this.#queue.splice(0, MAX_BATCH);
      const problem = await this.#sendBatch(batch);
      if (problem === undefined) continue;
      this.#numLost += batch.length;
      if (!this.#isOver && performance.now() - this.#loggedMs >= LOG_INTERVAL_MS) this.#report(problem);
    }
  }

  #report(problem: string): void {
    this.#loggedMs = performance.now();
    const { origin, pathname } = this.#options.url;
    this.#options.log.warn(
      { endpoint: origin + pathname, problem, lostSpans: this.#numLost },
      'traces could not be sent: check that a collector for OTLP over HTTP listens there',
    );
  }

  /** Returns why the batch is lost, or undefined. */
  async #sendBatch(batch: readonly FinishedSpan[]): Promise<string | undefined> {
    const { url, headers, timeoutMs, resource, retryMs = DEFAULT_RETRY_MS } = this.#options;
    const body = exportRequest(batch, resource, packageVersion());
    for (let tries = 1; ; tries++) {
      let problem: string;
      let isFinal = false;
      const request = new AbortController();
      this.#request = request;
      try {
        const response = await fetch(url, {
          method: 'POST',
          headers: { 'Content-Type': 'application/json', ...headers },
          body,
          redirect: 'error',
          signal: AbortSignal.any([request.signal, AbortSignal.timeout(timeoutMs)]),
        });
        await response.body?.cancel();
        if (response.ok) return undefined;
        problem = `status ${response.status}`;
        isFinal = !RETRIED.has(response.status);
      } catch (error) {
        const { cause, message } = error as Error;
        problem = cause instanceof Error ? cause.message : message;
      }
      if (isFinal || tries === MAX_TRIES || this.#isClosing) return problem;
      await this.#pause(retryMs * tries);
    }
  }

  /** `close` ends it early. */
  #pause(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms).unref();
      this.#endPause = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}
