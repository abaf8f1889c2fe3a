import type { ComponentChildren } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import { neutralise } from '../format/neutral';
import { t } from '../i18n';

let isFirst = true;

/** A page with its header. After navigation the title has the focus, so that screen readers announce the new page. */
export function Page({
  title,
  crumbs = [],
  aside,
  subtitle,
  actions,
  tabs,
  isNarrow = false,
  children,
}: {
  title: string;
  crumbs?: readonly { href: string; label: string }[];
  aside?: ComponentChildren;
  subtitle?: ComponentChildren;
  actions?: ComponentChildren;
  tabs?: ComponentChildren;
  isNarrow?: boolean;
  children: ComponentChildren;
}) {
  const heading = useRef<HTMLHeadingElement>(null);
  const shown = neutralise(title);
  useEffect(() => {
    document.title = shown === '' ? 'Capstan' : `${shown} · Capstan`;
  }, [shown]);
  useEffect(() => {
    if (!isFirst && !isWithinTabs(document.activeElement)) heading.current?.focus({ preventScroll: true });
    isFirst = false;
  }, []);
  return (
    <div class={isNarrow ? 'page page-narrow' : 'page'}>
      <header class="page-head">
        <div class="page-title">
          {crumbs.length > 0 && (
            <nav class="crumbs" aria-label={t('nav.path')}>
              <ol>
                {crumbs.map(({ href, label }) => (
                  <li key={href}>
                    <a href={href} class="isolate">
                      {neutralise(label)}
                    </a>
                  </li>
                ))}
              </ol>
            </nav>
          )}
          <div class="page-title-line">
            <h1 ref={heading} tabIndex={-1} class="isolate">
              {shown}
            </h1>
            {aside}
          </div>
          {subtitle !== undefined && <p>{subtitle}</p>}
        </div>
        {actions !== undefined && <div class="page-actions">{actions}</div>}
      </header>
      {tabs}
      {children}
    </div>
  );
}

/** Keyboard users who switch tabs keep the focus in the tab bar. */
function isWithinTabs(element: Element | null): boolean {
  return element !== null && element.closest('.tabs') !== null;
}

export function Tabs({
  label,
  tabs,
  current,
}: {
  label: string;
  tabs: readonly { href: string; label: string }[];
  current: string;
}) {
  const nav = useRef<HTMLElement>(null);
  // On a narrow screen the tab bar scrolls, so bring the open tab into view.
  useEffect(() => {
    const open = nav.current?.querySelector<HTMLElement>('[aria-current]');
    if (nav.current !== null && open !== null && open !== undefined)
      nav.current.scrollLeft =
        open.offsetLeft - nav.current.offsetLeft - (nav.current.clientWidth - open.offsetWidth) / 2;
  }, [current]);
  return (
    <nav ref={nav} class="tabs" aria-label={label}>
      {tabs.map((tab) => (
        <a key={tab.href} href={tab.href} aria-current={tab.href === current ? 'page' : undefined}>
          {tab.label}
        </a>
      ))}
    </nav>
  );
}

export function Card({
  title,
  aside,
  note,
  children,
  isFlush = false,
  isDanger = false,
  level = 2,
}: {
  title?: ComponentChildren;
  aside?: ComponentChildren;
  note?: ComponentChildren;
  children: ComponentChildren;
  isFlush?: boolean;
  isDanger?: boolean;
  level?: 2 | 3;
}) {
  const Heading = level === 2 ? 'h2' : 'h3';
  return (
    <section class={isDanger ? 'card card-danger' : 'card'}>
      {title !== undefined && (
        <div class="card-head">
          <Heading>{title}</Heading>
          {aside}
          {note !== undefined && <p>{note}</p>}
        </div>
      )}
      <div class={isFlush ? 'card-flush' : 'card-body'}>{children}</div>
    </section>
  );
}

/** A term and its value. Null and false are left out. */
export type Fact = readonly [term: string, value: ComponentChildren] | null | false;

export function Facts({ of }: { of: readonly Fact[] }) {
  return (
    <dl class="facts">
      {of.map(
        (fact) =>
          fact !== null &&
          fact !== false && (
            <div key={fact[0]} style={{ display: 'contents' }}>
              <dt>{fact[0]}</dt>
              <dd>{fact[1]}</dd>
            </div>
          ),
      )}
    </dl>
  );
}
