import { useEffect } from 'preact/hooks';
import type { Deployment, UpstreamVersion } from '../../../api/objects';
import { mayChange } from '../../app/rights';
import { call } from '../../api/client';
import { useAction, useResource } from '../../api/resource';
import { neutralise } from '../../format/neutral';
import { t } from '../../i18n';
import { Button } from '../../ui/button';
import { Card } from '../../ui/page';
import { Loaded, ProblemBanner } from '../../ui/state';
import { Table } from '../../ui/table';
import { Ago } from '../../ui/time';
import { toast } from '../../ui/toast';

/** All versions of the upstream server that a deployment forwards to, newest first. */
export function UpstreamVersions({
  of,
  onChange,
}: {
  of: Deployment;
  onChange: (deployment: Deployment | undefined) => void;
}) {
  const versions = useResource<{ data: UpstreamVersion[] }>(`/deployments/${of.id}/upstream-versions`);
  const { reload } = versions;
  useEffect(() => reload(), [reload, of.rev]);
  const restore = useAction(async (version: number) => {
    const body = { upstream: { version } };
    onChange(await call<Deployment>('PATCH', `/deployments/${of.id}`, { body, ifMatch: of.rev }));
    toast(t('action.saved'));
  });
  return (
    <Card title={t('deployment.versions')} note={t('upstream.versionsNote')} isFlush>
      <ProblemBanner problem={restore.problem} />
      <Loaded of={versions}>
        {({ data }) => (
          <Table
            label={t('deployment.versions')}
            rows={data}
            keyOf={({ version }) => String(version)}
            columns={[
              {
                title: t('deployments.version'),
                cell: ({ version }) => (
                  <div class="row-tight">
                    <span class="table-name">v{version}</span>
                    {version === of.upstream?.version && <span class="tag">{t('versions.active')}</span>}
                  </div>
                ),
              },
              { title: t('upstream.url'), cell: ({ url }) => <code class="small isolate">{neutralise(url)}</code> },
              {
                title: t('upstream.model'),
                cell: ({ model }) =>
                  model === null ? <span class="faint">–</span> : <span class="isolate">{neutralise(model)}</span>,
              },
              {
                title: t('upstream.secret'),
                cell: ({ has_secret: has }) => t(has ? 'upstream.stored' : 'upstream.none'),
              },
              { title: t('field.created'), cell: ({ created_at }) => <Ago time={created_at} /> },
              {
                title: t('field.actions'),
                isActions: true,
                cell: ({ version }) =>
                  mayChange(of.owner) &&
                  version !== of.upstream?.version && (
                    <Button
                      isSmall
                      label={t('upstream.restoreOf', { n: version })}
                      isBusy={restore.isBusy}
                      onClick={() => void restore.run(version)}
                    >
                      {t('upstream.restore')}
                    </Button>
                  ),
              },
            ]}
          />
        )}
      </Loaded>
    </Card>
  );
}
