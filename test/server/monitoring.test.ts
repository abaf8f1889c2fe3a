/**
 * The dashboards and alerts in packaging/monitoring. promtool, of Debian's package prometheus, checks every expression,
 * and that each alert fires for its fault.
 */
import { execFileSync, spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { collectDefaultMetrics, Registry } from 'prom-client';
import { parse, stringify } from 'yaml';
import { temporaryFolder } from '../fakes/temporary-folder';

const root = join(__dirname, '../..');
const read = (file: string): string => readFileSync(join(root, file), 'utf8');
const hasPromtool = spawnSync('promtool', ['--version']).status === 0;

interface Panel {
  id: number;
  type: string;
  title: string;
  gridPos: { x: number; y: number; w: number; h: number };
  targets?: { expr: string; legendFormat: string; datasource: { uid: string } }[];
}

interface Metric {
  type: string;
  labels: string[];
}

/** The metrics of the tables in the reference, which other tests compare with the code, and those of prom-client. */
function metricsOf(section: 'ours' | 'service'): Map<string, Metric> {
  const [, table] = new RegExp(`<!-- ${section} -->\n([^]*?)<!-- end -->`).exec(read('docs/reference/metrics.md'))!;
  const rows = table.matchAll(/^\| `(\w+)` \| (\w+) \| ([^|]*) \|/gm);
  const ours = [...rows].map(([, name, type, labels]): [string, Metric] => [
    name,
    { type, labels: [...labels.matchAll(/`(\w+)`/g)].map(([, label]) => label) },
  ]);
  const registry = new Registry();
  collectDefaultMetrics({ register: registry });
  const defaults = registry
    .getMetricsAsArray()
    .map(({ name, type }): [string, Metric] => [name, { type: String(type), labels: [] }]);
  return new Map([...defaults, ...ours]);
}

/** What an expression uses that the metrics lack. */
function unknownIn(expression: string, metrics: ReadonlyMap<string, Metric>): string[] {
  const names = [...expression.matchAll(/\b((?:capstan|process|nodejs)_\w+)(?:\{([^}]*)\})?/g)];
  expect(names.length).toBeGreaterThan(0);
  return names.flatMap(([, name, selectors = '']) => {
    const [, base, suffix] = /^(\w+?)(_bucket|_sum|_count)?$/.exec(name)!;
    const metric = metrics.get(name) ?? (suffix === undefined ? undefined : metrics.get(base));
    if (metric === undefined || (metric.type === 'histogram') !== (suffix !== undefined && !metrics.has(name)))
      return [name];
    const labels = [...selectors.matchAll(/(\w+)\s*(?:=~|!~|!=|=)/g)].map(([, label]) => label);
    return labels.filter((label) => ![...metric.labels, 'instance', 'le'].includes(label)).map((l) => `${name}{${l}}`);
  });
}

const DASHBOARDS = [
  ['grafana-server.json', 'ours'],
  ['grafana-service.json', 'service'],
] as const;

describe.each(DASHBOARDS)('%s', (file, section) => {
  const dashboard = JSON.parse(read(`packaging/monitoring/${file}`)) as { uid: string; panels: Panel[] };
  const { panels } = dashboard;
  const queries = panels.flatMap(({ title, targets = [] }) => targets.map((target) => ({ title, ...target })));

  test('uses only metrics and labels that exist', () => {
    const metrics = metricsOf(section);
    expect(queries.flatMap(({ title, expr }) => unknownIn(expr, metrics).map((what) => [title, what]))).toEqual([]);
  });

  test('names each series by labels that its query keeps', () => {
    for (const { title, expr, legendFormat } of queries) {
      const kept = [...expr.matchAll(/ by \(([^)]*)\)/g)].flatMap(([, labels]) => labels.split(/,\s*/));
      const isPlain = kept.length === 0 && !/\bsum\b|\bmin\b/.test(expr);
      const named = [...legendFormat.matchAll(/\{\{(\w+)\}\}/g)].map(([, label]) => label);
      expect([title, named.filter((label) => !kept.includes(label) && !(isPlain && label === 'instance'))]).toEqual([
        title,
        [],
      ]);
    }
  });

  test('has unique panels that do not overlap, and reads the chosen data source', () => {
    expect(new Set(panels.map(({ id }) => id)).size).toBe(panels.length);
    const cells = panels.flatMap(({ gridPos: { x, y, w, h } }) => {
      expect(x + w).toBeLessThanOrEqual(24);
      return Array.from({ length: w * h }, (_, i) => `${x + (i % w)},${y + Math.floor(i / w)}`);
    });
    expect(new Set(cells).size).toBe(cells.length);
    expect(new Set(queries.map(({ datasource }) => datasource.uid))).toEqual(new Set(['${datasource}']));
  });

  (hasPromtool ? test : test.skip)('has only valid expressions', () => {
    const folder = temporaryFolder('expressions');
    const rules = queries.map(({ expr }, i) => ({
      record: `panel_${i}`,
      expr: expr.replaceAll('$__rate_interval', '5m').replaceAll('$instance', '.*'),
    }));
    writeFileSync(join(folder, 'rules.yml'), stringify({ groups: [{ name: 'panels', rules }] }));
    const output = execFileSync('promtool', ['check', 'rules', join(folder, 'rules.yml')], { encoding: 'utf8' });
    expect(output).toContain(`${rules.length} rules found`);
  });
});

describe('alerts.yml', () => {
  interface Rule {
    alert: string;
    expr: string;
    labels: { severity: string };
    annotations: { summary: string; description: string };
  }
  const { groups } = parse(read('packaging/monitoring/alerts.yml')) as { groups: { name: string; rules: Rule[] }[] };

  test.each(groups)('uses only metrics and labels that exist: $name', ({ name, rules }) => {
    const metrics = metricsOf(name === 'capstan-server' ? 'ours' : 'service');
    for (const { alert, expr, labels, annotations } of rules) {
      expect([alert, unknownIn(expr, metrics)]).toEqual([alert, []]);
      expect([alert, labels.severity]).toEqual([alert, expect.stringMatching(/^(critical|warning)$/)]);
      expect([alert, Object.keys(annotations)]).toEqual([alert, ['summary', 'description']]);
    }
  });

  test('every alert has a case in monitoring-alerts.yml and a line in the guide', () => {
    const [cases, guide] = [read('test/server/monitoring-alerts.yml'), read('docs/how-to/monitor.md')];
    for (const { alert } of groups.flatMap(({ rules }) => rules)) {
      expect(cases).toContain(`alertname="${alert}"`);
      expect(guide).toContain(`\`${alert}\``);
    }
  });

  (hasPromtool ? test : test.skip)('fires for each fault, and not without it', () => {
    execFileSync('promtool', ['check', 'rules', join(root, 'packaging/monitoring/alerts.yml')]);
    expect(
      execFileSync('promtool', ['test', 'rules', join(__dirname, 'monitoring-alerts.yml')], { encoding: 'utf8' }),
    ).toContain('SUCCESS');
  });
});
