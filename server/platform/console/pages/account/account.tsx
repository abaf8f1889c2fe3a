import { me } from '../../app/session';
import { KeysPanel } from '../../keys/keys-panel';
import { t } from '../../i18n';
import type { MessageKey } from '../../i18n/en';
import { NotFound } from '../../app/error-pages';
import { Page, Tabs } from '../../ui/page';
import { ProfileTab } from './profile';
import { SecurityTab } from './security';
import { TokensTab } from './tokens';

const TABS: readonly { tab: string; label: MessageKey }[] = [
  { tab: '', label: 'account.profile' },
  { tab: 'security', label: 'account.security' },
  { tab: 'keys', label: 'account.keys' },
  { tab: 'tokens', label: 'account.tokens' },
];

export function AccountPage({ tab = '' }: { tab?: string }) {
  if (!TABS.some((entry) => entry.tab === tab)) return <NotFound />;
  const hrefOf = (name: string) => (name === '' ? '/account' : `/account/${name}`);
  return (
    <Page
      title={t('account.title')}
      tabs={
        <Tabs
          label={t('account.title')}
          current={hrefOf(tab)}
          tabs={TABS.map((entry) => ({ href: hrefOf(entry.tab), label: t(entry.label) }))}
        />
      }
    >
      {tab === '' && <ProfileTab />}
      {tab === 'security' && <SecurityTab />}
      {tab === 'keys' && <KeysPanel scope={{ type: 'user', ownerId: me().id }} note={t('keys.userNote')} />}
      {tab === 'tokens' && <TokensTab />}
    </Page>
  );
}
