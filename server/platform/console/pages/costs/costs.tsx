import { useMemo, useState } from 'preact/hooks';
import type { Spend } from '../../../api/objects';
import { download } from '../../api/client';
import { useAction, useResource } from '../../api/resource';
import { costSeries, dayBefore, type Group, groupCosts, GROUPS } from '../../format/costs';
import { neutralise } from '../../format/neutral';
import { formatAmount, formatNumber } from '../../format/numbers';
import { locale, t } from '../../i18n';
import { withQuery } from '../../router/match';
import { Button } from '../../ui/button';
import { Segments } from '../../ui/field';
import { Card, Page } from '../../ui/page';
import { Plot } from '../../ui/plot';
import { Empty, Loaded, ProblemBanner } from '../../ui/state';
import { Table } from '../../ui/table';
import { BudgetsCard } from './budgets';
import { PricesCard } from './prices';

const RANGES = { week: 7, month: 30, quarter: 90 } as const;
type Range = keyof typeof RANGES;
const COST_DIGITS = 6;

/** What requests have cost, budgets and prices. */
export function CostsPage() {
  const [range, setRange] = useState<Range>('month');
  const [group, setGroup] = useState<Group>('model');
  const to = new Date().toISOString().slice(0, 10);
  const days = { from: dayBefore(to, RANGES[range]), to };
  const spend = useResource<Spend>(withQuery('/spend', days));
  const saving = useAction(() => download(withQuery('/spend/csv', days), `spend-${days.from}-${to}.csv`));
  return (
    <Page
      title={t('nav.costs')}
      subtitle={t('costs.subtitle')}
      actions={
        <Button icon="download" isBusy={saving.isBusy} onClick={() => void saving.run()}>
          {t('costs.csv')}
        </Button>
      }
    >
      <div class="stack">
        <ProblemBanner problem={saving.problem} />
        <div class="row">
          <Segments
            label={t('metrics.range')}
            value={range}
            onChange={setRange}
            options={(Object.keys(RANGES) as Range[]).map((value) => ({ value, label: t(`costs.range.${value}`) }))}
          />
          <Segments
            label={t('costs.by')}
            value={group}
            onChange={setGroup}
            options={GROUPS.map((value) => ({ value, label: t(`costs.by.${value}`) }))}
          />
        </div>
        <Loaded of={spend}>{(data) => <Report of={data} group={group} />}</Loaded>
        <BudgetsCard />
        <PricesCard />
      </div>
    </Page>
  );
}

function Report({ of, group }: { of: Spend; group: Group }) {
  const { currency, total, data, from, to } = of;
  const noKey = t('metrics.noKey');
  const rest = t('costs.rest');
  const series = useMemo(
    () => costSeries(data, { from, to, group, noKey, rest }),
    [data, from, to, group, noKey, rest],
  );
  if (data.length === 0)
    return (
      <Card>
        <Empty icon="audit" title={t('costs.empty')}>
          {t('costs.emptyHint')}
        </Empty>
      </Card>
    );
  const title = t('costs.perDay', { currency: neutralise(currency) });
  return (
    <>
      <dl class="columns">
        <div class="card stat">
          <dt>{t('costs.total', { currency: neutralise(currency) })}</dt>
          <dd>{formatAmount(Number(total), locale())}</dd>
        </div>
      </dl>
      <Card title={title}>
        <Plot label={title} series={series} isBars={series.length === 1} />
      </Card>
      <Card title={t(`costs.by.${group}`)} isFlush>
        <Table
          label={t(`costs.by.${group}`)}
          rows={groupCosts(data, group, noKey)}
          keyOf={({ name }) => name}
          columns={[
            { title: t('keys.name'), cell: ({ name }) => <span class="table-name isolate">{neutralise(name)}</span> },
            { title: t('metrics.requests'), cell: ({ requests }) => <Number_ value={requests} digits={0} /> },
            { title: t('metrics.tokens'), cell: ({ tokens }) => <Number_ value={tokens} digits={0} /> },
            { title: neutralise(currency), cell: ({ cost }) => <Number_ value={cost} digits={COST_DIGITS} /> },
          ]}
        />
      </Card>
    </>
  );
}

function Number_({ value, digits }: { value: number; digits: number }) {
  return <span class="numeric">{formatNumber(value, locale(), digits)}</span>;
}
