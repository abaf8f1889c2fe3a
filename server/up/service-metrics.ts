import { collectDefaultMetrics, Gauge, Registry } from 'prom-client';
import type { Access } from '../access';
import type { Gateway, GatewayRecord } from '../gateway/gateway';
import type { GatewayControl, Targets } from '../gateway/targets';
import type { HttpHandler } from '../http/transport';
import { GatewayMetrics } from '../metrics/gateway-metrics';
import { HttpMetrics } from '../metrics/http-metrics';
import type { RequestRecord } from '../routes';
import { DEPLOYMENT_STATES } from '../service/deployment-state';
import { packageVersion } from '../version';

const EVENT_LOOP_RESOLUTION_MS = 20;

/** What the service tells of itself at GET /metrics of the admin listener; what runs inside deployments is at their own `…/metrics`. */
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
      help: 'What runs: versions of the package and of Node.js',
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
      help: 'Replicas that answer',
      registers,
      collect() {
        this.set(targets.deployments().reduce((sum, { replicas }) => sum + replicas.length, 0));
      },
    });
    collectDefaultMetrics({ register: this.registry, eventLoopMonitoringPrecision: EVENT_LOOP_RESOLUTION_MS });
  }

  /** The gateway's check of keys, counted; it stands in for the check itself. */
  countingAccess(access: Access): Pick<Access, 'check'> {
    return this.#http.counting(access);
  }

  /** What the gateway asks of the controller, counted; it stands in for the controller. */
  countingControl(control: GatewayControl): GatewayControl {
    return this.#gateway.counting(control);
  }

  watch(gateway: Pick<Gateway, 'numOpenRequests' | 'numOpenStreams' | 'numHeldRequests'>): void {
    this.#gateway.watch(gateway);
  }

  /** Of the gateway. */
  readonly onForwarded = (record: GatewayRecord): void => this.#gateway.onEnd(record);

  /** Of the management interface. */
  readonly onEnd = (record: RequestRecord): void => this.#http.observe(record);

  /** Every metric that there is, for the documentation. */
  async describe(): Promise<{ name: string; type: string; help: string }[]> {
    return (await this.registry.getMetricsAsJSON()).map(({ name, type, help }) => ({ name, type: String(type), help }));
  }

  readonly handle: HttpHandler = async (_request, reply) =>
    reply.send(200, { 'Content-Type': this.registry.contentType }, await this.registry.metrics());
}
