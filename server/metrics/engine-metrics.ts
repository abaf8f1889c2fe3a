import { Counter, Gauge, type Registry } from 'prom-client';
import type { EngineStats } from '../../ts';

interface Named {
  name: string;
  help: string;
}

/** Registers what the engine counts itself. It is read at a scrape; a step costs nothing for it. */
export function registerEngineMetrics(registry: Registry, stats: () => EngineStats | undefined): void {
  const registers = [registry];
  const gauge = (named: Named, read: (stats: EngineStats) => number) =>
    new Gauge({
      ...named,
      registers,
      collect() {
        this.set(valueOf(stats(), read));
      },
    });
  // What was counted elsewhere takes the place of what was counted here.
  const counter = (named: Named, read: (stats: EngineStats) => number) =>
    new Counter({
      ...named,
      registers,
      collect() {
        this.reset();
        this.inc(valueOf(stats(), read));
      },
    });

  gauge(
    { name: 'capstan_sequences_running', help: 'Sequences (choices of requests) that take part in steps' },
    ({ numRunning }) => numRunning,
  );
  gauge(
    { name: 'capstan_sequences_waiting', help: 'Sequences that wait to be admitted' },
    ({ numWaiting }) => numWaiting,
  );
  gauge(
    { name: 'capstan_queued_prompt_tokens', help: 'Prompt tokens of the sequences that wait' },
    ({ queuedPromptTokens }) => queuedPromptTokens,
  );
  gauge(
    { name: 'capstan_kv_cache_usage_ratio', help: 'Share of the KV cache that sequences hold, from 0 to 1' },
    kvCacheUsage,
  );
  new Gauge({
    name: 'capstan_kv_cache_blocks',
    help: 'Blocks of the KV cache: used by sequences, cached for later prompts, or free',
    labelNames: ['state'],
    registers,
    collect() {
      const { numBlocks = 0, numFreeBlocks = 0, numCachedBlocks = 0 } = stats() ?? {};
      this.set({ state: 'used' }, numBlocks - numFreeBlocks - numCachedBlocks);
      this.set({ state: 'cached' }, numCachedBlocks);
      this.set({ state: 'free' }, numFreeBlocks);
    },
  });
  gauge(
    { name: 'capstan_engine_up', help: '1 while the engine answers, 0 before it is loaded and after it failed' },
    ({ failure }) => (failure === null ? 1 : 0),
  );
  gauge(
    { name: 'capstan_seconds_since_last_step', help: 'Time since the last finished step, 0 when there is no work' },
    ({ msSinceLastStep }) => msSinceLastStep / 1000,
  );

  counter(
    { name: 'capstan_prompt_tokens_total', help: 'Prompt tokens of requests that have ended' },
    ({ promptTokens }) => promptTokens,
  );
  counter(
    { name: 'capstan_completion_tokens_total', help: 'Tokens generated for sequences that have ended' },
    ({ completionTokens }) => completionTokens,
  );
  counter(
    { name: 'capstan_cached_tokens_total', help: 'Prompt tokens that the prefix cache held' },
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
    { name: 'capstan_evictions_total', help: 'Cached blocks dropped for new ones' },
    ({ numEvictions }) => numEvictions,
  );
  counter(
    { name: 'capstan_preemptions_total', help: 'Running sequences sent back to wait for room in the KV cache' },
    ({ numPreemptions }) => numPreemptions,
  );
  counter({ name: 'capstan_steps_total', help: 'Steps of the engine' }, ({ numSteps }) => numSteps);
  new Counter({
    name: 'capstan_sequences_finished_total',
    help: 'Sequences that have ended, by how',
    labelNames: ['reason'],
    registers,
    collect() {
      const { numFinished = { stop: 0, length: 0, abort: 0, error: 0 } } = stats() ?? {};
      this.reset();
      for (const [reason, count] of Object.entries(numFinished)) this.inc({ reason }, count);
    },
  });
  registerStepTokens(registry, stats);
}

/** A histogram of sum and count alone: their quotient is the mean; no step is looked at for it. */
function registerStepTokens(registry: Registry, stats: () => EngineStats | undefined): void {
  const name = 'capstan_step_tokens';
  const get = (): object => {
    const { promptTokens = 0, cachedTokens = 0, completionTokens = 0, numSteps = 0 } = stats() ?? {};
    const values = [
      { metricName: `${name}_bucket`, labels: { le: '+Inf' }, value: numSteps },
      { metricName: `${name}_sum`, labels: {}, value: promptTokens - cachedTokens + completionTokens },
      { metricName: `${name}_count`, labels: {}, value: numSteps },
    ];
    return {
      name,
      type: 'histogram',
      help: 'Tokens computed per step, of sequences that have ended; one bucket only',
      values,
    };
  };
  registry.registerMetric({ name, get } as never);
}

function valueOf(stats: EngineStats | undefined, read: (stats: EngineStats) => number): number {
  return stats === undefined ? 0 : read(stats);
}

function kvCacheUsage({ numBlocks, numFreeBlocks, numCachedBlocks }: EngineStats): number {
  return numBlocks === 0 ? 0 : (numBlocks - numFreeBlocks - numCachedBlocks) / numBlocks;
}
