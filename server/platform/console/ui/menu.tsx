import type { ComponentChildren } from 'preact';
import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import { Icon, type IconName } from './icons';

export interface MenuItem {
  label: string;
  icon?: IconName;
  isDanger?: boolean;
  isDisabled?: boolean;
  href?: string;
  onSelect?: () => void;
}

/** A button that opens a menu. Arrow keys move the focus. Escape closes the menu and focuses the button. */
export function Menu({
  label,
  items,
  button,
  isUp = false,
  title,
}: {
  label: string;
  items: readonly (MenuItem | 'line' | null | false)[];
  button?: (isOpen: boolean) => ComponentChildren;
  isUp?: boolean;
  title?: ComponentChildren;
}) {
  const [isOpen, setOpen] = useState(false);
  const root = useRef<HTMLDivElement>(null);
  const opener = useRef<HTMLButtonElement>(null);
  const list = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    if (!isOpen) return undefined;
    if (!isUp) placeBelow(list.current, opener.current);
    entries(root.current)[0]?.focus({ preventScroll: true });
    // A list that scrolls elsewhere, such as a live log, does not move the button.
    const scrolled = (event: Event) => {
      if (event.target instanceof Node && event.target.contains(root.current)) setOpen(false);
    };
    const outside = (event: Event) => {
      if (event.target instanceof Node && root.current?.contains(event.target) === false) setOpen(false);
    };
    document.addEventListener('pointerdown', outside);
    document.addEventListener('focusin', outside);
    document.addEventListener('scroll', scrolled, true);
    return () => {
      document.removeEventListener('scroll', scrolled, true);
      document.removeEventListener('pointerdown', outside);
      document.removeEventListener('focusin', outside);
    };
  }, [isOpen, isUp]);
  const close = () => {
    setOpen(false);
    opener.current?.focus();
  };
  return (
    <div
      class="menu"
      ref={root}
      onKeyDown={(event) => {
        if (isOpen) moveFocus(event, root.current, close);
      }}
    >
      <button
        ref={opener}
        type="button"
        class={button === undefined ? 'button button-icon' : 'account-button'}
        aria-haspopup="menu"
        aria-expanded={isOpen}
        aria-label={button === undefined ? label : undefined}
        title={button === undefined ? label : undefined}
        onClick={() => setOpen(!isOpen)}
      >
        {button === undefined ? <Icon name="more" /> : button(isOpen)}
      </button>
      {isOpen && (
        <div class="menu-list" ref={list} data-up={isUp || undefined}>
          {title !== undefined && <div class="menu-title">{title}</div>}
          <div role="menu" aria-label={label}>
            {items.map(
              (item, i) =>
                item !== null &&
                item !== false &&
                (item === 'line' ? (
                  <hr key={i} role="separator" />
                ) : (
                  <Entry key={item.label} item={item} close={close} />
                )),
            )}
          </div>
        </div>
      )}
    </div>
  );
}

const GAP_PX = 4;

/** Places the list in the window, because a table would cut it off. Above the button if it does not fit below. */
function placeBelow(list: HTMLElement | null, opener: HTMLElement | null): void {
  if (list === null || opener === null) return;
  const button = opener.getBoundingClientRect();
  const { width, height } = list.getBoundingClientRect();
  const below = button.bottom + GAP_PX;
  const above = button.top - GAP_PX - height;
  list.style.position = 'fixed';
  list.style.right = 'auto';
  list.style.left = `${Math.max(GAP_PX, button.right - width)}px`;
  list.style.top = `${below + height <= innerHeight || above < 0 ? below : above}px`;
}

function Entry({
  item: { label, icon, isDanger, isDisabled, href, onSelect },
  close,
}: {
  item: MenuItem;
  close: () => void;
}) {
  const content = (
    <>
      {icon !== undefined && <Icon name={icon} />}
      {label}
    </>
  );
  const danger = isDanger === true ? 'danger' : undefined;
  if (href !== undefined)
    return (
      <a role="menuitem" tabIndex={-1} href={href} class={danger} onClick={() => setTimeout(close)}>
        {content}
      </a>
    );
  return (
    <button
      type="button"
      role="menuitem"
      tabIndex={-1}
      class={danger}
      disabled={isDisabled}
      onClick={() => {
        close();
        onSelect?.();
      }}
    >
      {content}
    </button>
  );
}

function entries(root: HTMLElement | null): HTMLElement[] {
  return [...(root?.querySelectorAll<HTMLElement>('[role="menuitem"]:not(:disabled)') ?? [])];
}

function moveFocus(event: KeyboardEvent, root: HTMLElement | null, close: () => void): void {
  const all = entries(root);
  const at = all.indexOf(document.activeElement as HTMLElement);
  const moves: Record<string, number> = {
    ArrowDown: (at + 1) % all.length,
    ArrowUp: (at - 1 + all.length) % all.length,
    Home: 0,
    End: all.length - 1,
  };
  if (event.key === 'Escape') {
    event.stopPropagation();
    close();
  } else if (Object.hasOwn(moves, event.key)) {
    event.preventDefault();
    all[moves[event.key]]?.focus();
  }
}
