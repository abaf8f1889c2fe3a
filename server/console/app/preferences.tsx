import { useState } from 'preact/hooks';
import { LOCALES, locale, setLocale, t } from '../i18n';
import { Button } from '../ui/button';
import { applyTheme, currentTheme } from './theme';

/** Language and colours where nobody is signed in yet. */
export function Preferences() {
  const [theme, setTheme] = useState(currentTheme);
  const isDark = theme === 'dark' || (theme === 'system' && matchMedia('(prefers-color-scheme: dark)').matches);
  const other = LOCALES.find((candidate) => candidate.locale !== locale()) ?? LOCALES[0];
  const turn = () => {
    const next = isDark ? 'light' : 'dark';
    applyTheme(next);
    setTheme(next);
  };
  return (
    <div class="gate-foot">
      <Button look="quiet" isSmall icon="language" onClick={() => void setLocale(other.locale)}>
        <span lang={other.locale}>{other.name}</span>
      </Button>
      <Button look="quiet" isSmall icon="theme" onClick={turn}>
        {t(isDark ? 'theme.toLight' : 'theme.toDark')}
      </Button>
    </div>
  );
}
