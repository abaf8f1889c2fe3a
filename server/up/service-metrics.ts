import { collectDefaultMetrics, Gauge, Registry } from 'prom-client';
import type { Targets } from '../gateway/targets';
import type { HttpHandler } from '../http/transport';
import { HttpMetrics } from '../metrics/http-metrics';
import type { RequestRecord } from '../routes';
import { DEPLOYMENT_STATES } from '../service/deployment-state';
import { packageVersion } from '../version';

const EVENT_LOOP_RESOLUTION_MS = 20;

/** What the service tells of itself at GET /metrics of the admin listener; what deployments do is at their own `…/metrics`. */
export class ServiceMetrics {
  readonly registry = new Registry();
  readonly #http: HttpMetrics;

  constructor(targets: Targets) {
    const registers = [this.registry];
    this.#http = new HttpMetrics(this.registry);
    new Gauge({ name: 'capstan_build_info', help: 'What runs: versions of the package and of Node.js', labelNames: ['version', 'node'], registers }).set({ version: packageVersion(), node: process.version }, 1);
    new Gauge({
      name: 'capstan_deployments', help: 'Deployments by state', labelNames: ['state'], registers,
      collect() {
        const all = targets.deployments();
        for (const state of DEPLOYMENT_STATES) this.set({ state }, all.filter((target) => target.state === state).length);
      },
    });
    new Gauge({ name: 'capstan_replicas_ready', help: 'Replicas that answer', registers, collect() { this.set(targets.deployments().reduce((sum, { replicas }) => sum + replicas.length, 0)); } });
    collectDefaultMetrics({ register: this.registry, eventLoopMonitoringPrecision: EVENT_LOOP_RESOLUTION_MS });
  }

  /** Of the management interface. */
  readonly onEnd = (record: RequestRecord): void => this.#http.observe(record);

  readonly handle: HttpHandler = async (_request, reply) => reply.send(200, { 'Content-Type': this.registry.contentType }, await this.registry.metrics());
}
