/** The page of results of benchmarks/gateway-peers.ts. */
import os from 'node:os';

export interface Results {
  /** By requests per second. */
  rates: Record<string, { name: string; firstByteMs: number[]; reached: number; numRefused: number }[]>;
  streams: { name: string; tokensPerSecond: number[]; cpuUsPerToken: number }[];
  memory: { name: string; keys: string; startMiB: number; loadedMiB: number }[];
}

const SETTINGS = `Command: \`node -r ./test/oracle/register-ts.cjs benchmarks/gateway-peers.ts --litellm VENV --portkey FOLDER\`.

Each gateway is one process on core 0. The load and the upstream share core 1, so the load is never measured alone. All requests are streams of chat completions over loopback, with connections that stay open. "added" is the difference of the quantiles to the same requests to the upstream, which were measured in turn. The gateways that are not measured are stopped (SIGSTOP) meanwhile. At one request a second all gateways got their requests in the same minute; there the 99th percentile is nearly the largest of few values. A gateway that cannot hold a rate has at most 256 open requests; more are not sent.

| gateway | version and settings |
| --- | --- |
| Capstan | \`capstan up\`: the deployment service with its database, one deployment with an upstream, found by \`model\`. 100,000 keys are in the database; one of them is used. It checks the key, counts usage and writes usage to the database. Once with its defaults (\`node:http\`) and once with \`--http-transport uws\` and uWebSockets.js 20.30. |
| LiteLLM | 1.108.7, \`litellm[proxy]\` on Python 3.11 with uvloop, one worker, \`LITELLM_MODE=PRODUCTION\`, \`LITELLM_LOG=ERROR\`, one model, a master key. It has no further keys: they need its database engine (Prisma), which could not be downloaded here. |
| Portkey | \`@portkey-ai/gateway\` 1.15.2 with hono 4.9.7 and @hono/node-server 1.13.8 (with newer ones streams are a 500 on Node.js 20), \`NODE_ENV=production\`, the upstream in the request's headers. It has no keys, so it checks and counts nothing. |
`;

const quantile = (numbers: readonly number[], q: number): number =>
  [...numbers].sort((a, b) => a - b)[Math.min(numbers.length - 1, Math.floor(numbers.length * q))];

function table(head: readonly string[], rows: readonly string[][]): string {
  const line = (cells: readonly string[]) => `| ${cells.join(' | ')} |`;
  return [line(head), line(head.map(() => '---')), ...rows.map(line)].join('\n');
}

function ratePart(rate: string, measured: Results['rates'][string]): string {
  const [direct] = measured;
  const rows = measured.map(({ name, firstByteMs, reached, numRefused }) => {
    const ms = (q: number) => quantile(firstByteMs, q);
    const added = (q: number) => (name === 'direct' ? '' : `+${(ms(q) - quantile(direct.firstByteMs, q)).toFixed(3)}`);
    const notSent = numRefused === 0 ? '' : `, ${numRefused} not sent`;
    return [
      name,
      `${ms(0.5).toFixed(3)}`,
      added(0.5),
      `${ms(0.99).toFixed(3)}`,
      added(0.99),
      `${reached.toFixed(rate === '1' ? 1 : 0)}/s`,
      `${firstByteMs.length}${notSent}`,
    ];
  });
  return `## ${rate} request${rate === '1' ? '' : 's'} a second\n\n${table(
    ['', 'p50, ms', 'added', 'p99, ms', 'added', 'reached', 'requests'],
    rows,
  )}\n`;
}

export function pageOf({ rates, streams, memory }: Results): string {
  const parts = Object.entries(rates).map(([rate, measured]) => ratePart(rate, measured));
  if (streams.length > 0)
    parts.push(
      `## 64 streams at full speed\n\n${table(
        ['', 'tokens/s, median of the rounds', 'range', 'CPU time of the gateway per token'],
        streams.map(({ name, tokensPerSecond, cpuUsPerToken }) => [
          name,
          quantile(tokensPerSecond, 0.5).toFixed(0),
          `${Math.min(...tokensPerSecond).toFixed(0)} to ${Math.max(...tokensPerSecond).toFixed(0)}`,
          name === 'direct' ? '' : `${cpuUsPerToken.toFixed(1)} µs`,
        ]),
      )}\n`,
    );
  if (memory.length > 0)
    parts.push(
      `## Resident memory\n\n${table(
        ['', 'keys', 'after the start, MiB', 'after 1,500 requests, MiB'],
        memory.map(({ name, keys, startMiB, loadedMiB }) => [name, keys, startMiB.toFixed(0), loadedMiB.toFixed(0)]),
      )}\n`,
    );
  const machine = `${os.cpus()[0].model.trim()}, ${os.cpus().length} cores, Node.js ${process.version}`;
  return `# Gateways side by side\n\n${machine}. ${SETTINGS}\n\n${parts.join('\n')}`;
}
