/** Checks docs/reference/metrics.md against the code. CAPSTAN_WRITE_DOCS=1 writes its tables. */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Registry } from 'prom-client';
import type { Access } from '../../../../server/access';
import { Targets } from '../../../../server/platform/gateway/targets';
import { ModelPool } from '../../../../server/inference/models/model-pool';
import { NO_LIMITS, SYSTEM_CLOCK } from '../../../../server/inference/models/served-models';
import { Metrics } from '../../../../server/inference/metrics/metrics';
import { VLLM_ALIASES } from '../../../../server/inference/metrics/vllm-names';
import { ServiceMetrics } from '../../../../server/platform/up/service-metrics';

const path = join(__dirname, '../../../../docs/reference/metrics.md');

/** Returns the names of a metric's labels. The types of prom-client do not have them. */
function labelsOf(registry: Registry, name: string): string {
  const { labelNames = [] } = registry.getSingleMetric(name) as { labelNames?: readonly string[] };
  return labelNames.map((label) => `\`${label}\``).join(', ');
}

async function table(registry: Registry): Promise<string> {
  const all = await registry.getMetricsAsJSON();
  const own = all.filter(({ name }) => name.startsWith('capstan_')).sort((a, b) => a.name.localeCompare(b.name));
  return [
    '| name | type | labels | what it is |',
    '|---|---|---|---|',
    ...own.map(({ name, type, help }) => `| \`${name}\` | ${String(type)} | ${labelsOf(registry, name)} | ${help} |`),
  ].join('\n');
}

async function tables(): Promise<{ ours: string; service: string; vllm: string }> {
  const metrics = new Metrics({ compat: 'none' });
  metrics.watch({ numOpenRequests: 0, numOpenStreams: 0 });
  metrics.watchModels([], new ModelPool([], NO_LIMITS, SYSTEM_CLOCK));
  const access = { stats: () => ({ numKeys: 0, appliedRev: 0, staleMs: 0 }) } as Access;
  metrics.counting(access);
  const service = new ServiceMetrics(new Targets());
  service.watch({ numOpenRequests: 0, numOpenStreams: 0, numHeldRequests: 0 });
  service.countingAccess(access);
  const names = (list: readonly string[]) => list.map((name) => `\`${name}\``).join(', ');
  return {
    ours: await table(metrics.registry),
    service: await table(service.registry),
    vllm: [
      "| vLLM's | ours |",
      '|---|---|',
      ...VLLM_ALIASES.map(({ of, names: theirs }) => `| ${names(theirs)} | \`${of}\` |`),
    ].join('\n'),
  };
}

test('the tables match the code', async () => {
  const { ours, service, vllm } = await tables();
  const between = (name: string) => new RegExp(`(<!-- ${name} -->\n)[^]*?(\n<!-- end -->)`);
  const text = readFileSync(path, 'utf8');
  const fresh = text
    .replace(between('ours'), (_all, begin: string, end: string) => begin + ours + end)
    .replace(between('service'), (_all, begin: string, end: string) => begin + service + end)
    .replace(between('vllm'), (_all, begin: string, end: string) => begin + vllm + end);
  if (process.env.CAPSTAN_WRITE_DOCS === '1') writeFileSync(path, fresh);
  expect(fresh.match(/<!-- (ours|service|vllm) -->/g)).toHaveLength(3);
  expect(readFileSync(path, 'utf8')).toBe(fresh);
});
