import { useState } from 'preact/hooks';
import type { ComponentChildren } from 'preact';
import { t } from '../i18n';
import { Button } from './button';
import { CopyButton } from './copy';
import { Dialog } from './dialog';
import { Checkbox } from './field';
import { Banner } from './state';

/** Shows a secret that cannot be shown again. It closes only after the user confirms having copied the secret. */
export function SecretDialog({
  title,
  secret,
  label,
  children,
  onClose,
}: {
  title: string;
  secret: string;
  label: string;
  children?: ComponentChildren;
  onClose: () => void;
}) {
  const [isCopied, setCopied] = useState(false);
  return (
    <Dialog
      title={title}
      onClose={onClose}
      isPersistent
      foot={
        <Button look="primary" isDisabled={!isCopied} onClick={onClose}>
          {t('action.done')}
        </Button>
      }
    >
      <Banner tone="warn" title={t('secret.once')}>
        {t('secret.onceHint')}
      </Banner>
      <div class="secret">
        <div class="copy-line copy-line-wrap">
          <code>{secret}</code>
        </div>
        <div class="row">
          <CopyButton look="plain" isSmall={false} text={secret} label={label}>
            {t('action.copy')}
          </CopyButton>
          {children}
        </div>
      </div>
      <Checkbox label={t('secret.copied')} isChecked={isCopied} onChange={setCopied} />
    </Dialog>
  );
}
