import { collectDefaultMetrics, Gauge, Registry } from 'prom-client';
import type { Engine, EngineInfo } from '../../ts';
import type { Access } from '../access';
import type { RequestRecord, Route } from '../routes';
import { packageVersion } from '../version';
import { registerEngineMetrics } from './engine-metrics';
import { GenerationMetrics } from './generation-metrics';
import { HttpMetrics, type OpenCounts } from './http-metrics';
import { registerVllmNames } from './vllm-names';

export interface MetricsOptions {
  /** `vllm`: vLLM's names beside ours. */
  compat: 'none' | 'vllm';
}

const EVENT_LOOP_RESOLUTION_MS = 20;

/** What a server tells of itself at GET /metrics. */
export class Metrics {
  readonly #registry = new Registry();
  readonly #http: HttpMetrics;
  readonly #generations: GenerationMetrics;
  #engine: Engine | undefined;
  #modelName = '';

  constructor({ compat }: MetricsOptions) {
    this.#http = new HttpMetrics(this.#registry);
    this.#generations = new GenerationMetrics(this.#registry);
    registerEngineMetrics(this.#registry, () => this.#engine?.stats());
    this.#registerInfo();
    collectDefaultMetrics({ register: this.#registry, eventLoopMonitoringPrecision: EVENT_LOOP_RESOLUTION_MS });
    if (compat === 'vllm') registerVllmNames(this.#registry, () => this.#modelName);
  }

  readonly route: Route = {
    method: 'GET',
    path: '/metrics',
    isOperational: true,
    handle: async (_context, _request, reply) =>
      reply.send(200, { 'Content-Type': this.#registry.contentType }, await this.render()),
  };

  /** In Prometheus' text format 0.0.4. */
  render(): Promise<string> {
    return this.#registry.metrics();
  }

  /** Every metric that there is, for the documentation. */
  async describe(): Promise<{ name: string; type: string; help: string }[]> {
    return (await this.#registry.getMetricsAsJSON()).map(({ name, type, help }) => ({
      name,
      type: String(type),
      help,
    }));
  }

  /** The loaded engine; what is returned is it, observed, and stands in for it. */
  observing(engine: Engine, modelName: string): Engine {
    this.#engine = engine;
    this.#modelName = modelName;
    return this.#generations.observing(engine);
  }

  /** The access check, counted; it stands in for the check itself. */
  counting(access: Access): Pick<Access, 'check'> {
    return this.#http.counting(access);
  }

  watch(counts: OpenCounts): void {
    this.#http.watch(counts);
  }

  readonly onEnd = (record: RequestRecord): void => this.#http.observe(record);

  #registerInfo(): void {
    this.#info('capstan_build_info', 'What runs: versions of the package and of Node.js', () => ({
      version: packageVersion(),
      node: process.version,
    }));
    this.#info('capstan_model_info', 'The model and what computes it', () =>
      this.#ofEngine(
        ({ architecture, weightDtype, computeDtype, backend, isa, threads, tensorParallelSize, maxModelLen }) => ({
          model_name: this.#modelName,
          architecture,
          weight_dtype: weightDtype,
          compute_dtype: computeDtype,
          backend,
          isa,
          threads,
          tensor_parallel_size: tensorParallelSize,
          max_model_len: maxModelLen,
        }),
      ),
    );
    this.#info('capstan_cache_config_info', 'The KV cache', () =>
      this.#ofEngine(({ blockSize, numBlocks, kvCacheDtype, kvCacheBytes, prefixCache }) => ({
        block_size: blockSize,
        num_gpu_blocks: numBlocks,
        cache_dtype: kvCacheDtype,
        cache_bytes: kvCacheBytes,
        enable_prefix_caching: prefixCache ? 'True' : 'False',
      })),
    );
  }

  /** A gauge that is always 1 and says everything by its labels; absent until they are known. */
  #info(name: string, help: string, labels: () => Record<string, string | number> | undefined): void {
    const gauge: Gauge = new Gauge({
      name,
      help,
      registers: [this.#registry],
      labelNames: INFO_LABELS[name],
      collect: () => {
        const known = labels();
        if (known !== undefined) gauge.set(known, 1);
      },
    });
  }

  #ofEngine<T>(read: (info: EngineInfo) => T): T | undefined {
    return this.#engine === undefined ? undefined : read(this.#engine.info);
  }
}

const INFO_LABELS: Readonly<Record<string, string[]>> = {
  capstan_build_info: ['version', 'node'],
  capstan_model_info: [
    'model_name',
    'architecture',
    'weight_dtype',
    'compute_dtype',
    'backend',
    'isa',
    'threads',
    'tensor_parallel_size',
    'max_model_len',
  ],
  capstan_cache_config_info: ['block_size', 'num_gpu_blocks', 'cache_dtype', 'cache_bytes', 'enable_prefix_caching'],
};
