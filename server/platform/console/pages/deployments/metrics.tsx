import { useEffect, useState } from 'preact/hooks';
import type { Deployment, Metrics } from '../../../api/objects';
import { useResource } from '../../api/resource';
import { neutralise } from '../../format/neutral';
import { formatCompact, formatMegabytes, formatMs, formatNumber } from '../../format/numbers';
import { locale, t } from '../../i18n';
import type { MessageKey } from '../../i18n/en';
import { withQuery } from '../../router/match';
import { Button } from '../../ui/button';
import { Segments } from '../../ui/field';
import { Card } from '../../ui/page';
import { Plot } from '../../ui/plot';
import { Banner, Loaded } from '../../ui/state';
import { Table } from '../../ui/table';
import { useNow } from '../../ui/time';

const RANGES = { '1h': [3_600, 60], '6h': [21_600, 300], '24h': [86_400, 900], '7d': [604_800, 7_200] } as const;
type Range = keyof typeof RANGES;
const REFRESH_MS = 30_000;

interface PlotSpec {
  title: MessageKey;
  series: readonly { name: string; label: MessageKey }[];
  isBars?: boolean;
  base?: number;
  format?: (value: number) => string;
}

const ms = (value: number) => formatMs(value, locale());
const PLOTS: readonly PlotSpec[] = [
  {
    title: 'metrics.requests',
    isBars: true,
    series: [
      { name: 'requests', label: 'metrics.requests' },
      { name: 'errors', label: 'metrics.errors' },
    ],
  },
  {
    title: 'metrics.latency',
    format: ms,
    series: [
      { name: 'latency_p50_ms', label: 'metrics.p50' },
      { name: 'latency_p90_ms', label: 'metrics.p90' },
      { name: 'latency_p99_ms', label: 'metrics.p99' },
    ],
  },
  {
    title: 'metrics.firstByte',
    format: ms,
    series: [
      { name: 'first_byte_p50_ms', label: 'metrics.p50' },
      { name: 'first_byte_p90_ms', label: 'metrics.p90' },
      { name: 'first_byte_p99_ms', label: 'metrics.p99' },
    ],
  },
  {
    title: 'metrics.tokens',
    series: [
      { name: 'prompt_tokens', label: 'metrics.promptTokens' },
      { name: 'completion_tokens', label: 'metrics.completionTokens' },
      { name: 'cached_tokens', label: 'metrics.cachedTokens' },
    ],
  },
  {
    title: 'metrics.cpu',
    format: (value) => `${formatCompact(value, locale())}%`,
    series: [{ name: 'cpu_percent', label: 'metrics.cpu' }],
  },
  {
    title: 'metrics.memory',
    base: 1024,
    format: (value) => formatMegabytes(value, locale()),
    series: [{ name: 'memory_mb', label: 'metrics.memory' }],
  },
];

export function MetricsTab({ of }: { of: Deployment }) {
  const [range, setRange] = useState<Range>('1h');
  const [length, step] = RANGES[range];
  const now = useNow(REFRESH_MS);
  const [to, setTo] = useState(() => roundUp(Date.now(), step));
  useEffect(() => setTo(roundUp(now, step)), [now, step]);
  const metrics = useResource<Metrics>(
    withQuery(`/deployments/${of.id}/metrics`, {
      from: new Date(to - length * 1000).toISOString(),
      to: new Date(to).toISOString(),
      step,
    }),
  );
  const [last, setLast] = useState<Metrics | undefined>(undefined);
  useEffect(() => {
    if (metrics.data !== undefined) setLast(metrics.data);
  }, [metrics.data]);
  return (
    <div class="stack">
      <div class="row">
        <Segments
          label={t('metrics.range')}
          value={range}
          onChange={setRange}
          options={(Object.keys(RANGES) as Range[]).map((value) => ({ value, label: t(`metrics.range.${value}`) }))}
        />
        <Button look="quiet" icon="restart" label={t('action.reload')} onClick={metrics.reload} />
      </div>
      <Loaded of={{ ...metrics, data: metrics.data ?? last }} lines={6}>
        {(data) => <Plots of={data} />}
      </Loaded>
    </div>
  );
}

/** Rounds up to the next step, so that the path of the resource does not change within a step. */
function roundUp(timeMs: number, stepS: number): number {
  return Math.ceil(timeMs / (stepS * 1000)) * stepS * 1000;
}

function Plots({ of: { series, tokens_counted, keys } }: { of: Metrics }) {
  const pointsOf = (name: string) => series.find((candidate) => candidate.name === name)?.points ?? [];
  const total = (name: string) =>
    formatCompact(
      pointsOf(name).reduce((sum, [, value]) => sum + (value ?? 0), 0),
      locale(),
    );
  return (
    <>
      <dl class="columns">
        {(
          [
            ['requests', 'metrics.requests'],
            ['errors', 'metrics.errors'],
            ['completion_tokens', 'metrics.completionTokens'],
          ] as const
        ).map(([name, label]) => (
          <div key={name} class="card stat">
            <dt>{t(label)}</dt>
            <dd>{name === 'completion_tokens' && !tokens_counted ? '–' : total(name)}</dd>
          </div>
        ))}
      </dl>
      {!tokens_counted && <Banner title={t('metrics.notCounted')}>{t('metrics.notCountedHint')}</Banner>}
      <div class="columns-wide">
        {PLOTS.filter((plot) => plot.title !== 'metrics.tokens' || tokens_counted).map((plot) => (
          <Card key={plot.title} title={t(plot.title)}>
            <Plot
              label={t(plot.title)}
              isBars={plot.isBars}
              base={plot.base}
              format={plot.format}
              series={plot.series.map(({ name, label }) => ({ name: t(label), points: pointsOf(name) }))}
            />
          </Card>
        ))}
      </div>
      {keys.length > 0 && (
        <Card title={t('metrics.byKey')} isFlush>
          <KeyUsageTable of={keys} />
        </Card>
      )}
    </>
  );
}

function KeyUsageTable({ of }: { of: Metrics['keys'] }) {
  const number = (value: number) => <span class="numeric">{formatNumber(value, locale())}</span>;
  return (
    <Table
      label={t('metrics.byKey')}
      rows={of}
      keyOf={({ key_id }) => key_id ?? ''}
      columns={[
        {
          title: t('keys.name'),
          cell: ({ key_id, name, display }) => (
            <div>
              <span class="table-name isolate">
                {key_id === null ? t('metrics.noKey') : neutralise(name ?? key_id)}
              </span>
              {display !== null && <code class="table-sub">{display}</code>}
            </div>
          ),
        },
        { title: t('metrics.requests'), cell: ({ requests }) => number(requests) },
        { title: t('metrics.errors'), cell: ({ errors }) => number(errors) },
        { title: t('metrics.promptTokens'), cell: ({ prompt_tokens }) => number(prompt_tokens) },
        { title: t('metrics.completionTokens'), cell: ({ completion_tokens }) => number(completion_tokens) },
      ]}
    />
  );
}
