import { Counter, Gauge, Histogram, type Registry } from 'prom-client';
import type { Gateway, GatewayRecord } from './gateway';
import type { GatewayControl, Targets } from './targets';
import { UPSTREAM_FAILURES } from './upstream-error';

/** At most this many deployments have a label. Requests to further deployments share the label `other`. */
const MAX_DEPLOYMENTS = 1_000;
/** Cannot clash with a slug: slugs have twelve characters. */
const OTHERS = 'other';
const STATUS_CLASSES = ['1xx', '2xx', '3xx', '4xx', '5xx'] as const;
const TOKEN_TYPES = ['prompt', 'completion', 'cached'] as const;
/** Few buckets, because every deployment has its own histogram. */
const FIRST_BYTE_BUCKETS = [0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60];
const DURATION_BUCKETS = [0.05, 0.25, 1, 2.5, 10, 30, 60, 300];

/** Metrics of requests to deployments. The label of a deployment is removed with the deployment. */
export class GatewayMetrics {
  readonly #targets: Targets;
  readonly #registers: Registry[];
  readonly #maxDeployments: number;
  readonly #labelled = new Set<string>();
  readonly #requests: Counter<'deployment' | 'status'>;
  readonly #requestBytes: Counter<'deployment'>;
  readonly #responseBytes: Counter<'deployment'>;
  readonly #firstByte: Histogram<'deployment'>;
  readonly #duration: Histogram<'deployment'>;
  readonly #tokens: Counter<'deployment' | 'type'>;
  readonly #retries: Counter<'deployment'>;
  readonly #failures: Counter<'deployment' | 'reason'>;
  readonly #wakes: Counter<'deployment'>;

  constructor(registry: Registry, targets: Targets, maxDeployments = MAX_DEPLOYMENTS) {
    const registers = (this.#registers = [registry]);
    this.#targets = targets;
    this.#maxDeployments = maxDeployments;
    const counter = <L extends string>(name: string, help: string, ...labels: L[]) =>
      new Counter({ name, help, labelNames: ['deployment', ...labels], registers });
    this.#requests = counter(
      'capstan_gateway_requests_total',
      'Finished requests to deployments, by status class. 4xx includes clients that disconnected before the response',
      'status',
    );
    this.#requestBytes = counter('capstan_gateway_request_bytes_total', 'Request body bytes, from Content-Length');
    this.#responseBytes = counter('capstan_gateway_response_bytes_total', 'Response body bytes, including streams');
    this.#firstByte = new Histogram({
      name: 'capstan_gateway_first_byte_seconds',
      help: 'Time from the request headers to the first byte from the replica',
      labelNames: ['deployment'],
      buckets: FIRST_BYTE_BUCKETS,
      registers,
    });
    this.#duration = new Histogram({
      name: 'capstan_gateway_request_duration_seconds',
      help: 'Time from the request headers to the end of the response',
      labelNames: ['deployment'],
      buckets: DURATION_BUCKETS,
      registers,
    });
    this.#tokens = counter(
      'capstan_gateway_tokens_total',
      'Tokens that replicas report: prompt, completion and cached prompt tokens',
      'type',
    );
    this.#retries = counter(
      'capstan_gateway_retries_total',
      'Requests retried after a replica failed before it responded',
    );
    this.#failures = counter(
      'capstan_gateway_upstream_errors_total',
      'Replica failures: unreachable, reset before the response, timeout, or cut during the response',
      'reason',
    );
    this.#wakes = counter(
      'capstan_gateway_wakes_total',
      'Calls to start a deployment that is scaled to zero, at most one per second for each deployment',
    );
    targets.onChange((slug, target) => {
      if (target === undefined) this.#forget(slug);
    });
  }

  readonly onEnd = ({
    slug,
    status,
    durationMs,
    firstByteMs,
    requestBytes,
    responseBytes,
    usage,
    numRetries,
    failures,
  }: GatewayRecord): void => {
    const deployment = this.#label(slug);
    if (deployment === undefined) return;
    const labels = { deployment };
    this.#requests.inc({ deployment, status: `${Math.floor(status / 100)}xx` });
    this.#requestBytes.inc(labels, requestBytes);
    this.#responseBytes.inc(labels, responseBytes);
    this.#duration.observe(labels, durationMs / 1000);
    if (firstByteMs !== undefined) this.#firstByte.observe(labels, firstByteMs / 1000);
    if (numRetries > 0) this.#retries.inc(labels, numRetries);
    for (const reason of failures) this.#failures.inc({ deployment, reason });
    if (usage === undefined) return;
    for (const type of TOKEN_TYPES) this.#tokens.inc({ deployment, type }, usage[`${type}Tokens`]);
  };

  /** Wraps `control` and counts its wake calls. */
  counting(control: GatewayControl): GatewayControl {
    return {
      wake: (deploymentId) => {
        const slug = this.#targets.findById(deploymentId)?.slug;
        const deployment = slug === undefined ? undefined : this.#label(slug);
        if (deployment !== undefined) this.#wakes.inc({ deployment });
        control.wake(deploymentId);
      },
      onOpenRequests: (...counts) => control.onOpenRequests(...counts),
    };
  }

  watch(gateway: Pick<Gateway, 'numOpenRequests' | 'numOpenStreams' | 'numHeldRequests'>): void {
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
    gauge('capstan_gateway_requests_open', 'Open requests to deployments', () => gateway.numOpenRequests);
    gauge(
      'capstan_gateway_streams_open',
      'Open requests that are event streams being relayed',
      () => gateway.numOpenStreams,
    );
    gauge(
      'capstan_gateway_requests_held',
      'Open requests that wait for the first replica',
      () => gateway.numHeldRequests,
    );
  }

  /** Returns undefined if the deployment no longer exists. */
  #label(slug: string): string | undefined {
    if (this.#labelled.has(slug)) return slug;
    if (this.#targets.find(slug) === undefined) return undefined;
    if (this.#labelled.size >= this.#maxDeployments) return OTHERS;
    this.#labelled.add(slug);
    return slug;
  }

  #forget(deployment: string): void {
    if (!this.#labelled.delete(deployment)) return;
    for (const metric of [
      this.#requestBytes,
      this.#responseBytes,
      this.#firstByte,
      this.#duration,
      this.#retries,
      this.#wakes,
    ])
      metric.remove({ deployment });
    for (const status of STATUS_CLASSES) this.#requests.remove({ deployment, status });
    for (const type of TOKEN_TYPES) this.#tokens.remove({ deployment, type });
    for (const reason of UPSTREAM_FAILURES) this.#failures.remove({ deployment, reason });
  }
}
