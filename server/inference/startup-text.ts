import type { EngineInfo, ModelTask } from '../../ts';
import { packageVersion } from '../base/version';

/** Where a server listens and what clients need. */
export interface Address {
  host: string;
  port: number;
  /** Replaces host and port. */
  socketPath?: string | undefined;
  isTls?: boolean;
  needsKey?: boolean;
  /** A replica is reachable only through its gateway, so there is no request to try. */
  isReplica?: boolean;
  admin?: { host: string; port: number };
  transport: string;
  /** The name that clients send. */
  model: string;
}

/** A request to try with a model of each task. */
const EXAMPLES: Readonly<Record<ModelTask, { path: string; fields: object }>> = {
  generate: { path: '/v1/chat/completions', fields: { messages: [{ role: 'user', content: 'What is Capstan?' }] } },
  embed: { path: '/v1/embeddings', fields: { input: 'What is Capstan?' } },
  score: {
    path: '/v1/rerank',
    fields: { query: 'What is Capstan?', documents: ['An inference runtime', 'A drum on a ship'] },
  },
};

/** Returns the text that a start prints: model, what it does, address and a request to try. */
export function startupText(info: EngineInfo, address: Address): string {
  const { model } = address;
  const numRanks = info.tensorParallelSize === 1 ? '' : `, ${info.tensorParallelSize} ranks`;
  return [
    `Capstan ${info.version} serves ${model} (${info.architecture}, ${count(info.numParameters)} parameters, ${weightsText(info)}): ` +
      `${info.backend} ${info.isa}, ${info.threads} ${info.threads === 1 ? 'thread' : 'threads'}${numRanks}, context length ${grouped(info.maxModelLen)}, ` +
      `KV cache ${bytes(info.kvCacheBytes)} (${grouped(info.numBlocks * info.blockSize)} tokens), ${addressText(address)}`,
    taskText(info),
    ...endLines(info.task, address),
  ].join('\n');
}

/** As {@link startupText}, for several models. */
export function severalText(
  models: readonly { name: string; task: ModelTask; state: string; neededBytes: number }[],
  memoryBytes: number,
  address: Address,
): string {
  return [
    `Capstan ${packageVersion()} serves ${models.length} models in ${bytes(memoryBytes)} of memory: ${addressText(address)}`,
    ...models.map(
      ({ name, task, state, neededBytes }) => `  ${name}: ${task}, ${state}, about ${bytes(neededBytes)} in memory`,
    ),
    ...endLines(models[0].task, address),
  ].join('\n');
}

function addressText(address: Address): string {
  const { socketPath, isTls = false, transport } = address;
  const place = socketPath === undefined ? urlOf(address) : `unix:${socketPath}${isTls ? ' with TLS' : ''}`;
  return `${place} (${transport})`;
}

function urlOf({ socketPath, isTls = false, host, port }: Address): string {
  const scheme = isTls ? 'https' : 'http';
  return socketPath === undefined ? `${scheme}://${urlHost(host)}:${port}` : `${scheme}://localhost`;
}

/** Returns the addresses without a key, and a request to try. */
function endLines(task: ModelTask, address: Address): string[] {
  const { model, needsKey = false, isReplica = false, admin, socketPath } = address;
  const url = urlOf(address);
  const { path, fields } = EXAMPLES[task];
  const body = JSON.stringify({ model, ...fields });
  return [
    ...(admin === undefined ? [] : [`Health and metrics, without a key: http://${urlHost(admin.host)}:${admin.port}`]),
    ...(isReplica
      ? []
      : [
          'Try:',
          `  curl ${socketPath === undefined ? '' : `--unix-socket ${quoted(socketPath)} `}${url}${path} ${needsKey ? '-H "Authorization: Bearer $API_KEY" ' : ''}-H 'Content-Type: application/json' -d ${quoted(body)}`,
        ]),
    '',
  ];
}

function weightsText({ weightDtype, quantization }: EngineInfo): string {
  return quantization === 'none' ? weightDtype : `${weightDtype} as ${quantization}`;
}

/** Quotes a shell argument. */
function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function taskText(info: EngineInfo): string {
  const { task, embeddingSize, promptNames = [] } = info;
  if (task === 'generate') return `Sampling defaults: ${samplingText(info)}`;
  if (task === 'score') return 'Task: score (/v1/rerank and /v1/score)';
  const size = embeddingSize === undefined ? '' : `, ${grouped(embeddingSize)} values`;
  const names = promptNames.length === 0 ? '' : `, prompts ${promptNames.join(', ')}`;
  return `Task: embed (/v1/embeddings, /v1/rerank and /v1/score)${size}${names}`;
}

function samplingText({ samplingDefaults }: EngineInfo): string {
  const { temperature = 1, topP = 1, topK = 0, repetitionPenalty = 1 } = samplingDefaults;
  return temperature === 0
    ? `temperature 0, repetition penalty ${repetitionPenalty}`
    : `temperature ${temperature}, top-p ${topP}, top-k ${topK === 0 ? 'off' : topK}, repetition penalty ${repetitionPenalty}`;
}

/** Returns the host for a URL that a client on this machine can use. */
function urlHost(host: string): string {
  if (host === '0.0.0.0' || host === '::' || host === '') return '127.0.0.1';
  return host.includes(':') ? `[${host}]` : host;
}

function bytes(value: number): string {
  return value >= 2 ** 30 ? `${(value / 2 ** 30).toFixed(1)} GiB` : `${Math.round(value / 2 ** 20)} MiB`;
}

function count(value: number): string {
  const [unit, name] = value >= 1e9 ? [1e9, 'B'] : [1e6, 'M'];
  return `${(value / unit).toFixed(1)} ${name}`;
}

function grouped(value: number): string {
  return value.toLocaleString('en-US');
}
