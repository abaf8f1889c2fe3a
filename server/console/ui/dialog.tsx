import type { ComponentChildren } from 'preact';
import { useEffect, useId, useRef, useState } from 'preact/hooks';
import { t } from '../i18n';
import type { ApiProblem } from '../api/problem';
import { Button } from './button';
import { TextField } from './field';
import { ProblemBanner } from './state';

/** A modal window: the browser keeps the focus within, and closes it by Escape. */
export function Dialog({
  title,
  onClose,
  children,
  foot,
  onSubmit,
  isWide = false,
  isKept = false,
}: {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
  foot?: ComponentChildren;
  onSubmit?: () => void;
  isWide?: boolean;
  /** Neither Escape nor a cross closes it. */
  isKept?: boolean;
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
  // NOTE: browsers close a dialog at the second Escape whatever becomes of the first; only the key itself can be held back.
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== 'Escape' || event.defaultPrevented) return;
    event.preventDefault();
    if (!isKept) onClose();
  };
  const reopen = () => {
    if (isKept && ref.current?.isConnected === true) ref.current.showModal();
    else onClose();
  };
  const content = (
    <>
      <div class="dialog-head">
        <h2 id={id}>{title}</h2>
        {!isKept && <Button look="quiet" icon="close" label={t('action.close')} onClick={onClose} />}
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

/** Asks before something that cannot be taken back; with `name`, for the name to be typed. */
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
