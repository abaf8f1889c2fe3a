import { collectDefaultMetrics, Gauge, Registry } from 'prom-client';
import type { Engine, EngineInfo } from '../../../ts';
import type { Access } from '../../access';
import type { RequestRecord, Route } from '../../http/routes';
import { packageVersion } from '../../base/version';
import type { EngineModel } from '../models/engine-model';
import type { ModelPool } from '../models/model-pool';
import { type MeasuredModel, type ModelLabels, registerAdapterMetrics, registerEngineMetrics } from './engine-metrics';
import { GenerationMetrics } from './generation-metrics';
import { HttpMetrics, type OpenCounts } from '../../access/http-metrics';
import { registerModelMetrics } from './model-metrics';
import { registerVllmNames } from './vllm-names';

export interface MetricsOptions {
  /** `vllm` adds the names of vLLM. */
  compat: 'none' | 'vllm';
  /** Whether the metrics of an engine have the label `model_name`. Default: false. */
  hasSeveralModels?: boolean;
}

/** A model whose engines are measured. */
type MeasuredEngine = Pick<EngineModel, 'name' | 'stats' | 'engine'>;

const EVENT_LOOP_RESOLUTION_MS = 20;

/** The metrics of a server at GET /metrics. */
export class Metrics {
  readonly registry = new Registry();
  readonly #http: HttpMetrics;
  readonly #generations: GenerationMetrics;
  readonly #labelNames: readonly string[];
  #engines: readonly MeasuredEngine[] = [];

  constructor({ compat, hasSeveralModels = false }: MetricsOptions) {
    this.#labelNames = hasSeveralModels ? ['model_name'] : [];
    this.#http = new HttpMetrics(this.registry);
    this.#generations = new GenerationMetrics(this.registry, this.#labelNames);
    const models = (): MeasuredModel[] => this.#measured();
    registerEngineMetrics(this.registry, models, this.#labelNames);
    registerAdapterMetrics(this.registry, models, this.#labelNames);
    this.#registerInfo();
    collectDefaultMetrics({ register: this.registry, eventLoopMonitoringPrecision: EVENT_LOOP_RESOLUTION_MS });
    if (compat === 'vllm') registerVllmNames(this.registry, () => this.#engines[0]?.name ?? '');
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
    this.#engines = [
      {
        name: modelName,
        engine,
        get stats() {
          return engine.stats();
        },
      },
    ];
    return this.observe(engine, modelName);
  }

  /** Returns an observed engine to use in place of one that {@link Metrics.watchModels} knows. */
  observe(engine: Engine, modelName: string): Engine {
    return this.#generations.observing(engine, this.#labelsOf(modelName));
  }

  /** Sets the models, and adds metrics of their loads. */
  watchModels(models: readonly EngineModel[], pool: ModelPool<Engine>): void {
    this.#engines = models;
    registerModelMetrics(this.registry, pool);
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
    this.#info('capstan_build_info', 'Versions of the package and of Node.js', () => [
      { version: packageVersion(), node: process.version },
    ]);
    this.#info('capstan_model_info', 'The model and its backend', () =>
      this.#engineInfos(
        ({
          modelName,
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
          model_name: modelName,
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
      this.#engineInfos(({ modelName, blockSize, numBlocks, kvCacheDtype, kvCacheBytes, prefixCache }) => ({
        ...this.#labelsOf(modelName),
        block_size: blockSize,
        num_gpu_blocks: numBlocks,
        cache_dtype: kvCacheDtype,
        cache_bytes: kvCacheBytes,
        enable_prefix_caching: prefixCache ? 'True' : 'False',
      })),
    );
  }

  /** Registers a gauge of value 1 with information in its labels. It has a sample for each loaded model. */
  #info(name: string, help: string, labels: () => readonly Record<string, string | number>[]): void {
    const gauge: Gauge = new Gauge({
      name,
      help,
      registers: [this.registry],
      labelNames: [...INFO_LABELS[name], ...(INFO_LABELS[name].includes('model_name') ? [] : this.#labelNames)],
      collect: () => {
        gauge.reset();
        for (const values of labels()) gauge.set(values, 1);
      },
    });
  }

  #engineInfos<T>(read: (info: EngineInfo) => T): T[] {
    return this.#engines.flatMap(({ name, engine }) =>
      engine === undefined ? [] : [read({ ...engine.info, modelName: name })],
    );
  }

  #measured(): MeasuredModel[] {
    const models = this.#engines.map(({ name, stats, engine }) => ({
      labels: this.#labelsOf(name),
      stats,
      adapters: engine?.adapters ?? [],
    }));
    // A server with one model has its metrics from the start.
    return models.length > 0 || this.#labelNames.length > 0 ? models : [{ labels: {}, stats: undefined, adapters: [] }];
  }

  #labelsOf(modelName: string): ModelLabels {
    return this.#labelNames.length === 0 ? {} : { model_name: modelName };
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
