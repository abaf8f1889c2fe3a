import en from './en';
import { showTexts } from './texts';

export { lookUp, serviceText, t } from './texts';

export type Locale = 'en' | 'zh-CN';
export const LOCALES: readonly { locale: Locale; name: string }[] = [
  { locale: 'en', name: 'English' },
  { locale: 'zh-CN', name: '简体中文' },
];

let current: Locale = 'en';
const listeners = new Set<() => void>();

export function locale(): Locale {
  return current;
}

export function onLocale(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Loads a language and renders the page again. */
export async function setLocale(next: Locale): Promise<void> {
  if (next === 'en') showTexts(en);
  else {
    const [texts, service] = await Promise.all([import('./zh-cn'), import('./zh-cn-service')]);
    showTexts(texts.default, service.translateServiceText);
  }
  current = next;
  document.documentElement.lang = next;
  keep('capstan.locale', next);
  for (const listener of listeners) listener();
}

/** The language chosen earlier in this browser, or the language of the browser. */
export function preferredLocale(): Locale {
  const kept = read('capstan.locale');
  if (kept === 'en' || kept === 'zh-CN') return kept;
  return navigator.languages
    .find((language) => /^(en|zh)\b/i.test(language))
    ?.toLowerCase()
    .startsWith('zh') === true
    ? 'zh-CN'
    : 'en';
}

export function keep(name: string, value: string): void {
  try {
    localStorage.setItem(name, value);
  } catch {
    // Storage may be blocked. The choice then lasts until the page is closed.
  }
}

export function read(name: string): string | null {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}
