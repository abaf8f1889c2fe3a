/**
 * Sends many fuzzed requests concurrently to one server. Then checks that the server is alive and idle, and that it
 * has freed all blocks.
 */
import { exchange, type Target } from './exchange';
import { makeRequest } from './requests';

export interface Finding {
  seed: number;
  summary: string;
  delivery: string;
  fault: string;
}

export interface Campaign {
  numRequests: number;
  statuses: Record<number, number>;
  findings: Finding[];
}

export interface CampaignOptions extends Target {
  /** One request per seed. */
  seeds: Iterable<number>;
  /** Number of concurrent connections. */
  width: number;
  isAlive: () => boolean;
}

export async function runCampaign({ seeds, width, isAlive, ...target }: CampaignOptions): Promise<Campaign> {
  const campaign: Campaign = { numRequests: 0, statuses: {}, findings: [] };
  const queue = seeds[Symbol.iterator]();
  const worker = async () => {
    for (let next = queue.next(); next.done !== true && isAlive(); next = queue.next()) {
      const request = makeRequest(next.value);
      const { status, fault } = await exchange(target, request, next.value);
      campaign.numRequests++;
      campaign.statuses[status] = (campaign.statuses[status] ?? 0) + 1;
      if (fault !== undefined)
        campaign.findings.push({ seed: next.value, summary: request.summary, delivery: request.delivery, fault });
    }
  };
  await Promise.all(Array.from({ length: width }, worker));
  return campaign;
}

/** Returns the values of /metrics by name, labels included. */
export async function readMetrics(url: string): Promise<Map<string, number>> {
  const text = await (await fetch(`${url}/metrics`)).text();
  return new Map(
    text
      .split('\n')
      .filter((line) => line !== '' && !line.startsWith('#'))
      .map((line) => {
        const at = line.lastIndexOf(' ');
        return [line.slice(0, at), Number(line.slice(at + 1))];
      }),
  );
}

/** Returns the first metric that does not return to its idle value in time, or undefined. */
export async function findResidue(url: string, withinMs: number): Promise<string | undefined> {
  let residue: string | undefined;
  for (
    const deadline = Date.now() + withinMs;
    Date.now() < deadline;
    await new Promise((resolve) => setTimeout(resolve, 20))
  ) {
    const metrics = await readMetrics(url);
    // The scrape itself is one open request.
    const wanted = {
      capstan_sequences_running: 0,
      capstan_sequences_waiting: 0,
      capstan_http_streams_open: 0,
      'capstan_kv_cache_blocks{state="used"}': 0,
      capstan_engine_up: 1,
      capstan_http_requests_open: 1,
    };
    residue = Object.entries(wanted)
      .filter(([name, value]) => metrics.get(name) !== value)
      .map(([name, value]) => `${name} is ${metrics.get(name)}, not ${value}`)[0];
    if (residue === undefined) break;
  }
  return residue;
}
