import type { Organization } from '../../../api/objects';
import { NotFound } from '../../app/error-pages';
import { isAtLeast } from '../../app/rights';
import { useResource } from '../../api/resource';
import { t } from '../../i18n';
import type { MessageKey } from '../../i18n/en';
import { KeysPanel } from '../../keys/keys-panel';
import { Page, Tabs } from '../../ui/page';
import { Loaded } from '../../ui/state';
import { MembersTab } from './members';
import { OrgSettingsTab } from './settings';

const TABS: readonly { tab: string; label: MessageKey }[] = [
  { tab: '', label: 'orgs.members' },
  { tab: 'keys', label: 'orgs.keys' },
  { tab: 'settings', label: 'orgs.settings' },
];

/** An organization with its members, keys and settings. */
export function OrgPage({ id, tab = '' }: { id: string; tab?: string }) {
  const org = useResource<Organization>(`/orgs/${id}`);
  if (!TABS.some((entry) => entry.tab === tab)) return <NotFound />;
  const hrefOf = (name: string) => (name === '' ? `/orgs/${id}` : `/orgs/${id}/${name}`);
  return (
    <Page
      title={org.data?.name ?? t('orgs.one')}
      crumbs={[{ href: '/orgs', label: t('nav.orgs') }]}
      aside={
        org.data !== undefined && (
          <>
            <span class="tag">{org.data.slug}</span>
            <span class="badge">{t(`role.${org.data.role}`)}</span>
          </>
        )
      }
      tabs={
        <Tabs
          label={t('orgs.one')}
          current={hrefOf(tab)}
          tabs={TABS.map((entry) => ({ href: hrefOf(entry.tab), label: t(entry.label) }))}
        />
      }
    >
      <Loaded of={org}>
        {(data) => (
          <>
            {tab === '' && <MembersTab org={data} />}
            {tab === 'keys' && (
              <KeysPanel
                scope={{ type: 'org', ownerId: id }}
                note={t('keys.orgNote')}
                canCreate={isAtLeast(data.role, 'developer')}
              />
            )}
            {tab === 'settings' && (
              <OrgSettingsTab key={data.rev} org={data} onChange={org.set} onReload={org.reload} />
            )}
          </>
        )}
      </Loaded>
    </Page>
  );
}
