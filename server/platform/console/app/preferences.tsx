import { useState } from 'preact/hooks';
import { LOCALES, locale, setLocale, t } from '../i18n';
import { Button } from '../ui/button';
import { applyTheme, currentTheme } from './theme';

/** Language and theme on pages before the sign-in. */
export function Preferences() {
  const [theme, setTheme] = useState(currentTheme);
  const isDark = theme === 'dark' || (theme === 'system' && matchMedia('(prefers-color-scheme: dark)').matches);
  const other = LOCALES.find((candidate) => candidate.locale !== locale()) ?? LOCALES[0];
  const toggleTheme = () => {
    const next = isDark ? 'light' : 'dark';
    applyTheme(next);
    setTheme(next);
  };
  return (
    <div class="gate-foot">
      <Button look="quiet" isSmall icon="language" onClick={() => void setLocale(other.locale)}>
        <span lang={other.locale}>{other.name}</span>
      </Button>
      <Button look="quiet" isSmall icon="theme" onClick={toggleTheme}>
        {t(isDark ? 'theme.toLight' : 'theme.toDark')}
      </Button>
    </div>
  );
}
