import { useEffect } from 'preact/hooks';
import type { Canary, Deployment, LastCanary } from '../../../api/objects';
import { mayChange } from '../../app/rights';
import { call } from '../../api/client';
import { useAction, useResource } from '../../api/resource';
import { neutralise } from '../../format/neutral';
import { serviceText, t } from '../../i18n';
import { Button } from '../../ui/button';
import { Card, Facts } from '../../ui/page';
import { ProblemBanner } from '../../ui/state';
import { Table } from '../../ui/table';
import { At } from '../../ui/time';

const RELOAD_MS = 5_000;

/** The last canary of a deployment with its comparison. Empty without one. */
export function CanaryCard({ of: deployment }: { of: Deployment }) {
  const last = useResource<LastCanary>(`/deployments/${deployment.id}/canary`);
  const { reload } = last;
  const data = last.data?.canary ?? null;
  const isRunning = data?.state === 'running';
  useEffect(() => {
    if (!isRunning) return undefined;
    const timer = setInterval(reload, RELOAD_MS);
    return () => clearInterval(timer);
  }, [isRunning, reload]);
  // The deployment changes when the canary begins or ends.
  useEffect(reload, [deployment.target_version, deployment.active_version, reload]);
  const action = useAction(async (decision: 'promote' | 'rollback') => {
    last.set({ canary: await call<Canary>('POST', `/deployments/${deployment.id}/canary/${decision}`) });
  });
  if (data === null) return null;
  const rows = [
    { name: t('canary.new', { n: data.version }), stats: data.canary },
    { name: t('canary.stable'), stats: data.stable },
  ];
  return (
    <Card title={t('canary.title')} note={t('canary.note')}>
      <div class="stack">
        <ProblemBanner problem={action.problem} />
        <Facts
          of={[
            [t('field.state'), t(`canary.state.${data.state}`)],
            data.reason !== null && [
              t('canary.reason'),
              <span class="isolate">{neutralise(serviceText(data.reason))}</span>,
            ],
            [t('canary.share'), `${data.percent} %`],
            data.header !== null && [t('canary.header'), <code>{neutralise(data.header)}</code>],
            data.keys.length > 0 && [t('nav.keys'), <code>{data.keys.join(', ')}</code>],
            data.decided_at !== null && [t('canary.decided'), <At time={data.decided_at} />],
          ]}
        />
        <Table
          label={t('canary.title')}
          rows={rows}
          keyOf={({ name }) => name}
          columns={[
            { title: t('canary.version'), cell: ({ name }) => name },
            { title: t('canary.requests'), cell: ({ stats }) => <span class="numeric">{stats.requests}</span> },
            { title: t('canary.errors'), cell: ({ stats }) => <span class="numeric">{errorsText(stats)}</span> },
            {
              title: t('canary.firstToken'),
              cell: ({ stats: { first_token_ms: ms } }) => (
                <span class="numeric">{ms === null ? '–' : `${Math.round(ms)} ms`}</span>
              ),
            },
          ]}
        />
        {isRunning && mayChange(deployment.owner) && (
          <div class="row">
            <Button look="primary" icon="check" isBusy={action.isBusy} onClick={() => void action.run('promote')}>
              {t('canary.promote')}
            </Button>
            <Button look="danger" icon="restart" isBusy={action.isBusy} onClick={() => void action.run('rollback')}>
              {t('canary.rollback')}
            </Button>
          </div>
        )}
      </div>
    </Card>
  );
}

function errorsText({ requests, errors }: Canary['stable']): string {
  return requests === 0 ? String(errors) : `${errors} (${((100 * errors) / requests).toFixed(1)} %)`;
}
