import { useEffect, useState } from 'preact/hooks';

/** The current path and query. */
export interface Place {
  path: string;
  query: URLSearchParams;
}

const CHANGED = 'capstan:navigated';

function here(): Place {
  return { path: location.pathname, query: new URLSearchParams(location.search) };
}

export function navigate(to: string, { replace = false }: { replace?: boolean } = {}): void {
  if (replace) history.replaceState(null, '', to);
  else history.pushState(null, '', to);
  dispatchEvent(new Event(CHANGED));
  if (!replace) scrollTo(0, 0);
}

export function useLocation(): Place {
  const [place, setPlace] = useState(here);
  useEffect(() => {
    const update = () => setPlace(here());
    addEventListener('popstate', update);
    addEventListener(CHANGED, update);
    return () => {
      removeEventListener('popstate', update);
      removeEventListener(CHANGED, update);
    };
  }, []);
  return place;
}

/**
 * Handles links to pages of the console without a reload. The browser handles modified clicks, downloads and links to
 * other windows.
 */
export function followLinks(): void {
  document.addEventListener('click', (event) => {
    if (
      event.defaultPrevented ||
      event.button !== 0 ||
      event.metaKey ||
      event.ctrlKey ||
      event.shiftKey ||
      event.altKey
    )
      return;
    const link = event.target instanceof Element ? event.target.closest('a[href]') : null;
    if (
      !(link instanceof HTMLAnchorElement) ||
      link.origin !== location.origin ||
      link.hasAttribute('download') ||
      (link.target !== '' && link.target !== '_self')
    )
      return;
    if (link.pathname.startsWith('/api/') || link.hash !== '') return;
    event.preventDefault();
    navigate(link.pathname + link.search);
  });
}

/** Returns the token in the fragment, which no server sees, and removes it from the address and the history. */
export function takeToken(): string {
  const token = location.hash.slice(1);
  if (token !== '') history.replaceState(null, '', location.pathname);
  return token;
}
