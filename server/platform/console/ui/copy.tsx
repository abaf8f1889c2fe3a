import { useEffect, useState } from 'preact/hooks';
import { t } from '../i18n';
import { Button } from './button';
import { toast } from './toast';

/** Pages over plain HTTP have no clipboard API and fall back to `execCommand`. */
async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

function copyBySelection(text: string): boolean {
  const area = document.createElement('textarea');
  area.value = text;
  area.className = 'visually-hidden';
  (document.querySelector('dialog[open]') ?? document.body).append(area);
  area.select();
  const isCopied = document.execCommand('copy');
  area.remove();
  return isCopied;
}

export function CopyButton({
  text,
  label,
  isSmall = true,
  children,
  look = 'quiet',
}: {
  text: string;
  label: string;
  isSmall?: boolean;
  children?: string;
  look?: 'quiet' | 'plain' | 'primary';
}) {
  const [isCopied, setCopied] = useState(false);
  useEffect(() => {
    if (!isCopied) return undefined;
    const timer = setTimeout(() => setCopied(false), 2_000);
    return () => clearTimeout(timer);
  }, [isCopied]);
  const copy = async () => {
    if (await copyText(text)) setCopied(true);
    else toast(t('copy.failed'), { isBad: true });
  };
  return (
    <>
      <Button
        look={look}
        isSmall={isSmall}
        icon={isCopied ? 'check' : 'copy'}
        label={children === undefined ? label : undefined}
        onClick={() => void copy()}
      >
        {children !== undefined && isCopied ? t('copy.done') : children}
      </Button>
      <span class="visually-hidden" role="status">
        {isCopied ? t('copy.done') : ''}
      </span>
    </>
  );
}

/** A value with a copy button. */
export function CopyLine({ text, label, isWrapped = false }: { text: string; label: string; isWrapped?: boolean }) {
  return (
    <div class={isWrapped ? 'copy-line copy-line-wrap' : 'copy-line'}>
      <code
        tabIndex={isWrapped ? undefined : 0}
        role={isWrapped ? undefined : 'textbox'}
        aria-readonly={isWrapped ? undefined : 'true'}
        aria-label={isWrapped ? undefined : label}
      >
        {text}
      </code>
      <CopyButton text={text} label={`${t('action.copy')}: ${label}`} />
    </div>
  );
}

export function CodeBlock({ text, label, isScrolled = false }: { text: string; label: string; isScrolled?: boolean }) {
  return (
    <div class={isScrolled ? 'code code-scroll' : 'code'}>
      <pre tabIndex={0} aria-label={label} role="region">
        <code>{text}</code>
      </pre>
      <CopyButton text={text} label={`${t('action.copy')}: ${label}`} />
    </div>
  );
}
