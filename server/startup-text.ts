import type { EngineInfo } from '../ts';

interface Address {
  host: string;
  port: number;
  transport: string;
  /** The name that clients send. */
  model: string;
}

/** What a start prints: what runs, how it samples by default, where it listens, and a request to try. */
export function startupText(info: EngineInfo, { host, port, transport, model }: Address): string {
  const url = `http://${urlHost(host)}:${port}`;
  const numRanks = info.tensorParallelSize === 1 ? '' : `, ${info.tensorParallelSize} ranks`;
  const body = JSON.stringify({ model, messages: [{ role: 'user', content: 'What is Capstan?' }] });
  return [
    `Capstan ${info.version} serves ${model} (${info.architecture}, ${count(info.numParameters)} parameters, ${info.weightDtype}): `
    + `${info.backend} ${info.isa}, ${info.threads} threads${numRanks}, context length ${grouped(info.maxModelLen)}, `
    + `KV cache ${bytes(info.kvCacheBytes)} (${grouped(info.numBlocks * info.blockSize)} tokens), ${url} (${transport})`,
    `Sampling by default: ${samplingText(info)}`,
    'Try:',
    `  curl ${url}/v1/chat/completions -H 'Content-Type: application/json' -d '${body.replaceAll("'", "'\\''")}'`,
    '',
  ].join('\n');
}

function samplingText({ samplingDefaults }: EngineInfo): string {
  const { temperature = 1, topP = 1, topK = 0, repetitionPenalty = 1 } = samplingDefaults;
  return temperature === 0 ? `temperature 0, repetition penalty ${repetitionPenalty}` : `temperature ${temperature}, top-p ${topP}, top-k ${topK === 0 ? 'off' : topK}, repetition penalty ${repetitionPenalty}`;
}

/** An address that a client on this machine can use. */
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
