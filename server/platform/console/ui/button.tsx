import type { ComponentChildren } from 'preact';
import { Icon, type IconName } from './icons';

type Look = 'plain' | 'primary' | 'danger' | 'danger-solid' | 'quiet';

export interface ButtonProps {
  children?: ComponentChildren;
  look?: Look;
  icon?: IconName;
  /** The accessible name of a button that shows only an icon. */
  label?: string;
  isSmall?: boolean;
  isBlock?: boolean;
  isBusy?: boolean;
  isDisabled?: boolean;
  type?: 'button' | 'submit';
  form?: string;
  onClick?: (event: MouseEvent) => void;
}

export function Button({
  children,
  look = 'plain',
  icon,
  label,
  isSmall,
  isBlock,
  isBusy = false,
  isDisabled = false,
  type = 'button',
  form,
  onClick,
}: ButtonProps) {
  return (
    <button
      type={type}
      form={form}
      class={classOf(look, children === undefined, isSmall, isBlock)}
      aria-label={label}
      title={children === undefined ? label : undefined}
      disabled={isDisabled}
      aria-disabled={isBusy || undefined}
      aria-busy={isBusy || undefined}
      onClick={isBusy ? (event) => event.preventDefault() : onClick}
    >
      {icon !== undefined && <Icon name={icon} size={isSmall === true ? 14 : 16} />}
      {children}
    </button>
  );
}

/** A link that looks like a button. */
export function LinkButton({
  children,
  href,
  look = 'plain',
  icon,
  isSmall,
}: {
  children: ComponentChildren;
  href: string;
  look?: Look;
  icon?: IconName;
  isSmall?: boolean;
}) {
  return (
    <a href={href} class={classOf(look, false, isSmall)}>
      {icon !== undefined && <Icon name={icon} size={isSmall === true ? 14 : 16} />}
      {children}
    </a>
  );
}

function classOf(look: Look, isIcon: boolean, isSmall = false, isBlock = false): string {
  return [
    'button',
    look !== 'plain' && `button-${look}`,
    isIcon && 'button-icon',
    isSmall && 'button-small',
    isBlock && 'button-block',
  ]
    .filter(Boolean)
    .join(' ');
}
