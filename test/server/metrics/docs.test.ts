/** docs/metrics.md against the code. CAPSTAN_WRITE_DOCS=1 writes its tables. */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Access } from '../../../server/access';
import { Metrics } from '../../../server/metrics/metrics';
import { VLLM_ALIASES } from '../../../server/metrics/vllm-names';

const path = join(__dirname, '../../../docs/metrics.md');

async function tables(): Promise<{ ours: string; vllm: string }> {
  const metrics = new Metrics({ compat: 'none' });
  metrics.watch({ numOpenRequests: 0, numOpenStreams: 0 });
  metrics.counting({ stats: () => ({ numKeys: 0, appliedRev: 0, staleMs: 0 }) } as Access);
  const own = (await metrics.describe()).filter(({ name }) => name.startsWith('capstan_')).sort((a, b) => a.name.localeCompare(b.name));
  const names = (list: readonly string[]) => list.map((name) => `\`${name}\``).join(', ');
  return {
    ours: ['| name | type | what it is |', '|---|---|---|', ...own.map(({ name, type, help }) => `| \`${name}\` | ${type} | ${help} |`)].join('\n'),
    vllm: ['| vLLM\'s | ours |', '|---|---|', ...VLLM_ALIASES.map(({ of, names: theirs }) => `| ${names(theirs)} | \`${of}\` |`)].join('\n'),
  };
}

test('the tables are those of the code', async () => {
  const { ours, vllm } = await tables();
  const between = (name: string) => new RegExp(`(<!-- ${name} -->\n)[^]*?(\n<!-- end -->)`);
  const text = readFileSync(path, 'utf8');
  const fresh = text.replace(between('ours'), (_all, begin: string, end: string) => begin + ours + end).replace(between('vllm'), (_all, begin: string, end: string) => begin + vllm + end);
  if (process.env.CAPSTAN_WRITE_DOCS === '1') writeFileSync(path, fresh);
  expect(fresh.match(/<!-- (ours|vllm) -->/g)).toHaveLength(2);
  expect(readFileSync(path, 'utf8')).toBe(fresh);
});
