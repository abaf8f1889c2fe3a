/**
 * A flag of vLLM 0.32 that Capstan does not have. A vLLM command line works here unless responses or capacity would
 * differ. The names come from vLLM's front-end and engine arguments; names of earlier versions are kept.
 */
export interface VllmFlag {
  /** Without leading dashes. */
  name: string;
  aliases?: readonly string[];
  /** A switch takes nothing and has a `--no-` form. */
  takes: 'nothing' | 'value' | 'values';
  /** Why the flag is refused. A flag without a reason is accepted and has no effect. */
  refusal?: string;
  /** Values of a refused flag that are accepted, because they ask for what Capstan does anyway. */
  harmless?: readonly string[];
}

const PYTHON = 'Python code is not supported';
const ONE_MACHINE = 'a model is served by one process on one machine';
const HAS_TASK = 'the task comes from the model, or from --task embed and --task score';
const AS_POOLED = "embeddings are pooled as the model's files say";
const TEXT_ONLY = 'only text generation is supported';
const SPECULATION = 'set --speculative-config instead';
const AS_TRAINED = 'the model configuration cannot be overridden';

/** Switches that have no effect. */
const SWITCHES_WITHOUT_EFFECT = `
  trust-remote-code enforce-eager disable-log-stats disable-frontend-multiprocessing enable-tokenizer-info-endpoint enable-server-load-tracking
  enable-log-outputs enable-log-deltas log-error-stack enable-offline-docs enable-flash-late-interaction cohere-is-reasoning-model aggregate-engine-logging enable-ssl-refresh
  enable-per-request-metrics use-tqdm-on-load enable-chunked-prefill disable-cascade-attn disable-async-output-proc use-async-output-proc use-v2-block-manager enable-sleep-mode
  disable-custom-all-reduce ray-workers-use-nsight enable-expert-parallel enable-dbo enable-eplb eplb-log-balancedness enable-elastic-ep
  disable-nccl-for-dp-synchronization data-parallel-hybrid-lb data-parallel-external-lb enable-multimodal-encoder-data-parallel calculate-kv-scales
  kv-sharing-fast-prefill disable-hybrid-kv-cache-manager async-scheduling disable-chunked-mm-input scheduler-reserve-full-isl multi-step-stream-outputs
  guided-decoding-disable-fallback guided-decoding-disable-any-whitespace guided-decoding-disable-additional-properties disable-mm-preprocessor-cache
  enable-mm-embeds interleave-mm-strings skip-mm-profiling mm-encoder-only language-model-only enable-lora-bias fully-sharded-loras specialize-active-lora
  fail-on-environ-validation allow-deprecated-quantization enable-cumem-allocator enable-nccl-comm-suspend sleep-mode-offload-cudagraph use-fp64-gumbel
  enable-mamba-cache-stochastic-rounding enable-mamba-shared-prefix-checkpoint use-replayssm swa-bounded-replay long-prefill-token-threshold-adaptive
  data-parallel-multi-port-external-lb dcp-q-replicate enable-batch-sharded-sampling enable-ep-weight-filter enable-fault-tolerance enable-hc-sp enable-shm-tensor-arena numa-bind
  mm-device-do-normalize trust-request-mm-kwargs enable-mixed-moe-lora-format enable-moe-shared-loras enable-tower-connector-lora jit-monitor-verbose
  kv-cache-metrics cudagraph-metrics enable-layerwise-nvtx-tracing enable-mfu-metrics enable-logging-iteration-details enable-flashinfer-autotune
`;

const VALUES_WITHOUT_EFFECT = `
  api-server-count max-log-len log-config-file fingerprint-mode fingerprint-value cohere-format h11-max-incomplete-event-size h11-max-header-count
  swap-space cpu-offload-gb offload-backend offload-group-size offload-num-in-group offload-prefetch-step seed revision code-revision tokenizer-revision download-dir hf-config-path hf-token
  safetensors-load-strategy safetensors-prefetch-block-size safetensors-prefetch-num-threads model-loader-extra-config pt-load-map-location config-format model-impl max-seq-len-to-capture
  allowed-local-media-path structured-outputs-config guided-decoding-backend
  distributed-executor-backend master-addr master-port data-parallel-rank data-parallel-start-rank data-parallel-size-local data-parallel-address
  data-parallel-rpc-port data-parallel-backend data-parallel-supervisor-port dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s dp-supervisor-probe-failure-threshold
  all2all-backend ubatch-size dbo-decode-token-threshold dbo-prefill-token-threshold eplb-config num-redundant-experts eplb-window-size eplb-step-interval expert-placement-strategy
  max-parallel-loading-workers dcp-kv-cache-interleave-size cp-kv-cache-interleave-size prefix-caching-hash-algo mamba-cache-dtype mamba-ssm-cache-dtype
  mamba-block-size mamba-cache-mode kv-offloading-backend limit-mm-per-prompt media-io-kwargs mm-processor-kwargs mm-processor-cache-gb mm-processor-cache-type
  mm-shm-cache-max-object-size-mb mm-encoder-tp-mode mm-encoder-attn-backend video-pruning-rate lora-extra-vocab-size lora-dtype
  long-lora-scaling-factors default-mm-loras show-hidden-metrics-for-version kv-cache-metrics-sample max-num-partial-prefills
  max-long-partial-prefills long-prefill-token-threshold num-lookahead-slots scheduler-delay-factor preemption-mode num-scheduler-steps cuda-graph-sizes stream-interval
  kv-events-config compilation-config max-cudagraph-capture-size optimization-level additional-config attention-config attention-backend kernel-config
  profiler-config performance-mode moe-backend renderer-num-workers tokenizer-pool-size tokenizer-pool-type tokenizer-pool-extra-config
  gdn-prefill-backend kda-prefill-backend kda-decode-backend linear-backend sparse-indexer-topk-backend mamba-backend mamba-cache-philox-rounds mamba-ssu-algorithm replayssm-buffer-len
  anthropic-disabled-thinking-effort grpc-port cpu-distributed-timeout-seconds distributed-timeout-seconds dcp-comm-backend dp-sync-interval elastic-ep-max-dp-size
  fault-tolerance-config prefix-cache-retention-interval prefix-match-unit mm-encoder-attn-dtype mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-margin
  mm-encoder-fp8-scale-save-path mm-hasher-algorithm mm-ipc-gpu-memory-gb mm-processor-device mm-tensor-ipc video-pruning-method max-lora-cls-labels logging-config
  custom-histogram-buckets jit-monitor-mode per-request-spec-decode-metrics max-num-scheduled-tokens prefill-schedule-interval watermark ir-op-priority ec-manager-config engram-config
`;

const LISTS_WITHOUT_EFFECT = `
  allowed-media-domains ignore-patterns kv-cache-dtype-skip-layers cpu-offload-params collect-detailed-traces cudagraph-capture-sizes numa-bind-cpus numa-bind-nodes offload-params
  lora-target-modules sleep-preserve-parameter-names
`;

const ALIASES: Readonly<Record<string, readonly string[]>> = {
  'data-parallel-multi-port-external-lb': ['-dpm'],
  'diffusion-config': ['-dc'],
  'api-server-count': ['-asc'],
  'compilation-config': ['-cc'],
  'optimization-level': ['-O'],
  'attention-config': ['-ac'],
  'pipeline-parallel-size': ['-pp'],
  'data-parallel-size': ['-dp'],
  'data-parallel-rank': ['-dpn'],
  'data-parallel-start-rank': ['-dpr'],
  'data-parallel-size-local': ['-dpl'],
  'data-parallel-address': ['-dpa'],
  'data-parallel-rpc-port': ['-dpp'],
  'data-parallel-backend': ['-dpb'],
  'data-parallel-hybrid-lb': ['-dph'],
  'data-parallel-external-lb': ['-dpe'],
  'enable-expert-parallel': ['-ep'],
  'decode-context-parallel-size': ['-dcp'],
  'prefill-context-parallel-size': ['-pcp'],
  nnodes: ['-n'],
  'node-rank': ['-r'],
};

/** Flags that would change responses, capacity or security. Ignoring them silently would mislead. */
const REFUSED: readonly VllmFlag[] = [
  { name: 'tokenizer', takes: 'value', refusal: 'the tokenizer always comes from the model directory or GGUF file' },
  {
    name: 'tokenizer-mode',
    takes: 'value',
    refusal: 'the tokenizer comes from tokenizer.json',
    harmless: ['auto', 'hf', 'fast', 'slow'],
  },
  { name: 'skip-tokenizer-init', takes: 'nothing', refusal: 'a tokenizer is required' },
  { name: 'runner', takes: 'value', refusal: HAS_TASK, harmless: ['auto', 'generate'] },
  { name: 'convert', takes: 'value', refusal: HAS_TASK, harmless: ['auto', 'none'] },
  { name: 'pooler-config', takes: 'value', refusal: AS_POOLED },
  { name: 'override-pooler-config', takes: 'value', refusal: AS_POOLED },
  {
    name: 'load-format',
    takes: 'value',
    refusal: 'weights must be safetensors',
    harmless: ['auto', 'safetensors', 'hf', 'fastsafetensors', 'runai_streamer', 'mistral'],
  },
  { name: 'rope-scaling', takes: 'value', refusal: AS_TRAINED, harmless: ['{}'] },
  { name: 'rope-theta', takes: 'value', refusal: AS_TRAINED },
  { name: 'hf-overrides', takes: 'value', refusal: AS_TRAINED, harmless: ['{}'] },
  { name: 'override-attention-dtype', takes: 'value', refusal: AS_TRAINED },
  { name: 'override-neuron-config', takes: 'value', refusal: AS_TRAINED, harmless: ['{}'] },
  { name: 'disable-sliding-window', takes: 'nothing', refusal: AS_TRAINED },
  {
    name: 'logprobs-mode',
    takes: 'value',
    refusal: 'log-probabilities always come from the raw logits',
    harmless: ['raw_logprobs'],
  },
  { name: 'enable-prompt-embeds', takes: 'nothing', refusal: 'prompts are text or token ids' },
  {
    name: 'chat-template-content-format',
    takes: 'value',
    refusal: 'templates always receive content as text',
    harmless: ['auto', 'string'],
  },
  { name: 'num-gpu-blocks-override', takes: 'value', refusal: 'set the size of the KV cache with --kv-cache-memory' },
  { name: 'kv-offloading-size', takes: 'value', refusal: 'the KV cache is only in memory', harmless: ['0'] },
  { name: 'kv-transfer-config', takes: 'value', refusal: ONE_MACHINE },
  { name: 'ec-transfer-config', takes: 'value', refusal: ONE_MACHINE },
  { name: 'weight-transfer-config', takes: 'value', refusal: ONE_MACHINE },
  { name: 'pipeline-parallel-size', takes: 'value', refusal: ONE_MACHINE, harmless: ['1'] },
  { name: 'data-parallel-size', takes: 'value', refusal: ONE_MACHINE, harmless: ['1'] },
  { name: 'decode-context-parallel-size', takes: 'value', refusal: ONE_MACHINE, harmless: ['1'] },
  { name: 'prefill-context-parallel-size', takes: 'value', refusal: ONE_MACHINE, harmless: ['1'] },
  { name: 'nnodes', takes: 'value', refusal: ONE_MACHINE, harmless: ['1'] },
  { name: 'node-rank', takes: 'value', refusal: ONE_MACHINE, harmless: ['0'] },
  { name: 'headless', takes: 'nothing', refusal: ONE_MACHINE },
  { name: 'grpc', takes: 'nothing', refusal: 'only HTTP is supported' },
  { name: 'tokens-only', takes: 'nothing', refusal: 'text output cannot be turned off' },
  {
    name: 'scheduling-policy',
    takes: 'value',
    refusal: 'requests are scheduled in order of arrival',
    harmless: ['fcfs'],
  },
  { name: 'speculative-model', takes: 'value', refusal: SPECULATION },
  { name: 'num-speculative-tokens', takes: 'value', refusal: SPECULATION, harmless: ['0'] },
  { name: 'spec-method', takes: 'value', refusal: SPECULATION },
  { name: 'spec-model', takes: 'value', refusal: SPECULATION },
  { name: 'spec-tokens', takes: 'value', refusal: SPECULATION, harmless: ['0'] },
  { name: 'diffusion-config', takes: 'value', refusal: TEXT_ONLY },
  { name: 'model-class-overrides', takes: 'value', refusal: PYTHON, harmless: ['{}'] },
  { name: 'quantization-config', takes: 'value', refusal: 'quantized weights are not supported', harmless: ['{}'] },
  { name: 'watermark-config', takes: 'value', refusal: 'watermarks are not supported', harmless: ['{}'] },
  {
    name: 'aux-output-config',
    takes: 'value',
    refusal: 'this response field is not supported',
    harmless: ['{}'],
  },
  { name: 'return-sampling-mask', takes: 'nothing', refusal: 'this response field is not supported' },
  { name: 'enable-return-routed-experts', takes: 'nothing', refusal: 'this response field is not supported' },
  { name: 'enable-trace-replay', takes: 'nothing', refusal: 'requests cannot force the output tokens' },
  { name: 'enable-scale-out', takes: 'nothing', refusal: ONE_MACHINE },
  {
    name: 'tool-strict-level',
    takes: 'value',
    refusal: 'set "strict" in the tool of a request',
    harmless: ['auto'],
  },
  {
    name: 'max-num-active-seqs',
    takes: 'value',
    refusal: 'set the maximum number of running sequences with --max-num-seqs',
  },
  { name: 'device-ids', takes: 'value', refusal: 'list the GPUs with --device, for example --device cuda:0,1' },
  { name: 'enable-prompt-adapter', takes: 'nothing', refusal: 'prompt adapters are not supported' },
  { name: 'middleware', takes: 'value', refusal: PYTHON },
  { name: 'tool-parser-plugin', takes: 'value', refusal: PYTHON },
  { name: 'reasoning-parser-plugin', takes: 'value', refusal: PYTHON },
  { name: 'reasoning-config', takes: 'value', refusal: 'set --reasoning-parser instead' },
  { name: 'logits-processors', takes: 'values', refusal: PYTHON },
  { name: 'logits-processor-pattern', takes: 'value', refusal: PYTHON },
  { name: 'io-processor-plugin', takes: 'value', refusal: PYTHON },
  { name: 'scheduler-cls', takes: 'value', refusal: PYTHON },
  { name: 'worker-cls', takes: 'value', refusal: PYTHON, harmless: ['auto'] },
  { name: 'worker-extension-cls', takes: 'value', refusal: PYTHON },
  { name: 'tool-server', takes: 'value', refusal: 'the server does not call tools' },
  { name: 'ssl-ca-certs', takes: 'value', refusal: 'client certificates are not supported: use access keys' },
  {
    name: 'ssl-cert-reqs',
    takes: 'value',
    refusal: 'client certificates are not supported: use access keys',
    harmless: ['0'],
  },
  { name: 'ssl-ciphers', takes: 'value', refusal: 'the cipher suites cannot be changed' },
];

function named(names: string, takes: VllmFlag['takes']): VllmFlag[] {
  return names
    .trim()
    .split(/\s+/)
    .map((name) => ({ name, takes }));
}

export const VLLM_FLAGS: readonly VllmFlag[] = [
  ...named(SWITCHES_WITHOUT_EFFECT, 'nothing'),
  ...named(VALUES_WITHOUT_EFFECT, 'value'),
  ...named(LISTS_WITHOUT_EFFECT, 'values'),
  ...REFUSED,
].map((flag) => (Object.hasOwn(ALIASES, flag.name) ? { ...flag, aliases: ALIASES[flag.name] } : flag));
