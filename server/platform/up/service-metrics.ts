import { collectDefaultMetrics, Gauge, Registry } from 'prom-client';
import { type Access, type HttpHandler, HttpMetrics, packageVersion, type RequestRecord } from 'capstan/internal';
import type { Gateway, GatewayRecord } from '../gateway/gateway';
import { allReplicas, type GatewayControl, type Targets } from '../gateway/targets';
import { GatewayMetrics } from '../gateway/gateway-metrics';
import { DEPLOYMENT_STATES } from '../deployments/deployment-state';

const EVENT_LOOP_RESOLUTION_MS = 20;

/**
 * Metrics of the service at GET /metrics of the admin listener. Replicas expose theirs at the deployment's `…/metrics`.
 */
export class ServiceMetrics {
  readonly registry = new Registry();
  readonly #http: HttpMetrics;
  readonly #gateway: GatewayMetrics;

  constructor(targets: Targets) {
    const registers = [this.registry];
    this.#http = new HttpMetrics(this.registry);
    this.#gateway = new GatewayMetrics(this.registry, targets);
    new Gauge({
      name: 'capstan_build_info',
      help: 'Versions of the package and of Node.js',
      labelNames: ['version', 'node'],
      registers,
    }).set({ version: packageVersion(), node: process.version }, 1);
    new Gauge({
      name: 'capstan_deployments',
      help: 'Deployments by state',
      labelNames: ['state'],
      registers,
      collect() {
        const all = targets.deployments();
        for (const state of DEPLOYMENT_STATES)
          this.set({ state }, all.filter((target) => target.state === state).length);
      },
    });
    new Gauge({
      name: 'capstan_replicas_ready',
      help: 'Ready replicas',
      registers,
      collect() {
        const replicas = targets.deployments().flatMap((target) => allReplicas(target));
        this.set(replicas.filter(({ upstream }) => upstream === undefined).length);
      },
    });
    collectDefaultMetrics({ register: this.registry, eventLoopMonitoringPrecision: EVENT_LOOP_RESOLUTION_MS });
  }

  /** Wraps the gateway's key check and counts its outcomes. */
  countingAccess(access: Access): Pick<Access, 'check' | 'identify'> {
    return this.#http.counting(access);
  }

  /** Wraps the controller's gateway interface and counts its calls. */
  countingControl(control: GatewayControl): GatewayControl {
    return this.#gateway.counting(control);
  }

  watch(gateway: Pick<Gateway, 'numOpenRequests' | 'numOpenStreams' | 'numHeldRequests'>): void {
    this.#gateway.watch(gateway);
  }

  /** Records a finished request of the gateway. */
  readonly onForwarded = (record: GatewayRecord): void => this.#gateway.onEnd(record);

  /** Records a finished request of the management API. */
  readonly onEnd = (record: RequestRecord): void => this.#http.observe(record);

  readonly handle: HttpHandler = async (_request, reply) =>
    reply.send(200, { 'Content-Type': this.registry.contentType }, await this.registry.metrics());
}
