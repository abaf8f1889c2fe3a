import { Counter, Gauge, type Registry } from 'prom-client';
import type { AdapterInfo, EngineStats } from '../../../ts';
import { type Counters, NO_COUNTERS } from '../models/engine-counters';

interface MetricName {
  name: string;
  help: string;
}

/** The labels of one model: none for a server with one. */
export type ModelLabels = Record<string, string>;

/** What is measured of one model. */
export interface MeasuredModel {
  labels: ModelLabels;
  /** Without gauges while the model is not loaded. Undefined before its first load. */
  stats: (Counters & Partial<EngineStats>) | undefined;
  adapters: readonly AdapterInfo[];
}

/** Registers the metrics that engines count. They are read at each scrape and cost nothing per step. */
export function registerEngineMetrics(
  registry: Registry,
  models: () => readonly MeasuredModel[],
  modelLabels: readonly string[],
): void {
  const common = { registers: [registry], labelNames: [...modelLabels] };
  const gauge = (named: MetricName, read: (stats: EngineStats) => number) =>
    new Gauge({
      ...named,
      ...common,
      collect() {
        for (const { labels, stats } of models()) this.set(labels, isLoaded(stats) ? read(stats) : 0);
      },
    });
  // The engine holds the count, so each scrape replaces the value.
  const counter = (named: MetricName, read: (stats: Counters) => number) =>
    new Counter({
      ...named,
      ...common,
      collect() {
        this.reset();
        for (const { labels, stats } of models()) this.inc(labels, stats === undefined ? 0 : read(stats));
      },
    });

  gauge(
    { name: 'capstan_sequences_running', help: 'Running sequences (one per choice of a request)' },
    ({ numRunning }) => numRunning,
  );
  gauge({ name: 'capstan_sequences_waiting', help: 'Waiting sequences' }, ({ numWaiting }) => numWaiting);
  gauge(
    { name: 'capstan_queued_prompt_tokens', help: 'Prompt tokens of waiting sequences' },
    ({ queuedPromptTokens }) => queuedPromptTokens,
  );
  gauge(
    { name: 'capstan_kv_cache_usage_ratio', help: 'Share of the KV cache in use by sequences, from 0 to 1' },
    kvCacheUsage,
  );
  new Gauge({
    name: 'capstan_kv_cache_blocks',
    help: 'KV cache blocks by state: used by sequences, cached for later prompts, or free',
    registers: [registry],
    labelNames: ['state', ...modelLabels],
    collect() {
      for (const { labels, stats } of models()) {
        const { numBlocks = 0, numFreeBlocks = 0, numCachedBlocks = 0 } = stats ?? {};
        this.set({ ...labels, state: 'used' }, numBlocks - numFreeBlocks - numCachedBlocks);
        this.set({ ...labels, state: 'cached' }, numCachedBlocks);
        this.set({ ...labels, state: 'free' }, numFreeBlocks);
      }
    },
  });
  gauge(
    { name: 'capstan_state_snapshot_bytes', help: 'Memory of snapshots of recurrent states in the prefix cache' },
    ({ snapshotBytes }) => snapshotBytes,
  );
  gauge(
    { name: 'capstan_disk_cache_blocks', help: 'Blocks of the model in the prefix cache on disk' },
    ({ numDiskBlocks }) => numDiskBlocks,
  );
  gauge(
    { name: 'capstan_disk_cache_bytes', help: 'What the folder of the prefix cache on disk holds' },
    ({ diskBytes }) => diskBytes,
  );
  gauge(
    { name: 'capstan_grammar_cache_bytes', help: 'Memory of compiled grammars and their token masks' },
    ({ grammarCacheBytes }) => grammarCacheBytes,
  );
  gauge(
    { name: 'capstan_engine_up', help: '1 while the engine works, 0 before it is loaded and after it failed' },
    ({ failure }) => (failure === null ? 1 : 0),
  );
  gauge(
    { name: 'capstan_seconds_since_last_step', help: 'Seconds since the last finished step, 0 without work' },
    ({ msSinceLastStep }) => msSinceLastStep / 1000,
  );

  counter(
    { name: 'capstan_prompt_tokens_total', help: 'Prompt tokens of finished requests' },
    ({ promptTokens }) => promptTokens,
  );
  counter(
    { name: 'capstan_completion_tokens_total', help: 'Tokens generated for finished sequences' },
    ({ completionTokens }) => completionTokens,
  );
  counter(
    { name: 'capstan_cached_tokens_total', help: 'Prompt tokens found in the prefix cache' },
    ({ cachedTokens }) => cachedTokens,
  );
  counter(
    { name: 'capstan_prefix_cache_queries_total', help: 'Prompt tokens looked up in the prefix cache' },
    ({ promptTokens }) => promptTokens,
  );
  counter(
    { name: 'capstan_prefix_cache_hits_total', help: 'Prompt tokens found in the prefix cache' },
    ({ cachedTokens }) => cachedTokens,
  );
  counter(
    {
      name: 'capstan_state_snapshot_hits_total',
      help: 'Sequences that continued from a snapshot of a recurrent state',
    },
    ({ numSnapshotHits }) => numSnapshotHits,
  );
  counter(
    { name: 'capstan_disk_cache_hits_total', help: 'Prompts that continue from blocks of the disk' },
    ({ numDiskHits }) => numDiskHits,
  );
  counter(
    {
      name: 'capstan_disk_cache_declined_total',
      help: 'Prompts whose blocks on the disk were computed again, because that takes less time',
    },
    ({ numDiskDeclined }) => numDiskDeclined,
  );
  counter(
    { name: 'capstan_disk_cache_tokens_total', help: 'Prompt tokens loaded from the disk' },
    ({ diskCachedTokens }) => diskCachedTokens,
  );
  counter(
    { name: 'capstan_disk_cache_read_bytes_total', help: 'Bytes read from the prefix cache on disk' },
    ({ diskBytesRead }) => diskBytesRead,
  );
  counter(
    { name: 'capstan_disk_cache_written_bytes_total', help: 'Bytes written to the prefix cache on disk' },
    ({ diskBytesWritten }) => diskBytesWritten,
  );
  counter(
    { name: 'capstan_disk_cache_evictions_total', help: 'Blocks removed from the disk because of its limit' },
    ({ numDiskEvictions }) => numDiskEvictions,
  );
  counter(
    {
      name: 'capstan_disk_cache_skipped_total',
      help: 'Blocks that were not written, because the disk is slow or full',
    },
    ({ numDiskSkipped }) => numDiskSkipped,
  );
  counter(
    { name: 'capstan_disk_cache_damaged_total', help: 'Damaged blocks found on the disk and removed' },
    ({ numDiskDamaged }) => numDiskDamaged,
  );
  counter(
    { name: 'capstan_evictions_total', help: 'Cached blocks evicted for new ones' },
    ({ numEvictions }) => numEvictions,
  );
  counter(
    {
      name: 'capstan_preemptions_total',
      help: 'Preemptions of running sequences by a full KV cache or a more urgent sequence',
    },
    ({ numPreemptions }) => numPreemptions,
  );
  counter(
    { name: 'capstan_spec_decode_drafts_total', help: 'Proposals of speculative decoding that were verified' },
    ({ numDrafts }) => numDrafts,
  );
  counter(
    { name: 'capstan_spec_decode_draft_tokens_total', help: 'Proposed tokens that were verified' },
    ({ numDraftTokens }) => numDraftTokens,
  );
  counter(
    { name: 'capstan_spec_decode_accepted_tokens_total', help: 'Proposed tokens that were accepted' },
    ({ numAcceptedTokens }) => numAcceptedTokens.reduce((sum, count) => sum + count, 0),
  );
  new Counter({
    name: 'capstan_spec_decode_accepted_tokens_per_pos_total',
    help: 'Accepted tokens by position in the proposal, from 0',
    registers: [registry],
    labelNames: ['position', ...modelLabels],
    collect() {
      this.reset();
      for (const { labels, stats } of models())
        for (const [position, count] of (stats?.numAcceptedTokens ?? []).entries())
          this.inc({ ...labels, position }, count);
    },
  });
  counter({ name: 'capstan_steps_total', help: 'Engine steps' }, ({ numSteps }) => numSteps);
  new Counter({
    name: 'capstan_sequences_finished_total',
    help: 'Finished sequences by reason',
    registers: [registry],
    labelNames: ['reason', ...modelLabels],
    collect() {
      this.reset();
      for (const { labels, stats } of models()) {
        const { numFinished } = stats ?? NO_COUNTERS;
        for (const [reason, count] of Object.entries(numFinished)) this.inc({ ...labels, reason }, count);
      }
    },
  });
  registerStepTokens(registry, models);
}

/** Registers the open prompts of each adapter. */
export function registerAdapterMetrics(
  registry: Registry,
  models: () => readonly MeasuredModel[],
  modelLabels: readonly string[],
): void {
  new Gauge({
    name: 'capstan_adapter_requests',
    help: 'Open prompts by loaded LoRA adapter',
    labelNames: ['adapter', ...modelLabels],
    registers: [registry],
    collect() {
      this.reset();
      for (const { labels, adapters } of models())
        for (const { name, numCalls } of adapters) this.set({ ...labels, adapter: name }, numCalls);
    },
  });
}

/** A histogram with one bucket: its sum divided by its count is the mean number of tokens per step. */
function registerStepTokens(registry: Registry, models: () => readonly MeasuredModel[]): void {
  const name = 'capstan_step_tokens';
  const get = (): object => {
    const values = models().flatMap(({ labels, stats }) => {
      const { promptTokens, cachedTokens, completionTokens, numSteps } = stats ?? NO_COUNTERS;
      return [
        { metricName: `${name}_bucket`, labels: { le: '+Inf', ...labels }, value: numSteps },
        { metricName: `${name}_sum`, labels, value: promptTokens - cachedTokens + completionTokens },
        { metricName: `${name}_count`, labels, value: numSteps },
      ];
    });
    return {
      name,
      type: 'histogram',
      help: 'Tokens computed per step for finished sequences: sum divided by count is the mean',
      values,
    };
  };
  registry.registerMetric({ name, get } as never);
}

function isLoaded(stats: MeasuredModel['stats']): stats is Counters & EngineStats {
  return stats?.numBlocks !== undefined;
}

function kvCacheUsage({ numBlocks, numFreeBlocks, numCachedBlocks }: EngineStats): number {
  return numBlocks === 0 ? 0 : (numBlocks - numFreeBlocks - numCachedBlocks) / numBlocks;
}
