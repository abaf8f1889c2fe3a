import type { ComponentChildren } from 'preact';
import { useEffect, useId, useRef, useState } from 'preact/hooks';
import { t } from '../i18n';
import type { ApiProblem } from '../api/problem';
import { Button } from './button';
import { TextField } from './field';
import { ProblemBanner } from './state';

/** A modal dialog. The browser keeps the focus inside. */
export function Dialog({
  title,
  onClose,
  children,
  foot,
  onSubmit,
  isWide = false,
  isPersistent = false,
}: {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
  foot?: ComponentChildren;
  onSubmit?: () => void;
  isWide?: boolean;
  /** The dialog has no close button and ignores Escape. */
  isPersistent?: boolean;
}) {
  const ref = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const dialog = ref.current;
    const before = document.activeElement;
    if (dialog === null) return undefined;
    if (!dialog.open) dialog.showModal();
    return () => {
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  // Browsers close a dialog at the second Escape even if `cancel` is prevented, so handle the key itself.
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== 'Escape' || event.defaultPrevented) return;
    event.preventDefault();
    if (!isPersistent) onClose();
  };
  const reopen = () => {
    if (isPersistent && ref.current?.isConnected === true) ref.current.showModal();
    else onClose();
  };
  const content = (
    <>
      <div class="dialog-head">
        <h2 id={id}>{title}</h2>
        {!isPersistent && <Button look="quiet" icon="close" label={t('action.close')} onClick={onClose} />}
      </div>
      <div class="dialog-body">{children}</div>
      {foot !== undefined && <div class="dialog-foot">{foot}</div>}
    </>
  );
  return (
    <dialog
      ref={ref}
      class={isWide ? 'dialog dialog-wide' : 'dialog'}
      aria-labelledby={id}
      onKeyDown={onKeyDown}
      onCancel={(event) => event.preventDefault()}
      onClose={reopen}
    >
      {onSubmit === undefined ? (
        <div class="dialog-form">{content}</div>
      ) : (
        <form
          class="dialog-form"
          noValidate
          onSubmit={(event) => {
            event.preventDefault();
            onSubmit();
          }}
        >
          {content}
        </form>
      )}
    </dialog>
  );
}

/** Asks for confirmation. With `name`, the user has to type that name. */
export function ConfirmDialog({
  title,
  children,
  confirm,
  name,
  isBusy,
  problem,
  onConfirm,
  onClose,
  isDanger = true,
}: {
  title: string;
  children: ComponentChildren;
  confirm: string;
  name?: string;
  isBusy: boolean;
  problem: ApiProblem | null;
  onConfirm: () => void;
  onClose: () => void;
  isDanger?: boolean;
}) {
  const [typed, setTyped] = useState('');
  const isReady = name === undefined || typed.trim() === name;
  return (
    <Dialog
      title={title}
      onClose={onClose}
      onSubmit={() => {
        if (isReady && !isBusy) onConfirm();
      }}
      foot={
        <>
          <Button onClick={onClose}>{t('action.cancel')}</Button>
          <Button type="submit" look={isDanger ? 'danger-solid' : 'primary'} isBusy={isBusy} isDisabled={!isReady}>
            {confirm}
          </Button>
        </>
      }
    >
      <div class="stack-small">{children}</div>
      {name !== undefined && (
        <TextField
          label={
            <>
              {t('confirm.typeName')} <strong class="isolate">{name}</strong>
            </>
          }
          value={typed}
          onInput={setTyped}
        />
      )}
      <ProblemBanner problem={problem} />
    </Dialog>
  );
}
