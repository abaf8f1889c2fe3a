import {
  parseBoolean,
  parseBytes,
  parseCacheDtype,
  parseChoice,
  parseCount,
  parseDtype,
  parseInteger,
  parseJsonObject,
  parseNames,
  parsePort,
  parseSeconds,
  parseShare,
  readTextFile,
  UsageError,
} from './flag-values';
import { readGenerationConfig, toSamplingDefaults } from './generation-config';
import { LOG_LEVELS } from './log-levels';
import type { ServeOptions } from './serve-options';

export const FLAG_GROUPS = [
  'Model',
  'Engine',
  'Sampling and answers',
  'HTTP',
  'Access keys',
  'Limits',
  'Logging and metrics',
] as const;

/** One flag: its names, what the help says, and what it does to the options. */
export interface Flag<Options = ServeOptions> {
  /** Without dashes in front; its variable is `CAPSTAN_` and the name in capitals. */
  name: string;
  group: string;
  /** What the value is called in the help; absent: a switch, whose value is `true` or `false`. */
  value?: string;
  help: string;
  /** Other names, which stay for ever; of a switch `--no-` and the name besides. */
  aliases?: readonly string[];
  /** Switches off: other names that mean `--no-` and the name. */
  negations?: readonly string[];
  /** Repeated, or followed by several values; `apply` is called for each. In a variable they are parted by this. */
  separator?: ',' | ' ';
  /** Variables besides its own. */
  variables?: readonly string[];
  /** Not listed in the help. */
  isHidden?: boolean;
  /** @param source What gave the value, for messages: `--port`, `CAPSTAN_PORT`, `config.yaml: port`. */
  apply: (options: Options, value: string, source: string) => void;
}

/** A flag of any command, for what needs no options of it. */
export type NamedFlag = Omit<Flag, 'apply'>;

type Definition = Omit<Flag, 'group' | 'apply'> & {
  apply?: Flag['apply'];
  set?: (options: ServeOptions, on: boolean, source: string) => void;
};

const ACCEPTED = (): void => {};
/** The longest that a timer takes. */
const NEVER_MS = 2 ** 31 - 1;

const MODEL: readonly Definition[] = [
  {
    name: 'model',
    value: '<dir>',
    help: 'the model, instead of the argument',
    apply: (o, value) => {
      o.model = value;
    },
  },
  {
    name: 'served-model-name',
    value: '<names...>',
    separator: ',',
    help: "names that clients may send; the first is answered (default: the directory's name)",
    apply: (o, value) => {
      if (!o.servedNames.includes(value)) o.servedNames.push(value);
    },
  },
  {
    name: 'max-model-len',
    value: '<tokens>',
    help: "context length, also as 8k (8,000) or 8K (8,192) (default: the model's, lowered to fit the KV cache)",
    apply: (o, value, source) => {
      o.engine.maxModelLen = value === 'auto' || value === '-1' ? undefined : parseCount(value, source);
    },
  },
  {
    name: 'dtype',
    value: '<type>',
    help: "number type of the weights: auto, f32, f16 or bf16, on CUDA not f32 (default: auto, the checkpoint's, on CUDA bf16 for f32)",
    apply: (o, value, source) => {
      o.engine.dtype = parseDtype(value, source);
    },
  },
  {
    name: 'chat-template',
    value: '<file>',
    help: "a Jinja file, or the template itself, in place of the model's",
    apply: (o, value, source) => {
      o.engine.chatTemplate = /[{\n]/.test(value) ? value : readTextFile(value, source);
    },
  },
  {
    name: 'tool-call-parser',
    value: '<name>',
    help: 'how the model writes tool calls: hermes, llama3_json, pythonic, mistral, deepseek_v3 and others (default: auto, by the template)',
    apply: (o, value) => {
      o.engine.toolCallFormat = value;
    },
  },
  {
    name: 'reasoning-parser',
    value: '<name>',
    help: 'how the model marks its thoughts: qwen3, deepseek_r1, or none to leave them in the text (default: auto, by the template)',
    apply: (o, value) => {
      o.engine.reasoningFormat = value;
    },
  },
  { name: 'enable-auto-tool-choice', help: 'accepted: tools are always served', isHidden: true, apply: ACCEPTED },
  { name: 'exclude-tools-when-tool-choice-none', help: 'accepted: always so', isHidden: true, apply: ACCEPTED },
  { name: 'enable-reasoning', help: 'accepted: see --reasoning-parser', isHidden: true, apply: ACCEPTED },
];

const ENGINE: readonly Definition[] = [
  {
    name: 'device',
    value: '<name>',
    help: 'cpu, cuda, cuda:0,1 (a rank on each), or auto, the CPU in this version (default: auto)',
    apply: (o, value) => {
      o.engine.device = value as ServeOptions['engine']['device'];
    },
  },
  {
    name: 'tensor-parallel-size',
    value: '<ranks>',
    aliases: ['-tp'],
    help: 'ranks that each layer is split over (default: auto, as many as --device lists, else 1)',
    apply: (o, value, source) => {
      o.engine.tensorParallelSize = value === 'auto' ? undefined : parseCount(value, source);
    },
  },
  {
    name: 'threads',
    value: '<number>',
    help: 'threads of the CPU in total, which CUDA does not compute on (default: the cores that this process may use, control groups included)',
    apply: (o, value, source) => {
      o.engine.threads = parseCount(value, source);
    },
  },
  {
    name: 'pin-threads',
    help: 'tie each thread of the CPU to a core',
    set: (o, on) => {
      o.engine.pinThreads = on;
    },
  },
  {
    name: 'deterministic',
    help: 'on CUDA, give a request the same tokens to the bit whatever runs beside it, at some cost in speed (default: off; the CPU always does)',
    set: (o, on) => {
      o.engine.deterministic = on;
    },
  },
  {
    name: 'isa',
    value: '<name>',
    help: 'instruction set of the CPU: auto, portable, avx2, avx512 or avx512bf16 (default: auto)',
    apply: (o, value, source) => {
      o.engine.isa = parseChoice(value, source, ['auto', 'portable', 'avx2', 'avx512', 'avx512bf16']);
    },
  },
  {
    name: 'kv-cache-dtype',
    value: '<type>',
    help: "number type of the KV cache: auto, f32, f16 or bf16, on CUDA the weights' or fp8 (default: auto, the type computed in)",
    apply: (o, value, source) => {
      o.engine.kvCacheDtype = parseCacheDtype(value, source);
    },
  },
  {
    name: 'kv-cache-memory',
    value: '<bytes>',
    aliases: ['--kv-cache-memory-bytes'],
    help: 'size of the KV cache, also as 512M or 2G (default: what the sequences need, at most a quarter of the free memory; on CUDA see --gpu-memory-utilization)',
    apply: (o, value, source) => {
      o.engine.kvCacheBytes = parseBytes(value, source);
    },
  },
  {
    name: 'gpu-memory-utilization',
    value: '<share>',
    aliases: ['--device-memory-utilization'],
    help: "share of a GPU's memory to use, weights included; what they leave is the KV cache (default: 0.9)",
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
    help: 'most sequences running at once (default: 64, on CUDA 256)',
    apply: (o, value, source) => {
      o.engine.maxNumSeqs = parseCount(value, source);
    },
  },
  {
    name: 'max-num-batched-tokens',
    value: '<tokens>',
    help: 'most tokens per step (default: 512, on CUDA 8192)',
    apply: (o, value, source) => {
      o.engine.maxNumBatchedTokens = parseCount(value, source);
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
    name: 'prefix-cache-scope',
    value: '<scope>',
    help: 'owner: callers share cached prefixes with keys of the same owner alone; server: with all (default: owner)',
    apply: (o, value, source) => {
      o.prefixCacheScope = parseChoice(value, source, ['owner', 'server']);
    },
  },
];

const SAMPLING: readonly Definition[] = [
  {
    name: 'generation-config',
    value: '<source>',
    help: "sampling defaults: auto (the model's generation_config.json), none, or a file or directory with one (default: auto)",
    apply: (o, value, source) => {
      o.engine.generationConfig = value === 'auto' ? 'auto' : 'none';
      o.generationConfig = ['auto', 'none', 'vllm'].includes(value) ? {} : readGenerationConfig(value, source);
    },
  },
  {
    name: 'override-generation-config',
    value: '<json>',
    help: 'sampling defaults that go before those, as {"temperature": 0.7, "top_p": 0.9}',
    apply: (o, value, source) => {
      o.samplingOverrides = toSamplingDefaults(parseJsonObject(value, source), source, 'refuse');
    },
  },
  {
    name: 'max-logprobs',
    value: '<number>',
    help: 'most log-probabilities per token that a request may ask for, -1 for the whole vocabulary (default: 20)',
    apply: (o, value, source) => {
      o.settings.maxLogprobs = parseInteger(value, source, -1);
    },
  },
  {
    name: 'response-role',
    value: '<role>',
    help: 'the role of answers (default: assistant)',
    apply: (o, value) => {
      o.settings.responseRole = value;
    },
  },
  {
    name: 'default-chat-template-kwargs',
    value: '<json>',
    help: 'what the chat template is given unless the request says otherwise, as {"enable_thinking": false}',
    apply: (o, value, source) => {
      o.settings.templateKwargs = parseJsonObject(value, source, '{"enable_thinking": false}');
    },
  },
  {
    name: 'trust-request-chat-template',
    help: 'let requests bring a chat template of their own',
    set: (_o, on, source) => {
      if (on) throw new UsageError(`${source}: a request's own chat template is not supported`);
    },
    isHidden: true,
  },
  {
    name: 'return-tokens-as-token-ids',
    help: 'name tokens as token_id:N in log-probabilities',
    set: (o, on) => {
      o.settings.tokensAsTokenIds = on;
    },
  },
  {
    name: 'enable-force-include-usage',
    help: 'end every stream with a usage chunk, asked for or not',
    set: (o, on) => {
      o.settings.forceIncludeUsage = on;
    },
  },
  {
    name: 'enable-prompt-tokens-details',
    help: 'accepted: usage says cached tokens while the prefix cache is on',
    isHidden: true,
    apply: ACCEPTED,
  },
];

const HTTP: readonly Definition[] = [
  {
    name: 'host',
    value: '<address>',
    variables: ['PLATFORM_SERVING_HOST'],
    help: 'address to listen on (default: PLATFORM_SERVING_HOST, else 127.0.0.1; 0.0.0.0 when PLATFORM_SERVING_PRODUCTION is set)',
    apply: (o, value) => {
      o.host = value.replace(/^\[(.*)\]$/, '$1');
    },
  },
  {
    name: 'port',
    value: '<number>',
    variables: ['PLATFORM_SERVING_PORT'],
    help: 'port to listen on, 0 for any (default: PLATFORM_SERVING_PORT, else 8080; 80 when PLATFORM_SERVING_PRODUCTION is set)',
    apply: (o, value, source) => {
      o.port = parsePort(value, source);
    },
  },
  {
    name: 'uds',
    value: '<path>',
    help: 'listen on a Unix socket instead, open to its user and group',
    apply: (o, value) => {
      o.socketPath = value;
    },
  },
  {
    name: 'admin-host',
    value: '<address>',
    help: 'address of the admin listener (default: 127.0.0.1)',
    apply: (o, value) => {
      o.adminHost = value;
    },
  },
  {
    name: 'admin-port',
    value: '<number>',
    help: 'a second port, for probes and scrapers: /health, /ping and /metrics without a key (default: none)',
    apply: (o, value, source) => {
      o.adminPort = parsePort(value, source);
    },
  },
  {
    name: 'ssl-keyfile',
    value: '<file>',
    help: 'serve TLS with this private key (PEM)',
    apply: (o, value) => {
      o.tls.keyFile = value;
    },
  },
  {
    name: 'ssl-certfile',
    value: '<file>',
    help: 'and this certificate with its chain (PEM)',
    apply: (o, value) => {
      o.tls.certFile = value;
    },
  },
  {
    name: 'ssl-keyfile-password',
    value: '<text>',
    help: 'what the key is encrypted with; better as CAPSTAN_SSL_KEYFILE_PASSWORD',
    apply: (o, value) => {
      o.tls.passphrase = value;
    },
  },
  {
    name: 'root-path',
    value: '<path>',
    help: 'what a proxy puts before our paths, whether it strips it or not',
    apply: (o, value, source) => {
      o.rootPath = parseRootPath(value, source);
    },
  },
  {
    name: 'allowed-origins',
    value: '<origins...>',
    separator: ',',
    help: 'origins whose pages may call, or * (default: *)',
    apply: (o, value, source) => addTo(o.cors, 'origins', value, source),
  },
  {
    name: 'allowed-methods',
    value: '<methods...>',
    separator: ',',
    help: 'methods that they may use (default: *)',
    apply: (o, value, source) => addTo(o.cors, 'methods', value, source),
  },
  {
    name: 'allowed-headers',
    value: '<headers...>',
    separator: ',',
    help: 'headers that they may send (default: *)',
    apply: (o, value, source) => addTo(o.cors, 'headers', value, source),
  },
  {
    name: 'allow-credentials',
    help: 'let them send cookies',
    set: (o, on) => {
      o.cors.credentials = on;
    },
  },
  {
    name: 'http-transport',
    value: '<name>',
    help: 'uws, node or auto (default: auto, uws where it loads)',
    apply: (o, value, source) => {
      o.transport = parseChoice(value, source, ['auto', 'uws', 'node']);
    },
  },
  {
    name: 'sse-ping-interval-s',
    value: '<seconds>',
    aliases: ['--sse-keep-alive-interval'],
    help: 'a comment after this much silence in a stream, 0 for none (default: 15)',
    apply: (o, value, source) => {
      o.ssePingIntervalMs = Number(value) === 0 ? NEVER_MS : parseSeconds(value, source, 0.1);
    },
  },
  {
    name: 'shutdown-timeout',
    value: '<seconds>',
    help: 'how long open requests may go on after Ctrl-C or SIGTERM (default: 30)',
    apply: (o, value, source) => {
      o.shutdownTimeoutMs = parseSeconds(value, source, 0);
    },
  },
  {
    name: 'health-stall-timeout-s',
    value: '<seconds>',
    help: 'with work and no step for this long, /health answers 503 (default: 30)',
    apply: (o, value, source) => {
      o.healthStallTimeoutMs = parseSeconds(value, source, 1);
    },
  },
  {
    name: 'enable-request-id-headers',
    help: 'accepted: every answer has X-Request-Id',
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
    help: 'let in requests with a valid access key alone (default: off, on with --api-key or --keys-db); see capstan keys --help',
    set: (o, on) => {
      o.accessControl = on;
    },
  },
  {
    name: 'api-key',
    value: '<keys...>',
    separator: ' ',
    variables: ['VLLM_API_KEY'],
    help: 'fixed keys, in memory alone; better as CAPSTAN_API_KEY',
    apply: (o, value) => {
      o.apiKeys.push(value);
    },
  },
  {
    name: 'deployment',
    value: '<name>',
    help: 'what deployment-level keys are bound to (default: default)',
    apply: (o, value) => {
      o.deployment = value;
    },
  },
  {
    name: 'owner',
    value: '<owner>',
    help: 'whose user-level keys pass: user:NAME or org:NAME (default: user:local)',
    apply: (o, value) => {
      o.owner = value;
    },
  },
  {
    name: 'keys-db',
    value: '<file>',
    help: 'the key database: a file or a postgres:// address',
    apply: (o, value) => {
      o.keysDb = value;
    },
  },
  {
    name: 'data-dir',
    value: '<dir>',
    help: "the directory that holds it, as capstan.db (default: DATABASE_URL, else capstan in the user's data directory)",
    apply: (o, value) => {
      o.dataDir = value;
    },
  },
  {
    name: 'on-revoke',
    value: '<what>',
    help: 'what becomes of running requests when their key is revoked: cut within a second, with an error event in streams, or finish (default: cut)',
    apply: (o, value, source) => {
      o.onRevoke = parseChoice(value, source, ['cut', 'finish']);
    },
  },
  {
    name: 'trusted-proxy',
    value: '<networks...>',
    separator: ',',
    help: 'networks of proxies, as 10.0.0.0/8, whose X-Forwarded-For names the caller (default: none)',
    apply: (o, value) => {
      o.trustedProxies.push(value);
    },
  },
  {
    name: 'replica-secret',
    value: '<text>',
    isHidden: true,
    help: 'what the gateway of the deployment service sends with every request; as CAPSTAN_REPLICA_SECRET',
    apply: (o, value) => {
      o.replicaSecret = value;
    },
  },
  {
    name: 'open-path',
    value: '<paths...>',
    separator: ',',
    help: 'paths that need no key, such as /health',
    apply: (o, value, source) => {
      o.openPaths.push(parsePath(value, source));
    },
  },
];

const LIMITS: readonly Definition[] = [
  {
    name: 'max-num-queued-reqs',
    value: '<number>',
    help: 'most sequences waiting; beyond it requests are answered 429 (default: 1024)',
    apply: (o, value, source) => {
      o.engine.maxQueuedRequests = parseCount(value, source);
    },
  },
  {
    name: 'max-num-queued-tokens',
    value: '<tokens>',
    help: 'most prompt tokens waiting; beyond it requests are answered 429 (default: no limit)',
    apply: (o, value, source) => {
      o.engine.maxQueuedTokens = parseCount(value, source);
    },
  },
  {
    name: 'max-request-bytes',
    value: '<bytes>',
    help: 'largest request body, also as 32M (default: 32M)',
    apply: (o, value, source) => {
      o.maxRequestBytes = parseBytes(value, source);
    },
  },
  {
    name: 'request-body-timeout-s',
    value: '<seconds>',
    help: 'a body has to arrive within this time (default: 60)',
    apply: (o, value, source) => {
      o.bodyTimeoutMs = parseSeconds(value, source, 1);
    },
  },
];

const LOGGING: readonly Definition[] = [
  {
    name: 'log-level',
    value: '<level>',
    help: 'debug, info, warn, error or silent (default: info)',
    apply: (o, value, source) => {
      o.logLevel = parseChoice(value, source, LOG_LEVELS);
    },
  },
  {
    name: 'uvicorn-log-level',
    value: '<level>',
    help: 'the same',
    isHidden: true,
    apply: (o, value, source) => {
      o.logLevel =
        UVICORN_LEVELS[parseChoice(value, source, ['critical', 'error', 'warning', 'info', 'debug', 'trace'])];
    },
  },
  {
    name: 'enable-log-requests',
    help: 'a line for each request: method, route, status, time, key id, tokens; never contents (default: on; off means at level debug)',
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
    help: 'paths without such a line, parted by commas',
    apply: (o, value) => {
      o.unloggedPaths.push(...value.split(',').map((path) => path.trim()));
    },
  },
  {
    name: 'metrics-compat',
    value: '<name>',
    help: "vllm: /metrics has vLLM's names besides (default: none)",
    apply: (o, value, source) => {
      o.metricsCompat = parseChoice(value, source, ['vllm', 'none']);
    },
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
  'Sampling and answers': SAMPLING,
  HTTP,
  'Access keys': ACCESS,
  Limits: LIMITS,
  'Logging and metrics': LOGGING,
};

/** Every flag of ours, in the help's order. */
export const SERVE_FLAGS: readonly Flag[] = FLAG_GROUPS.flatMap((group) =>
  DEFINITIONS[group].map(({ set, apply, ...flag }) => ({
    ...flag,
    group,
    apply: apply ?? ((options, value, source) => set?.(options, parseBoolean(value, source), source)),
  })),
);

/** A list that starts from its default: the first value given takes its place. */
function addTo(
  cors: ServeOptions['cors'],
  list: 'origins' | 'methods' | 'headers',
  value: string,
  source: string,
): void {
  cors[list] = [...(cors.given.has(list) ? cors[list] : []), ...parseNames(value, source)];
  cors.given.add(list);
}

function parsePath(value: string, source: string): string {
  if (!/^\/[^?#\s]*$/.test(value)) throw new UsageError(`${source}: expected a path such as /health, got '${value}'`);
  return value;
}

function parseRootPath(value: string, source: string): string {
  return value === '' || value === '/' ? '' : parsePath(value, source).replace(/\/+$/, '');
}
