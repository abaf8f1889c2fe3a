import { Counter, Gauge, Histogram, type Registry } from 'prom-client';
import type { Access, AccessOutcome, Denied, Identity } from '.';
import type { RequestRecord } from '../http/routes';
import { BYTE_BUCKETS, REQUEST_TIME_BUCKETS } from '../http/buckets';

/** Current counts, read at each scrape. */
export interface OpenCounts {
  readonly numOpenRequests: number;
  readonly numOpenStreams: number;
}

const METHODS: ReadonlySet<string> = new Set(['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS']);
/** The label of requests without a route. The path is never a label. */
const NO_HANDLER = 'none';

/** Metrics of HTTP requests and access checks. All labels come from closed lists. */
export class HttpMetrics {
  readonly #requests: Counter<'handler' | 'method' | 'status'>;
  readonly #duration: Histogram<'handler' | 'method'>;
  readonly #requestSize: Histogram<'handler'>;
  readonly #responseSize: Histogram<'handler'>;
  readonly #clientAborts: Counter<'handler'>;
  readonly #accessChecks: Counter<'outcome'>;
  readonly #registers: Registry[];

  constructor(registry: Registry) {
    const registers = (this.#registers = [registry]);
    this.#requests = new Counter({
      name: 'capstan_http_requests_total',
      help: 'HTTP requests by status; 499: the client disconnected before the response started',
      labelNames: ['handler', 'method', 'status'],
      registers,
    });
    this.#duration = new Histogram({
      name: 'capstan_http_request_duration_seconds',
      help: 'Time from the request headers to the end of the response',
      labelNames: ['handler', 'method'],
      buckets: REQUEST_TIME_BUCKETS,
      registers,
    });
    this.#requestSize = new Histogram({
      name: 'capstan_http_request_size_bytes',
      help: 'Request body sizes, from Content-Length',
      labelNames: ['handler'],
      buckets: BYTE_BUCKETS,
      registers,
    });
    this.#responseSize = new Histogram({
      name: 'capstan_http_response_size_bytes',
      help: 'Response body sizes, including streams',
      labelNames: ['handler'],
      buckets: BYTE_BUCKETS,
      registers,
    });
    this.#clientAborts = new Counter({
      name: 'capstan_client_aborts_total',
      help: 'Clients that disconnected before the end of the response',
      labelNames: ['handler'],
      registers,
    });
    this.#accessChecks = new Counter({
      name: 'capstan_access_checks_total',
      help: 'Access key checks by outcome',
      labelNames: ['outcome'],
      registers,
    });
  }

  observe({
    method,
    route = NO_HANDLER,
    status,
    durationMs,
    requestBytes,
    responseBytes,
    hasClientLeft,
  }: RequestRecord): void {
    const labels = { handler: route, method: METHODS.has(method) ? method : 'other' };
    this.#requests.inc({ ...labels, status });
    this.#duration.observe(labels, durationMs / 1000);
    if (requestBytes !== undefined) this.#requestSize.observe({ handler: route }, requestBytes);
    this.#responseSize.observe({ handler: route }, responseBytes);
    if (hasClientLeft) this.#clientAborts.inc({ handler: route });
  }

  /** Wraps `access.check` so that each outcome is counted. */
  counting(access: Access): Pick<Access, 'check' | 'identify'> {
    const count = <T extends AccessOutcome>(outcome: T): T => {
      this.#accessChecks.inc({ outcome: outcome.ok ? 'granted' : outcome.code });
      return outcome;
    };
    // A verified key counts when it is admitted.
    const counted = (identity: Identity | Denied): Identity | Denied =>
      identity.ok
        ? {
            ...identity,
            admit: (target) => count(identity.admit(target)),
            reserve: () => {
              const reserved = identity.reserve();
              return reserved.ok ? { ...reserved, admit: (target) => count(reserved.admit(target)) } : count(reserved);
            },
          }
        : count(identity);
    const registers = this.#registers;
    new Gauge({
      name: 'capstan_access_keys',
      help: 'Access keys loaded in this process',
      registers,
      collect() {
        this.set(access.stats().numKeys);
      },
    });
    new Gauge({
      name: 'capstan_access_staleness_seconds',
      help: 'Time since the key database was last read',
      registers,
      collect() {
        this.set(access.stats().staleMs / 1000);
      },
    });
    return {
      check: (...args) => {
        const outcome = access.check(...args);
        return outcome instanceof Promise ? outcome.then(count) : count(outcome);
      },
      identify: (request) => {
        const identity = access.identify(request);
        return identity instanceof Promise ? identity.then(counted) : counted(identity);
      },
    };
  }

  watch(counts: OpenCounts): void {
    const registers = this.#registers;
    const gauge = (name: string, help: string, read: () => number) =>
      new Gauge({
        name,
        help,
        registers,
        collect() {
          this.set(read());
        },
      });
    gauge('capstan_http_requests_open', 'HTTP requests in progress', () => counts.numOpenRequests);
    gauge('capstan_http_streams_open', 'Response streams in progress', () => counts.numOpenStreams);
  }
}
