import { useState } from 'preact/hooks';
import type { Deployment, Image, Version } from '../../../api/objects';
import { mayChange } from '../../app/rights';
import { usePages, useResource } from '../../api/resource';
import { isMoving } from '../../format/states';
import { neutralise } from '../../format/neutral';
import { lookUp, t } from '../../i18n';
import { imageName } from '../../spec/choices';
import { SpecView } from '../../spec/spec-view';
import { StateBadge } from '../../ui/badge';
import { Button, LinkButton } from '../../ui/button';
import { Card, Facts, Page } from '../../ui/page';
import { Loaded } from '../../ui/state';
import { Table } from '../../ui/table';
import { At } from '../../ui/time';
import { useLiveReload } from './live';
import { Progress } from './progress';
import { ReasonView } from './reason';
import { isOlder, VersionDialog } from './versions';

/** A version: its state, specification and replicas, and the reason for a failure. */
export function VersionPage({ id, number }: { id: string; number: string }) {
  const base = `/deployments/${id}`;
  const deployment = useResource<Deployment>(base);
  const version = useResource<Version>(`${base}/versions/${number}`);
  const images = usePages<Image>('/images?limit=100');
  const [asked, setAsked] = useState<'activate' | null>(null);
  useLiveReload(`${base}/events/stream`, version.data !== undefined && isMoving(version.data.state), () => {
    version.reload();
    deployment.reload();
  });
  const canChange = deployment.data !== undefined && mayChange(deployment.data.owner);
  return (
    <Page
      title={t('versions.one', { n: number })}
      crumbs={[
        { href: '/deployments', label: t('nav.deployments') },
        { href: base, label: deployment.data?.name ?? '…' },
        { href: `${base}/versions`, label: t('deployment.versions') },
      ]}
      aside={
        version.data !== undefined && (
          <>
            <span role="status">
              <StateBadge state={version.data.state} />
            </span>
            {version.data.is_active && <span class="tag">{t('versions.active')}</span>}
          </>
        )
      }
      subtitle={
        (version.data?.note ?? '') === '' ? undefined : (
          <span class="isolate">{neutralise(version.data?.note ?? '')}</span>
        )
      }
      actions={
        <>
          <LinkButton icon="audit" href={`${base}/versions/${number}/logs`}>
            {t('logs.title')}
          </LinkButton>
          {canChange && (
            <LinkButton icon="copy" href={`${base}/versions/new?from=${number}`}>
              {t('versions.derive')}
            </LinkButton>
          )}
          {canChange && version.data !== undefined && !version.data.is_active && deployment.data !== undefined && (
            <Button
              look={version.data.state === 'error' ? 'plain' : 'primary'}
              icon="rocket"
              onClick={() => setAsked('activate')}
            >
              {t(isOlder(version.data, deployment.data) ? 'versions.rollBack' : 'versions.rollOut')}
            </Button>
          )}
        </>
      }
    >
      <Loaded of={version} lines={6}>
        {(data) => (
          <div class="stack">
            {isMoving(data.state) && data.state !== 'stopping' && (
              <Card>
                <Progress of={data} />
              </Card>
            )}
            {data.reason !== null && (
              <ReasonView
                of={data.reason}
                tone={data.state === 'error' ? 'bad' : 'warn'}
                isQueued={data.state === 'queued'}
                logsHref={`${base}/versions/${number}/logs`}
              />
            )}
            <div class="split">
              <Card title={t('versions.spec')} note={t('versions.specNote')}>
                <SpecView spec={data.spec} imageName={imageName(images.data, data.spec.image_id)} />
              </Card>
              <Card title={t('versions.life')}>
                <Facts
                  of={[
                    [t('field.created'), <At time={data.created_at} />],
                    [t('versions.started'), <At time={data.started_at} />],
                    [t('versions.ready'), <At time={data.ready_at} />],
                    data.ended_at !== null && [t('versions.ended'), <At time={data.ended_at} />],
                    data.retry_at !== null && [t('versions.retry'), <At time={data.retry_at} />],
                    data.created_by !== null && [
                      t('versions.by'),
                      data.created_by_name === null ? (
                        <code class="small">{data.created_by}</code>
                      ) : (
                        <span class="isolate">{neutralise(data.created_by_name)}</span>
                      ),
                    ],
                    [t('field.id'), <code class="small">{data.id}</code>],
                  ]}
                />
              </Card>
            </div>
            <Card title={t('deployments.replicas')} isFlush>
              {data.replicas.length === 0 ? (
                <p class="card-body hint">{t('versions.noReplicas')}</p>
              ) : (
                <Table
                  label={t('deployments.replicas')}
                  rows={data.replicas}
                  keyOf={(replica) => replica.id}
                  columns={[
                    {
                      title: t('replicas.ordinal'),
                      cell: ({ ordinal, id: replicaId }) => (
                        <div>
                          <span class="table-name">{ordinal}</span>
                          <code class="table-sub">{replicaId}</code>
                        </div>
                      ),
                    },
                    {
                      title: t('field.state'),
                      cell: ({ state }) => <span class="tag">{lookUp(`replica.${state}`) ?? neutralise(state)}</span>,
                    },
                    { title: t('replicas.restarts'), cell: ({ restarts }) => <span class="numeric">{restarts}</span> },
                    { title: t('versions.started'), cell: ({ started_at }) => <At time={started_at} /> },
                    {
                      title: t('spec.gpus'),
                      cell: ({ gpu_uuids }) =>
                        gpu_uuids.length === 0 ? (
                          <span class="faint">–</span>
                        ) : (
                          <code class="small">{gpu_uuids.join(', ')}</code>
                        ),
                    },
                  ]}
                />
              )}
            </Card>
            {asked !== null && deployment.data !== undefined && (
              <VersionDialog
                of={deployment.data}
                version={data}
                type={asked}
                onClose={() => setAsked(null)}
                onDone={() => {
                  setAsked(null);
                  deployment.reload();
                  version.reload();
                }}
              />
            )}
          </div>
        )}
      </Loaded>
    </Page>
  );
}
