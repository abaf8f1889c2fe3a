import type { Deployment, Version } from '../../../api/objects';
import { NotFound } from '../../app/error-pages';
import { lazy } from '../../app/lazy';
import { mayChange } from '../../app/rights';
import { usePages, useResource } from '../../api/resource';
import { neutralise } from '../../format/neutral';
import { t } from '../../i18n';
import type { MessageKey } from '../../i18n/en';
import { StateBadge } from '../../ui/badge';
import { Icon } from '../../ui/icons';
import { Page, Tabs } from '../../ui/page';
import { Loaded } from '../../ui/state';
import { DeploymentActions } from './actions';
import { AccessTab } from './access';
import { useLiveDeployment } from './live';
import { MetricsTab } from './metrics';
import { OverviewTab } from './overview';
import { SettingsTab } from './settings';
import { UpstreamVersions } from './upstream-versions';
import { VersionsTab } from './versions';

/** The tools of this tab are in a chunk that is loaded when it is first opened. */
const TestTab = lazy(async () => (await import('./test')).TestTab);

const TABS: readonly { tab: string; label: MessageKey }[] = [
  { tab: '', label: 'deployment.overview' },
  { tab: 'versions', label: 'deployment.versions' },
  { tab: 'metrics', label: 'deployment.metrics' },
  { tab: 'access', label: 'deployment.access' },
  { tab: 'test', label: 'deployment.test' },
  { tab: 'settings', label: 'deployment.settings' },
];

/** A deployment with its tabs. */
export function DeploymentPage({ id, tab = '' }: { id: string; tab?: string }) {
  const deployment = useResource<Deployment>(`/deployments/${id}`);
  const versions = usePages<Version>(`/deployments/${id}/versions`);
  const live = useLiveDeployment(id, deployment, versions.reload);
  if (!TABS.some((entry) => entry.tab === tab)) return <NotFound />;
  const hrefOf = (name: string) => (name === '' ? `/deployments/${id}` : `/deployments/${id}/${name}`);
  const { data } = deployment;
  const change = (next: Deployment | undefined) => {
    if (next === undefined) deployment.reload();
    else deployment.set(next);
    versions.reload();
  };
  return (
    <Page
      title={data?.name ?? t('deployment.one')}
      crumbs={[{ href: '/deployments', label: t('nav.deployments') }]}
      aside={
        data !== undefined && (
          <>
            <span role="status">
              <StateBadge state={data.state} />
            </span>
            <span class="tag">
              <Icon name={data.access_control ? 'lock' : 'globe'} size={13} />
              {t(data.access_control ? 'access.restricted' : 'access.public')}
            </span>
            {live === 'lost' && (
              <span class="badge badge-warn">
                <span class="dot dot-moving" />
                {t('live.lost')}
              </span>
            )}
          </>
        )
      }
      actions={data !== undefined && mayChange(data.owner) && <DeploymentActions of={data} onChange={change} />}
      tabs={
        <Tabs
          label={neutralise(data?.name ?? t('deployment.one'))}
          current={hrefOf(tab)}
          tabs={TABS.map((entry) => ({ href: hrefOf(entry.tab), label: t(entry.label) }))}
        />
      }
    >
      <Loaded of={deployment} lines={5}>
        {(shown) => (
          <>
            {tab === '' && <OverviewTab of={shown} versions={versions} onChange={() => change(undefined)} />}
            {tab === 'versions' &&
              (shown.upstream === null ? (
                <VersionsTab of={shown} versions={versions} onChange={change} />
              ) : (
                <UpstreamVersions of={shown} onChange={change} />
              ))}
            {tab === 'metrics' && <MetricsTab of={shown} />}
            {tab === 'access' && <AccessTab of={shown} onChange={deployment.set} onReload={deployment.reload} />}
            {tab === 'test' && <TestTab of={shown} versions={versions} />}
            {tab === 'settings' && (
              <SettingsTab key={shown.id} of={shown} onChange={deployment.set} onReload={deployment.reload} />
            )}
          </>
        )}
      </Loaded>
    </Page>
  );
}
