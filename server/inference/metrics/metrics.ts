import { collectDefaultMetrics, Gauge, Registry } from 'prom-client';
import type { Engine, EngineInfo } from '../../../ts';
import type { Access } from '../../access';
import type { RequestRecord, Route } from '../../http/routes';
import { packageVersion } from '../../base/version';
import { registerAdapterMetrics, registerEngineMetrics } from './engine-metrics';
import { GenerationMetrics } from './generation-metrics';
import { HttpMetrics, type OpenCounts } from '../../access/http-metrics';
import { registerVllmNames } from './vllm-names';

export interface MetricsOptions {
  /** `vllm` adds the names of vLLM. */
  compat: 'none' | 'vllm';
}

const EVENT_LOOP_RESOLUTION_MS = 20;

/** The metrics of a server at GET /metrics. */
export class Metrics {
  readonly registry = new Registry();
  readonly #http: HttpMetrics;
  readonly #generations: GenerationMetrics;
  #engine: Engine | undefined;
  #modelName = '';

  constructor({ compat }: MetricsOptions) {
    this.#http = new HttpMetrics(this.registry);
    this.#generations = new GenerationMetrics(this.registry);
    registerEngineMetrics(this.registry, () => this.#engine?.stats());
    registerAdapterMetrics(this.registry, () => this.#engine?.adapters ?? []);
    this.#registerInfo();
    collectDefaultMetrics({ register: this.registry, eventLoopMonitoringPrecision: EVENT_LOOP_RESOLUTION_MS });
    if (compat === 'vllm') registerVllmNames(this.registry, () => this.#modelName);
  }

  readonly route: Route = {
    method: 'GET',
    path: '/metrics',
    isOperational: true,
    handle: async (_context, _request, reply) =>
      reply.send(200, { 'Content-Type': this.registry.contentType }, await this.render()),
  };

  /** Returns the metrics in Prometheus text format 0.0.4. */
  render(): Promise<string> {
    return this.registry.metrics();
  }

  /** Sets the loaded engine. Returns an observed engine to use in its place. */
  observing(engine: Engine, modelName: string): Engine {
    this.#engine = engine;
    this.#modelName = modelName;
    return this.#generations.observing(engine);
  }

  /** Returns an access check that counts, to use in place of `access`. */
  counting(access: Access): Pick<Access, 'check'> {
    return this.#http.counting(access);
  }

  watch(counts: OpenCounts): void {
    this.#http.watch(counts);
  }

  readonly onEnd = (record: RequestRecord): void => this.#http.observe(record);

  #registerInfo(): void {
    this.#info('capstan_build_info', 'Versions of the package and of Node.js', () => ({
      version: packageVersion(),
      node: process.version,
    }));
    this.#info('capstan_model_info', 'The model and its backend', () =>
      this.#engineInfo(
        ({
          task,
          architecture,
          weightDtype,
          quantization,
          computeDtype,
          backend,
          isa,
          threads,
          tensorParallelSize,
          maxModelLen,
        }) => ({
          model_name: this.#modelName,
          task,
          architecture,
          weight_dtype: weightDtype,
          quantization,
          compute_dtype: computeDtype,
          backend,
          isa,
          threads,
          tensor_parallel_size: tensorParallelSize,
          max_model_len: maxModelLen,
        }),
      ),
    );
    this.#info('capstan_cache_config_info', 'Configuration of the KV cache', () =>
      this.#engineInfo(({ blockSize, numBlocks, kvCacheDtype, kvCacheBytes, prefixCache }) => ({
        block_size: blockSize,
        num_gpu_blocks: numBlocks,
        cache_dtype: kvCacheDtype,
        cache_bytes: kvCacheBytes,
        enable_prefix_caching: prefixCache ? 'True' : 'False',
      })),
    );
  }

  /** Registers a gauge of value 1 with information in its labels. It has no sample until the labels are known. */
  #info(name: string, help: string, labels: () => Record<string, string | number> | undefined): void {
    const gauge: Gauge = new Gauge({
      name,
      help,
      registers: [this.registry],
      labelNames: INFO_LABELS[name],
      collect: () => {
        const values = labels();
        if (values !== undefined) gauge.set(values, 1);
      },
    });
  }

  #engineInfo<T>(read: (info: EngineInfo) => T): T | undefined {
    return this.#engine === undefined ? undefined : read(this.#engine.info);
  }
}

const INFO_LABELS: Readonly<Record<string, string[]>> = {
  capstan_build_info: ['version', 'node'],
  capstan_model_info: [
    'model_name',
    'task',
    'architecture',
    'weight_dtype',
    'quantization',
    'compute_dtype',
    'backend',
    'isa',
    'threads',
    'tensor_parallel_size',
    'max_model_len',
  ],
  capstan_cache_config_info: ['block_size', 'num_gpu_blocks', 'cache_dtype', 'cache_bytes', 'enable_prefix_caching'],
};
