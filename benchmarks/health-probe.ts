// Measures the latency of GET /health from a separate thread, so that the load of the main thread does not delay it.
import { Worker } from 'node:worker_threads';

const SOURCE = `
const { parentPort, workerData: { url, intervalMs, headers } } = require('node:worker_threads');
const latencies = [];
let isOver = false;
parentPort.once('message', () => (isOver = true));
(async () => {
  while (!isOver) {
    const begin = performance.now();
    const response = await fetch(url + '/health', { headers });
    await response.arrayBuffer();
    if (response.status !== 200) throw new Error('/health: status ' + response.status);
    latencies.push(performance.now() - begin);
    await new Promise((resolve) => setTimeout(resolve, intervalMs));
  }
  parentPort.postMessage(latencies);
  parentPort.close();
})();
`;

/**
 * Asks for /health every `intervalMs` until `stop`, which resolves with all latencies in milliseconds.
 * @param secret An access key, if the server needs one.
 */
export function probeHealth(
  url: string,
  { intervalMs = 20, secret }: { intervalMs?: number; secret?: string } = {},
): { stop: () => Promise<number[]> } {
  const headers = secret === undefined ? {} : { Authorization: `Bearer ${secret}` };
  const worker = new Worker(SOURCE, { eval: true, workerData: { url, intervalMs, headers } });
  const latencies = new Promise<number[]>((resolve, reject) => {
    worker.once('message', resolve);
    worker.once('error', reject);
  });
  // The error is reported by `stop`.
  latencies.catch(() => {});
  return {
    stop: () => {
      worker.postMessage('stop');
      return latencies;
    },
  };
}
