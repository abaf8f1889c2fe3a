import { useEffect, useState } from 'preact/hooks';

/** Where the browser is. */
export interface Place {
  path: string;
  query: URLSearchParams;
}

const CHANGED = 'capstan:navigated';

export function here(): Place {
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

/** Plain links to our own addresses change the page without loading it anew; modified clicks, downloads and other windows stay the browser's. */
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

/** The token of a link that was opened: after `#`, which no server sees. It goes from the address, so that nobody reads it there or goes back to it. */
export function takeToken(): string {
  const token = location.hash.slice(1);
  if (token !== '') history.replaceState(null, '', location.pathname);
  return token;
}
