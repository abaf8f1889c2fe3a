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
import { me, signOut, setAccount } from './session';
import { applyTheme, currentTheme, type Theme } from './theme';

const PLACES: readonly { href: string; label: MessageKey; icon: IconName; isForAdmins?: boolean }[] = [
  { href: '/deployments', label: 'nav.deployments', icon: 'deployments' },
  { href: '/containers', label: 'nav.containers', icon: 'containers' },
  { href: '/data', label: 'nav.data', icon: 'data' },
  { href: '/account/keys', label: 'nav.keys', icon: 'key' },
  { href: '/orgs', label: 'nav.orgs', icon: 'orgs' },
  { href: '/costs', label: 'nav.costs', icon: 'costs' },
  { href: '/webhooks', label: 'nav.webhooks', icon: 'send' },
  { href: '/quotas', label: 'nav.quotas', icon: 'account', isForAdmins: true },
  { href: '/identity-providers', label: 'nav.identityProviders', icon: 'lock', isForAdmins: true },
  { href: '/audit', label: 'nav.audit', icon: 'audit' },
];

/** The frame of all pages: navigation and account menu. */
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
            <a key={href} href={href} aria-current={currentOf(path, href)}>
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

/** `page` for the page itself, `true` for the pages below it. */
function currentOf(path: string, href: string): 'page' | 'true' | undefined {
  if (path === href) return 'page';
  return path.startsWith(`${href}/`) ? 'true' : undefined;
}

const NEXT_THEMES: Readonly<Record<Theme, Theme>> = { system: 'light', light: 'dark', dark: 'system' };

function AccountMenu() {
  const { name, email } = me();
  const other = LOCALES.find((candidate) => candidate.locale !== locale()) ?? LOCALES[0];
  const nextTheme = NEXT_THEMES[currentTheme()];
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

/** Applies a preference at once and saves it in the account. If saving fails, it lasts until the page is reloaded. */
async function changePreference(edit: { locale?: Me['locale']; theme?: Theme }): Promise<void> {
  if (edit.locale !== undefined) await setLocale(edit.locale);
  if (edit.theme !== undefined) applyTheme(edit.theme);
  try {
    setAccount(await call<Me>('PATCH', '/me', { body: edit }));
  } catch {
    toast(t('account.notSaved'), { isBad: true });
  }
}
