import { UsageError } from '../base/usage-error';
import {
  parseBoolean,
  parseBytes,
  parseCacheDtype,
  parseChoice,
  parseCount,
  parseDtype,
  parseInteger,
  parseJsonObject,
  parseLoraModules,
  parseNames,
  parsePort,
  parseSeconds,
  parseShare,
  readTextFile,
} from './flag-values';
import { readGenerationConfig, toSamplingDefaults } from './generation-config';
import { SHARED_FLAGS } from './shared-flags';
import { parseSpeculation } from './speculative-config';
import { LOG_LEVELS } from '../base/log-levels';
import type { ServeOptions } from '../inference/serve-options';
import { CPU_ISAS } from './cpu-isas';
import { HUB_HELP, HUBS } from './model-argument';

export const FLAG_GROUPS = [
  'Model',
  'Engine',
  'Sampling and responses',
  'HTTP',
  'Access keys',
  'Limits',
  'Logging and metrics',
] as const;

/** A flag of a command: its names, its help text, and how its value changes the options. */
export interface Flag<Options = ServeOptions> {
  /** Without leading dashes. Its environment variable is `CAPSTAN_` and the name in capitals. */
  name: string;
  group: string;
  /** The placeholder of the value in the help. A switch has none; its value is `true` or `false`. */
  value?: string;
  help: string;
  /** Other names, kept for compatibility. */
  aliases?: readonly string[];
  /** Other names for `--no-NAME` of a switch. */
  negations?: readonly string[];
  /** Set for flags that take several values: separates them in an environment variable. `apply` is called for each. */
  separator?: ',' | ' ';
  /** Set if a value may be a JSON object. Then an environment variable that begins with `{` is one value. */
  acceptsJson?: boolean;
  /** Further environment variables. Its own one overrides them. */
  variables?: readonly string[];
  /** Hidden from the help. */
  isHidden?: boolean;
  /** @param source Where the value came from, for messages: `--port`, `CAPSTAN_PORT`, `config.yaml: port`. */
  apply: (options: Options, value: string, source: string) => void;
}

/** A flag of any command, without its effect on options. */
export type NamedFlag = Omit<Flag, 'apply'>;

type Definition = Omit<Flag, 'group' | 'apply'> & {
  apply?: Flag['apply'];
  set?: (options: ServeOptions, on: boolean, source: string) => void;
};

const ACCEPTED = (): void => {};
/** Names of tasks at vLLM. */
const TASK_NAMES: Readonly<Record<string, 'embed'>> = { embedding: 'embed', embeddings: 'embed' };
/** The longest timeout that Node's timers support. */
const NEVER_MS = 2 ** 31 - 1;

const MODEL: readonly Definition[] = [
  {
    name: 'model',
    value: '<model>',
    help: 'GGUF file, model directory, name on the hub, or demo; same as the argument (default: demo)',
    apply: (o, value) => {
      o.model = value;
    },
  },
  {
    name: 'hub',
    value: '<name>',
    help: HUB_HELP,
    apply: (o, value, source) => {
      o.engine.hub = parseChoice(value, source, HUBS);
    },
  },
  {
    name: 'served-model-name',
    value: '<names...>',
    separator: ',',
    help: 'names of the model in requests; responses show the first (default: the name on the hub, or of the model directory or GGUF file)',
    apply: (o, value) => {
      if (!o.servedNames.includes(value)) o.servedNames.push(value);
    },
  },
  {
    name: 'alias',
    value: '<names...>',
    separator: ',',
    help: 'further names in requests: NAME, or NAME=MODEL with several models',
    apply: (o, value) => {
      const [name, target] = value.split(/=(.*)/s, 2);
      o.aliases.push({ name, target });
    },
  },
  {
    name: 'models',
    value: '<json>',
    acceptsJson: true,
    help: 'several models in one server, as arguments or as a table of the --config file: their options by name, for example {"chat": {"model": "DIR", "pinned": true}}',
    apply: (o, value, source) => {
      o.modelTable = { value, source };
    },
  },
  {
    name: 'models-memory',
    value: '<bytes>',
    help: 'memory of all loaded models, weights and KV caches on the CPU, for example 24G; the model that was used longest ago is unloaded for another one (default: 80% of the memory that is free at the start)',
    apply: (o, value, source) => {
      o.modelLimits.memoryBytes = parseBytes(value, source);
    },
  },
  {
    name: 'models-max',
    value: '<number>',
    help: 'maximum number of loaded models, 0 for no limit (default: 0)',
    apply: (o, value, source) => {
      o.modelLimits.maxLoaded = parseCount(value, source, 0) || Infinity;
    },
  },
  {
    name: 'model-wait-timeout',
    value: '<seconds>',
    help: 'seconds that a request waits for its model to load; after that it gets 503 (default: 300)',
    apply: (o, value, source) => {
      o.modelLimits.waitTimeoutMs = parseSeconds(value, source, 0.1);
    },
  },
  {
    name: 'sleep-idle-seconds',
    value: '<seconds>',
    help: 'seconds without requests after which a model is unloaded, -1 for never; its next request loads it again (default: -1)',
    apply: (o, value, source) => {
      o.modelLimits.idleMs = value === '-1' ? Infinity : parseSeconds(value, source, 0.1);
    },
  },
  {
    name: 'task',
    value: '<task>',
    help: 'what the model does: generate, embed or score (default: auto, what its files say, else generate)',
    apply: (o, value, source) => {
      o.engine.task = parseChoice(TASK_NAMES[value] ?? value, source, ['auto', 'generate', 'embed', 'score']);
    },
  },
  {
    name: 'max-model-len',
    value: '<tokens>',
    help: "context length: prompt and completion tokens of one sequence; 8k is 8,000 and 8K is 8,192 (default: the model's, lowered to fit the KV cache)",
    apply: (o, value, source) => {
      o.engine.maxModelLen = value === 'auto' || value === '-1' ? undefined : parseCount(value, source);
    },
  },
  {
    name: 'dtype',
    value: '<type>',
    help: 'data type of the weights: auto, f32, f16 or bf16; on CUDA not f32 (default: auto, that of the checkpoint, except that CUDA converts f32 to bf16)',
    apply: (o, value, source) => {
      o.engine.dtype = parseDtype(value, source);
    },
  },
  {
    name: 'chat-template',
    value: '<file>',
    help: "chat template to use instead of the model's: a Jinja file, or the text of a template",
    apply: (o, value, source) => {
      o.engine.chatTemplate = /[{\n]/.test(value) ? value : readTextFile(value, source);
    },
  },
  {
    name: 'tool-call-parser',
    value: '<name>',
    help: 'format of tool calls: harmony, cohere_command, apertus, gemma4, seed_oss, qwen3_coder, glm45, hy3, granite, phi4_mini_json, hunyuan_a13b, lfm2, olmo3, hermes, mistral_args, mistral, deepseek_v3, deepseek_v31, pythonic or llama3_json (default: auto, detected from the chat template)',
    apply: (o, value) => {
      o.engine.toolCallFormat = value;
    },
  },
  {
    name: 'reasoning-parser',
    value: '<name>',
    help: 'format of reasoning: harmony, gemma4, cohere_command, cohere_command4, apertus, seed_oss, hy3, mistral, granite, think_response, hunyuan_a13b or think (<think>…</think>), or none to leave it in the text (default: auto, detected from the chat template)',
    apply: (o, value) => {
      o.engine.reasoningFormat = value;
    },
  },
  { name: 'enable-auto-tool-choice', help: 'accepted: tools are always available', isHidden: true, apply: ACCEPTED },
  { name: 'exclude-tools-when-tool-choice-none', help: 'accepted: always on', isHidden: true, apply: ACCEPTED },
  { name: 'enable-reasoning', help: 'accepted: see --reasoning-parser', isHidden: true, apply: ACCEPTED },
];

const ENGINE: readonly Definition[] = [
  {
    name: 'device',
    value: '<name>',
    help: 'where the model runs: cpu, cuda, cuda:0,1 (one rank on each listed GPU), or auto, the CPU in this version (default: auto)',
    apply: (o, value) => {
      o.engine.device = value as ServeOptions['engine']['device'];
    },
  },
  {
    name: 'tensor-parallel-size',
    value: '<ranks>',
    aliases: ['-tp'],
    help: 'number of ranks that each layer is split over: 1, 2, 4 or 8 (default: auto, the number of devices in --device, else 1)',
    apply: (o, value, source) => {
      o.engine.tensorParallelSize = value === 'auto' ? undefined : parseCount(value, source);
    },
  },
  {
    name: 'threads',
    value: '<number>',
    help: 'total number of CPU threads; no effect on CUDA (default: the number of cores that CPU affinity and the control group allow)',
    apply: (o, value, source) => {
      o.engine.threads = parseCount(value, source);
    },
  },
  {
    name: 'pin-threads',
    help: 'pin each CPU thread to a core (default: off)',
    set: (o, on) => {
      o.engine.pinThreads = on;
    },
  },
  {
    name: 'deterministic',
    help: 'make the tokens of a request independent, bit for bit, of other requests; slower on CUDA, always on for the CPU (default: off)',
    set: (o, on) => {
      o.engine.deterministic = on;
    },
  },
  {
    name: 'quantization',
    value: '<bits>',
    aliases: ['-q'],
    help: 'quantize the weights at load: none, int8 or int4, which keeps the embedding and the LM head in 8 bits (default: none)',
    apply: (o, value, source) => {
      o.engine.quantization =
        value === 'None' || value === 'auto' ? 'none' : parseChoice(value, source, ['none', 'int8', 'int4']);
    },
  },
  {
    name: 'isa',
    value: '<name>',
    help: 'CPU instruction set: auto, portable, avx2, avxvnni, avx512, avx512vnni, avx512bf16 or amx; on arm64 neon, neondot or neonbf16 (default: auto)',
    apply: (o, value, source) => {
      o.engine.isa = parseChoice(value, source, CPU_ISAS);
    },
  },
  {
    name: 'kv-cache-dtype',
    value: '<type>',
    help: 'data type of the KV cache: auto, f32, f16, bf16 or int8; on CUDA only auto, the type of the weights, or fp8 (default: auto, the type that the backend computes in)',
    apply: (o, value, source) => {
      o.engine.kvCacheDtype = parseCacheDtype(value, source);
    },
  },
  {
    name: 'kv-cache-memory',
    value: '<bytes>',
    aliases: ['--kv-cache-memory-bytes'],
    help: 'size of the KV cache, for example 512M or 2G (default: enough for --max-num-seqs full sequences, at most a quarter of the free memory; on CUDA what --gpu-memory-utilization leaves)',
    apply: (o, value, source) => {
      o.engine.kvCacheBytes = parseBytes(value, source);
    },
  },
  {
    name: 'grammar-cache-memory',
    value: '<bytes>',
    help: 'maximum memory of compiled grammars and their token masks, for example 64M; a grammar may use half of it (default: 64M)',
    apply: (o, value, source) => {
      o.engine.grammarCacheBytes = parseBytes(value, source);
    },
  },
  {
    name: 'gpu-memory-utilization',
    value: '<share>',
    aliases: ['--device-memory-utilization'],
    help: 'share of the memory of each GPU to use, above 0 and at most 1, weights and KV cache included (default: 0.9)',
    apply: (o, value, source) => {
      o.engine.gpuMemoryUtilization = parseShare(value, source);
    },
  },
  {
    name: 'block-size',
    value: '<tokens>',
    help: 'tokens per KV cache block (default: 16, on CUDA 64)',
    apply: (o, value, source) => {
      o.engine.blockSize = parseCount(value, source);
    },
  },
  {
    name: 'max-num-seqs',
    value: '<number>',
    help: 'maximum number of sequences that run at the same time (default: 64, on CUDA 256)',
    apply: (o, value, source) => {
      o.engine.maxNumSeqs = parseCount(value, source);
    },
  },
  {
    name: 'max-num-batched-tokens',
    value: '<tokens>',
    help: 'maximum number of tokens per step (default: 512, on CUDA 8192)',
    apply: (o, value, source) => {
      o.engine.maxNumBatchedTokens = parseCount(value, source);
    },
  },
  {
    name: 'max-step-ms',
    value: '<ms>',
    help: 'maximum milliseconds that new prompts add to the time between two tokens of a running stream, 0 for no limit (default: 100, on CUDA 50)',
    apply: (o, value, source) => {
      o.engine.maxStepMs = parseInteger(value, source, 0);
    },
  },
  {
    name: 'enable-prefix-caching',
    help: 'reuse the KV cache of equal prompt prefixes (default: on)',
    set: (o, on) => {
      o.engine.prefixCache = on;
    },
  },
  {
    name: 'prefix-cache-dir',
    value: '<dir>',
    help: 'keep the prefix cache in this folder too, so that it survives restarts; it can reveal prompts, so only the user of the server may have access to it (default: none; CPU only)',
    apply: (o, value) => {
      o.engine.prefixCacheDir = value;
    },
  },
  {
    name: 'prefix-cache-disk-size',
    value: '<bytes>',
    help: 'limit of what --prefix-cache-dir holds, for example 20G; the least recently used blocks are removed (default: 10G)',
    apply: (o, value, source) => {
      o.engine.prefixCacheDiskBytes = parseBytes(value, source);
    },
  },
  {
    name: 'speculative-config',
    value: '<json>',
    aliases: ['-sc'],
    help: 'speculative decoding, for example {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 5, "prompt_lookup_min": 2}, {"model": "DRAFT_MODEL", "num_speculative_tokens": 4} with a smaller model that has the same vocabulary, {"method": "grammar", "num_speculative_tokens": 7} with the text that structured output forces, or {"method": "mtp", "num_speculative_tokens": 2} with the MTP head of the model (default: none)',
    apply: (o, value, source) => {
      o.engine.speculative = parseSpeculation(value, source);
    },
  },
  {
    name: 'enable-lora',
    help: 'let requests choose LoRA adapters by their model name (default: off; on with --lora-modules)',
    set: (o, on) => {
      o.engine.enableLora = on;
    },
  },
  {
    name: 'lora-modules',
    value: '<adapters...>',
    separator: ' ',
    acceptsJson: true,
    help: 'adapters to load with the model: NAME=FOLDER, {"name": "NAME", "path": "FOLDER"}, or a JSON list of these objects',
    apply: (o, value, source) => {
      for (const [name, folder] of parseLoraModules(value, source)) {
        if (Object.hasOwn(o.engine.loraModules ?? {}, name))
          throw new UsageError(`${source}: expected each name once, got '${name}' twice`);
        o.engine.loraModules = { ...o.engine.loraModules, [name]: folder };
      }
    },
  },
  {
    name: 'lora-dir',
    value: '<dir>',
    help: 'directory that POST /v1/load_lora_adapter on --admin-port may load adapters from (default: none)',
    apply: (o, value) => {
      o.loraDir = value;
    },
  },
  {
    name: 'max-lora-rank',
    value: '<rank>',
    help: 'maximum rank of an adapter, up to 256 (default: 64)',
    apply: (o, value, source) => {
      o.engine.maxLoraRank = parseCount(value, source);
    },
  },
  {
    name: 'max-loras',
    value: '<number>',
    help: 'maximum number of loaded adapters; all of them may run in one step, and those of --lora-modules always fit (default: 64)',
    apply: (o, value, source) => {
      o.engine.maxLoras = Math.max(o.engine.maxLoras ?? 0, parseCount(value, source));
    },
  },
  {
    name: 'max-cpu-loras',
    value: '<number>',
    help: 'same as --max-loras; the larger value counts',
    isHidden: true,
    apply: (o, value, source) => {
      o.engine.maxLoras = Math.max(o.engine.maxLoras ?? 0, parseCount(value, source));
    },
  },
  {
    name: 'prefix-cache-scope',
    value: '<scope>',
    help: 'who shares cached prefixes: owner (keys of the same owner) or server (all keys) (default: owner)',
    apply: (o, value, source) => {
      o.prefixCacheScope = parseChoice(value, source, ['owner', 'server']);
    },
  },
];

const SAMPLING: readonly Definition[] = [
  {
    name: 'generation-config',
    value: '<source>',
    help: 'sampling defaults: auto (generation_config.json of the model), none, or the path of another generation_config.json or its directory (default: auto)',
    apply: (o, value, source) => {
      o.engine.generationConfig = value === 'auto' ? 'auto' : 'none';
      o.generationConfig = ['auto', 'none', 'vllm'].includes(value) ? {} : readGenerationConfig(value, source);
    },
  },
  {
    name: 'override-generation-config',
    value: '<json>',
    help: 'sampling defaults (temperature, top_p, top_k, repetition_penalty) that override --generation-config, for example {"temperature": 0.7}',
    apply: (o, value, source) => {
      o.samplingOverrides = toSamplingDefaults(parseJsonObject(value, source), source, 'refuse');
    },
  },
  {
    name: 'max-logprobs',
    value: '<number>',
    help: 'maximum number of log-probabilities per token that a request may ask for, -1 for the whole vocabulary (default: 20)',
    apply: (o, value, source) => {
      o.settings.maxLogprobs = parseInteger(value, source, -1);
    },
  },
  {
    name: 'response-role',
    value: '<role>',
    help: 'role of the messages in chat responses (default: assistant)',
    apply: (o, value) => {
      o.settings.responseRole = value;
    },
  },
  {
    name: 'default-chat-template-kwargs',
    value: '<json>',
    help: 'variables of the chat template that requests may override, for example {"enable_thinking": false}',
    apply: (o, value, source) => {
      o.settings.templateKwargs = parseJsonObject(value, source, '{"enable_thinking": false}');
    },
  },
  {
    name: 'trust-request-chat-template',
    help: 'accept chat templates in requests',
    set: (_o, on, source) => {
      if (on) throw new UsageError(`${source}: chat templates in requests are not supported`);
    },
    isHidden: true,
  },
  {
    name: 'return-tokens-as-token-ids',
    help: 'write tokens as token_id:N in log-probabilities',
    set: (o, on) => {
      o.settings.tokensAsTokenIds = on;
    },
  },
  {
    name: 'enable-force-include-usage',
    help: 'end every stream with a usage chunk, even if the request does not ask for it',
    set: (o, on) => {
      o.settings.forceIncludeUsage = on;
    },
  },
  {
    name: 'enable-prompt-tokens-details',
    help: 'accepted: usage includes cached tokens while the prefix cache is on',
    isHidden: true,
    apply: ACCEPTED,
  },
];

const HTTP: readonly Definition[] = [
  {
    name: 'host',
    value: '<address>',
    variables: ['PLATFORM_SERVING_HOST'],
    help: 'address to listen on (default: PLATFORM_SERVING_HOST, else 0.0.0.0 if PLATFORM_SERVING_PRODUCTION is set, else 127.0.0.1)',
    apply: (o, value) => {
      o.host = value.replace(/^\[(.*)\]$/, '$1');
    },
  },
  {
    name: 'port',
    value: '<number>',
    variables: ['PLATFORM_SERVING_PORT'],
    help: 'port to listen on, 0 for any free one (default: PLATFORM_SERVING_PORT, else 80 if PLATFORM_SERVING_PRODUCTION is set, else 8080)',
    apply: (o, value, source) => {
      o.port = parsePort(value, source);
    },
  },
  {
    name: 'uds',
    value: '<path>',
    help: "path of a Unix socket to listen on instead of a port; the server's user and group may connect",
    apply: (o, value) => {
      o.socketPath = value;
    },
  },
  {
    name: 'admin-host',
    value: '<address>',
    help: 'address for --admin-port to listen on (default: 127.0.0.1)',
    apply: (o, value) => {
      o.adminHost = value;
    },
  },
  {
    name: 'admin-port',
    value: '<number>',
    help: 'second port, which serves /health, /ping, /metrics, the routes that load and unload models and, with --lora-dir, adapters, without a key (default: none)',
    apply: (o, value, source) => {
      o.adminPort = parsePort(value, source);
    },
  },
  {
    name: 'ssl-keyfile',
    value: '<file>',
    help: 'private key for TLS (PEM)',
    apply: (o, value) => {
      o.tls.keyFile = value;
    },
  },
  {
    name: 'ssl-certfile',
    value: '<file>',
    help: 'certificate for TLS with its chain (PEM)',
    apply: (o, value) => {
      o.tls.certFile = value;
    },
  },
  {
    name: 'ssl-keyfile-password',
    value: '<text>',
    help: 'password of the private key; prefer CAPSTAN_SSL_KEYFILE_PASSWORD',
    apply: (o, value) => {
      o.tls.passphrase = value;
    },
  },
  {
    name: 'root-path',
    value: '<path>',
    help: 'path prefix of the server behind a reverse proxy, for example /llm; the proxy may remove it or keep it',
    apply: (o, value, source) => {
      o.rootPath = parseRootPath(value, source);
    },
  },
  {
    name: 'allowed-origins',
    value: '<origins...>',
    separator: ',',
    help: 'origins of web pages that may call the server from a browser, or * for all; without access control, only listed origins reach stored objects (default: *)',
    apply: (o, value, source) => addTo(o.cors, 'origins', value, source),
  },
  {
    name: 'allowed-methods',
    value: '<methods...>',
    separator: ',',
    help: 'methods allowed in cross-origin requests, or * for all (default: *)',
    apply: (o, value, source) => addTo(o.cors, 'methods', value, source),
  },
  {
    name: 'allowed-headers',
    value: '<headers...>',
    separator: ',',
    help: 'headers allowed in cross-origin requests, or * for all (default: *)',
    apply: (o, value, source) => addTo(o.cors, 'headers', value, source),
  },
  {
    name: 'allow-credentials',
    help: 'allow credentials, such as cookies, in cross-origin requests (default: off)',
    set: (o, on) => {
      o.cors.credentials = on;
    },
  },
  {
    name: 'http-transport',
    value: '<name>',
    help: 'HTTP implementation: node, uws (uWebSockets.js) or auto: uws if release 20.51 or newer loads (default: auto)',
    apply: (o, value, source) => {
      o.transport = parseChoice(value, source, ['auto', 'uws', 'node']);
    },
  },
  {
    name: 'keep-alive-timeout',
    value: '<seconds>',
    aliases: ['--timeout-keep-alive'],
    help: 'seconds that an idle connection stays open for a next request; always 10 with uws (default: 75)',
    apply: (o, value, source) => {
      o.keepAliveTimeoutMs = parseSeconds(value, source, 1);
    },
  },
  {
    name: 'sse-ping-interval-s',
    value: '<seconds>',
    aliases: ['--sse-keep-alive-interval'],
    help: 'seconds without data after which a stream sends a comment line, 0 for never (default: 15)',
    apply: (o, value, source) => {
      o.ssePingIntervalMs = Number(value) === 0 ? NEVER_MS : parseSeconds(value, source, 0.1);
    },
  },
  {
    name: 'shutdown-timeout',
    value: '<seconds>',
    help: 'seconds that open requests may continue after Ctrl-C or SIGTERM (default: 30)',
    apply: (o, value, source) => {
      o.shutdownTimeoutMs = parseSeconds(value, source, 0);
    },
  },
  {
    name: 'health-stall-timeout-s',
    value: '<seconds>',
    help: '/health returns 503 if the engine has work but makes no step for this many seconds (default: 30)',
    apply: (o, value, source) => {
      o.healthStallTimeoutMs = parseSeconds(value, source, 1);
    },
  },
  {
    name: 'enable-request-id-headers',
    help: 'accepted: every response has X-Request-Id',
    isHidden: true,
    apply: ACCEPTED,
  },
  {
    name: 'disable-fastapi-docs',
    help: 'do not serve /openapi.json',
    isHidden: true,
    set: (o, on) => {
      o.hasOpenApi = !on;
    },
  },
];

const ACCESS: readonly Definition[] = [
  {
    name: 'access-control',
    help: 'require a valid access key for every request (default: off; on with --api-key or --keys-db); see capstan keys --help',
    set: (o, on) => {
      o.accessControl = on;
    },
  },
  {
    name: 'api-key',
    value: '<keys...>',
    separator: ' ',
    variables: ['VLLM_API_KEY'],
    help: 'fixed keys, which are not in the key database; prefer CAPSTAN_API_KEY',
    apply: (o, value) => {
      o.apiKeys.push(value);
    },
  },
  {
    name: 'deployment',
    value: '<name>',
    help: 'name of this deployment, for deployment-level keys (default: default)',
    apply: (o, value) => {
      o.deployment = value;
    },
  },
  {
    name: 'owner',
    value: '<owner>',
    help: 'owner of this deployment: user:NAME or org:NAME (default: user:local)',
    apply: (o, value) => {
      o.owner = value;
    },
  },
  {
    name: 'keys-db',
    value: '<file>',
    help: 'key database: a file or a postgres:// URL',
    apply: (o, value) => {
      o.keysDb = value;
    },
  },
  {
    name: 'data-dir',
    value: '<dir>',
    help: "directory of files and batches (/v1/files, /v1/batches), and of the key database capstan.db (default: no files and batches; the key database is in capstan in the user's data directory, unless DATABASE_URL is set)",
    apply: (o, value) => {
      o.dataDir = value;
    },
  },
  {
    ...SHARED_FLAGS.maxBatches,
    help: 'maximum number of batches that have not ended; one more is refused (default: 100)',
  },
  {
    ...SHARED_FLAGS.maxBatchStorage,
    help: 'maximum size of all files of /v1/files together, results included, for example 2G (default: 10G)',
  },
  {
    ...SHARED_FLAGS.batchConcurrency,
    help: 'maximum number of batch lines that run at the same time; they use only slots that other requests leave idle (default: 16 on the CPU, --max-num-seqs on CUDA)',
  },
  {
    name: 'on-revoke',
    value: '<what>',
    help: 'what happens to running requests of a revoked key: cut ends them within a second, finish lets them complete (default: cut)',
    apply: (o, value, source) => {
      o.onRevoke = parseChoice(value, source, ['cut', 'finish']);
    },
  },
  {
    name: 'trusted-proxy',
    value: '<networks...>',
    separator: ',',
    help: 'networks of reverse proxies, for example 10.0.0.0/8, whose X-Forwarded-For is trusted (default: none)',
    apply: (o, value) => {
      o.trustedProxies.push(value);
    },
  },
  {
    name: 'replica-secret',
    value: '<text>',
    isHidden: true,
    help: 'secret that the gateway of the deployment service sends; set it as CAPSTAN_REPLICA_SECRET',
    apply: (o, value) => {
      o.replicaSecret = value;
    },
  },
  {
    name: 'open-path',
    value: '<paths...>',
    separator: ',',
    help: 'paths that need no key, for example /health (default: none)',
    apply: (o, value, source) => {
      o.openPaths.push(parsePath(value, source));
    },
  },
];

const LIMITS: readonly Definition[] = [
  {
    name: 'max-num-queued-reqs',
    value: '<number>',
    help: 'maximum number of sequences that wait while --max-num-seqs others are open; further requests get 429 (default: 1024)',
    apply: (o, value, source) => {
      o.engine.maxQueuedRequests = parseCount(value, source, 0);
    },
  },
  {
    name: 'max-num-queued-tokens',
    value: '<tokens>',
    help: 'maximum number of waiting prompt tokens; further requests get 429 (default: no limit)',
    apply: (o, value, source) => {
      o.engine.maxQueuedTokens = parseCount(value, source);
    },
  },
  {
    name: 'max-request-bytes',
    value: '<bytes>',
    help: 'maximum size of a request body, for example 32M (default: 32M)',
    apply: (o, value, source) => {
      o.maxRequestBytes = parseBytes(value, source);
    },
  },
  {
    ...SHARED_FLAGS.maxStoredResponseBytes,
    help: 'maximum size of all stored responses and chat completions together, in DATA_DIR/responses or, without a data directory, in memory; above it the owner with the most bytes loses the least recently used; 0 stores none (default: 256M)',
  },
  {
    ...SHARED_FLAGS.storedResponseDays,
    help: 'days that a response stays stored after its last use (default: 30)',
  },
  {
    name: 'request-body-timeout-s',
    value: '<seconds>',
    help: 'seconds within which a request body must arrive (default: 60)',
    apply: (o, value, source) => {
      o.bodyTimeoutMs = parseSeconds(value, source, 1);
    },
  },
];

const LOGGING: readonly Definition[] = [
  {
    name: 'log-level',
    value: '<level>',
    help: 'least severe level to log: debug, info, warn, error or silent (default: info)',
    apply: (o, value, source) => {
      o.logLevel = parseChoice(value, source, LOG_LEVELS);
    },
  },
  {
    name: 'uvicorn-log-level',
    value: '<level>',
    help: 'same as --log-level',
    isHidden: true,
    apply: (o, value, source) => {
      o.logLevel =
        UVICORN_LEVELS[parseChoice(value, source, ['critical', 'error', 'warning', 'info', 'debug', 'trace'])];
    },
  },
  {
    name: 'enable-log-requests',
    help: 'log each request at level info: method, path, status, time, key ID and tokens, never contents (default: on; off: at level debug)',
    negations: ['--disable-log-requests', '--disable-access-log', '--disable-uvicorn-access-log'],
    aliases: ['--no-disable-uvicorn-access-log'],
    set: (o, on) => {
      o.logsRequests = on;
    },
  },
  {
    name: 'disable-access-log-for-endpoints',
    value: '<paths...>',
    separator: ',',
    help: 'paths of requests that are not logged, separated by commas (default: none)',
    apply: (o, value) => {
      o.unloggedPaths.push(...value.split(',').map((path) => path.trim()));
    },
  },
  {
    name: 'metrics-compat',
    value: '<name>',
    help: "none, or vllm to add vLLM's metric names to /metrics (default: none)",
    apply: (o, value, source) => {
      o.metricsCompat = parseChoice(value, source, ['vllm', 'none']);
    },
  },
  {
    ...SHARED_FLAGS.otlpTracesEndpoint,
    help: 'collector that receives a span of each inference request by OTLP over HTTP, for example http://127.0.0.1:4318 (default: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT, else none)',
  },
];

const UVICORN_LEVELS = {
  critical: 'error',
  error: 'error',
  warning: 'warn',
  info: 'info',
  debug: 'debug',
  trace: 'debug',
} as const;

const DEFINITIONS: Readonly<Record<(typeof FLAG_GROUPS)[number], readonly Definition[]>> = {
  Model: MODEL,
  Engine: ENGINE,
  'Sampling and responses': SAMPLING,
  HTTP,
  'Access keys': ACCESS,
  Limits: LIMITS,
  'Logging and metrics': LOGGING,
};

/** Every flag of `capstan serve`, in the order of the help. */
export const SERVE_FLAGS: readonly Flag[] = FLAG_GROUPS.flatMap((group) =>
  DEFINITIONS[group].map(({ set, apply, ...flag }) => ({
    ...flag,
    group,
    apply: apply ?? ((options, value, source) => set?.(options, parseBoolean(value, source), source)),
  })),
);

/** Adds to a list of the CORS options. The first value replaces the default. */
function addTo(
  cors: ServeOptions['cors'],
  list: 'origins' | 'methods' | 'headers',
  value: string,
  source: string,
): void {
  cors[list] = [...(cors.overridden.has(list) ? cors[list] : []), ...parseNames(value, source)];
  cors.overridden.add(list);
}

function parsePath(value: string, source: string): string {
  if (!/^\/[^?#\s]*$/.test(value)) throw new UsageError(`${source}: expected a path such as /health, got '${value}'`);
  return value;
}

function parseRootPath(value: string, source: string): string {
  return value === '' || value === '/' ? '' : parsePath(value, source).replace(/\/+$/, '');
}
