import type { ComponentChildren } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { neutralise } from '../format/neutral';
import { call } from '../api/client';
import type { Me } from '../../api/objects';
import { LOCALES, locale, setLocale, t } from '../i18n';
import type { MessageKey } from '../i18n/en';
import { useLocation } from '../router/location';
import { Button } from '../ui/button';
import { Icon, type IconName, Mark } from '../ui/icons';
import { Menu } from '../ui/menu';
import { toast } from '../ui/toast';
import { me, signOut, take } from './session';
import { applyTheme, currentTheme, type Theme } from './theme';

const PLACES: readonly { href: string; label: MessageKey; icon: IconName; isForAdmins?: boolean }[] = [
  { href: '/deployments', label: 'nav.deployments', icon: 'deployments' },
  { href: '/containers', label: 'nav.containers', icon: 'containers' },
  { href: '/data', label: 'nav.data', icon: 'data' },
  { href: '/account/keys', label: 'nav.keys', icon: 'key' },
  { href: '/orgs', label: 'nav.orgs', icon: 'orgs' },
  { href: '/webhooks', label: 'nav.webhooks', icon: 'send' },
  { href: '/quotas', label: 'nav.quotas', icon: 'account', isForAdmins: true },
  { href: '/audit', label: 'nav.audit', icon: 'audit' },
];

/** What stays while pages change: where to go, and who one is. */
export function Shell({ children }: { children: ComponentChildren }) {
  const { path } = useLocation();
  const [isOpen, setOpen] = useState(false);
  useEffect(() => setOpen(false), [path]);
  const skip = (event: Event) => {
    event.preventDefault();
    document.getElementById('main')?.focus();
  };
  return (
    <div class="shell">
      <a class="skip" href="#main" onClick={skip}>
        {t('nav.skip')}
      </a>
      <div class="topbar">
        <a class="brand" href="/deployments">
          <Mark size={26} />
          Capstan
        </a>
        <Button
          look="quiet"
          icon={isOpen ? 'close' : 'menu'}
          label={t(isOpen ? 'nav.closeMenu' : 'nav.openMenu')}
          onClick={() => setOpen(!isOpen)}
        />
      </div>
      <aside class="side" data-open={isOpen || undefined} aria-label={t('nav.sidebar')}>
        <a class="brand" href="/deployments">
          <Mark />
          Capstan
        </a>
        <nav class="nav" aria-label={t('nav.main')}>
          {PLACES.filter(({ isForAdmins = false }) => !isForAdmins || me().is_admin).map(({ href, label, icon }) => (
            <a
              key={href}
              href={href}
              aria-current={path === href ? 'page' : path.startsWith(`${href}/`) ? 'true' : undefined}
            >
              <Icon name={icon} />
              {t(label)}
            </a>
          ))}
        </nav>
        <div class="side-foot">
          <AccountMenu />
        </div>
      </aside>
      <main class="main" id="main" tabIndex={-1}>
        {children}
      </main>
    </div>
  );
}

function AccountMenu() {
  const { name, email } = me();
  const theme = currentTheme();
  const other = LOCALES.find((candidate) => candidate.locale !== locale()) ?? LOCALES[0];
  const nextTheme: Theme = theme === 'system' ? 'light' : theme === 'light' ? 'dark' : 'system';
  const leave = () => void signOut().catch(() => toast(t('signOut.failed'), { isBad: true }));
  return (
    <Menu
      isUp
      label={t('nav.account')}
      title={neutralise(email)}
      button={() => (
        <>
          <span class="avatar" aria-hidden="true">
            {[...neutralise(name)][0] ?? '?'}
          </span>
          <span class="grow isolate">{neutralise(name)}</span>
          <Icon name="more" />
        </>
      )}
      items={[
        { label: t('nav.settings'), icon: 'account', href: '/account' },
        { label: t('nav.keys'), icon: 'key', href: '/account/keys' },
        'line',
        { label: other.name, icon: 'language', onSelect: () => void changePreference({ locale: other.locale }) },
        { label: t(`theme.${nextTheme}`), icon: 'theme', onSelect: () => void changePreference({ theme: nextTheme }) },
        'line',
        { label: t('signOut'), icon: 'signOut', onSelect: leave },
      ]}
    />
  );
}

/** Shown at once; the account is told after, and where that fails the page stays as chosen until it is loaded anew. */
async function changePreference(edit: { locale?: Me['locale']; theme?: Theme }): Promise<void> {
  if (edit.locale !== undefined) await setLocale(edit.locale);
  if (edit.theme !== undefined) applyTheme(edit.theme);
  try {
    take(await call<Me>('PATCH', '/me', { body: edit }));
  } catch {
    toast(t('account.notSaved'), { isBad: true });
  }
}
