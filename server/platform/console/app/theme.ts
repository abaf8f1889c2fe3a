import { keep, read } from '../i18n';

export type Theme = 'light' | 'dark' | 'system';
export const THEMES: readonly Theme[] = ['system', 'light', 'dark'];

export function currentTheme(): Theme {
  const kept = read('capstan.theme');
  return kept === 'light' || kept === 'dark' ? kept : 'system';
}

export function applyTheme(theme: Theme): void {
  keep('capstan.theme', theme);
  if (theme === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}
