import type { Registry } from 'prom-client';

type Labels = Record<string, string | number>;

/** The samples of a prom-client metric. */
interface Samples {
  name: string;
  values: Sample[];
}

interface Sample {
  metricName?: string;
  labels: Labels;
  value: number;
}

interface Alias {
  /** Our name. */
  of: string;
  /** Names in vLLM, the newest first. */
  names: readonly string[];
  /** Converts our labels to those of vLLM. Default: the same labels. */
  relabel?: (labels: Labels) => Labels;
  /** HTTP metrics of vLLM have no model label. */
  hasNoModel?: boolean;
}

const statusClass = ({ status, ...rest }: Labels): Labels => ({ ...rest, status: `${String(status)[0]}xx` });
const same = (labels: Labels): Labels => labels;
const finishedReason = ({ reason }: Labels): Labels => ({ finished_reason: reason });

/** The vLLM names of our metrics. */
export const VLLM_ALIASES: readonly Alias[] = [
  { of: 'capstan_sequences_running', names: ['vllm:num_requests_running'] },
  { of: 'capstan_sequences_waiting', names: ['vllm:num_requests_waiting'] },
  { of: 'capstan_kv_cache_usage_ratio', names: ['vllm:kv_cache_usage_perc', 'vllm:gpu_cache_usage_perc'] },
  { of: 'capstan_prompt_tokens_total', names: ['vllm:prompt_tokens_total'] },
  { of: 'capstan_completion_tokens_total', names: ['vllm:generation_tokens_total'] },
  { of: 'capstan_sequences_finished_total', names: ['vllm:request_success_total'], relabel: finishedReason },
  {
    of: 'capstan_prefix_cache_queries_total',
    names: ['vllm:prefix_cache_queries_total', 'vllm:gpu_prefix_cache_queries_total'],
  },
  {
    of: 'capstan_prefix_cache_hits_total',
    names: ['vllm:prefix_cache_hits_total', 'vllm:gpu_prefix_cache_hits_total'],
  },
  { of: 'capstan_preemptions_total', names: ['vllm:num_preemptions_total'] },
  { of: 'capstan_spec_decode_drafts_total', names: ['vllm:spec_decode_num_drafts_total'] },
  { of: 'capstan_spec_decode_draft_tokens_total', names: ['vllm:spec_decode_num_draft_tokens_total'] },
  { of: 'capstan_spec_decode_accepted_tokens_total', names: ['vllm:spec_decode_num_accepted_tokens_total'] },
  {
    of: 'capstan_spec_decode_accepted_tokens_per_pos_total',
    names: ['vllm:spec_decode_num_accepted_tokens_per_pos_total'],
  },
  { of: 'capstan_time_to_first_token_seconds', names: ['vllm:time_to_first_token_seconds'] },
  {
    of: 'capstan_time_per_output_token_seconds',
    names: [
      'vllm:inter_token_latency_seconds',
      'vllm:time_per_output_token_seconds',
      'vllm:request_time_per_output_token_seconds',
    ],
  },
  { of: 'capstan_request_latency_seconds', names: ['vllm:e2e_request_latency_seconds'] },
  { of: 'capstan_queue_time_seconds', names: ['vllm:request_queue_time_seconds'] },
  { of: 'capstan_inference_time_seconds', names: ['vllm:request_inference_time_seconds'] },
  { of: 'capstan_prefill_time_seconds', names: ['vllm:request_prefill_time_seconds'] },
  { of: 'capstan_decode_time_seconds', names: ['vllm:request_decode_time_seconds'] },
  { of: 'capstan_request_prompt_tokens', names: ['vllm:request_prompt_tokens'] },
  { of: 'capstan_request_completion_tokens', names: ['vllm:request_generation_tokens'] },
  { of: 'capstan_request_longest_choice_tokens', names: ['vllm:request_max_num_generation_tokens'] },
  { of: 'capstan_request_max_tokens', names: ['vllm:request_params_max_tokens'] },
  { of: 'capstan_request_choices', names: ['vllm:request_params_n'] },
  { of: 'capstan_step_tokens', names: ['vllm:iteration_tokens_total'] },
  { of: 'capstan_cache_config_info', names: ['vllm:cache_config_info'] },
  { of: 'capstan_http_requests_total', names: ['http_requests_total'], relabel: statusClass, hasNoModel: true },
  { of: 'capstan_http_request_duration_seconds', names: ['http_request_duration_seconds'], hasNoModel: true },
  { of: 'capstan_http_request_size_bytes', names: ['http_request_size_bytes'], hasNoModel: true },
  { of: 'capstan_http_response_size_bytes', names: ['http_response_size_bytes'], hasNoModel: true },
];

/** Registers every alias. Each scrape renames the samples of our metric. */
export function registerVllmNames(registry: Registry, modelName: () => string): void {
  for (const { of, names, relabel = same, hasNoModel = false } of VLLM_ALIASES) {
    const metric = registry.getSingleMetric(of);
    if (metric === undefined) throw new Error(`no metric is called ${of}`);
    const labelsOf = (labels: Labels): Labels =>
      hasNoModel ? relabel(labels) : { model_name: labels.model_name ?? modelName(), ...relabel(labels) };
    for (const name of names) {
      const get = async (): Promise<Samples> => {
        const samples = (await metric.get()) as unknown as Samples;
        const values = samples.values.map((sample) => ({
          ...sample,
          metricName: (sample.metricName ?? of).replace(of, name),
          labels: labelsOf(sample.labels),
        }));
        return { ...samples, name, values: merged(values) };
      };
      registry.registerMetric({ name, get } as never);
    }
  }
}

/** Adds up samples whose labels are equal after relabelling. */
function merged(samples: readonly (Sample & { metricName: string })[]): Sample[] {
  const sums = new Map<string, Sample>();
  for (const sample of samples) {
    const key = JSON.stringify([sample.metricName, sample.labels]);
    const sum = sums.get(key);
    if (sum === undefined) sums.set(key, { ...sample });
    else sum.value += sample.value;
  }
  return [...sums.values()];
}
