import { useState } from 'preact/hooks';
import type { MadeWebhook, OwnerReference, Webhook } from '../../../api/objects';
import { call } from '../../api/client';
import { fieldMessage } from '../../api/problem';
import { useAction } from '../../api/resource';
import { t } from '../../i18n';
import { OwnerField, selfOwner } from '../../spec/owner-field';
import { Button } from '../../ui/button';
import { Dialog } from '../../ui/dialog';
import { Checkbox, TextArea, TextField } from '../../ui/field';
import { ProblemBanner } from '../../ui/state';
import { EVENT_GROUPS, eventsOf, selectionOf } from './event-selection';

/** Creates or edits a webhook. */
export function WebhookDialog({
  edited,
  onClose,
  onDone,
}: {
  edited?: Webhook;
  onClose: () => void;
  onDone: (webhook: Webhook | MadeWebhook) => void;
}) {
  const [url, setUrl] = useState(edited?.url ?? '');
  const [selection, setSelection] = useState(selectionOf(edited?.events ?? ['deployment.*']));
  const [owner, setOwner] = useState<OwnerReference>(selfOwner);
  const [isSubmitted, setSubmitted] = useState(false);
  const events = eventsOf(selection);
  const action = useAction(async () => {
    const body = { url: url.trim(), events };
    onDone(
      edited === undefined
        ? await call<MadeWebhook>('POST', '/webhooks', { body: { ...body, owner } })
        : await call<Webhook>('PATCH', `/webhooks/${edited.id}`, { body, ifMatch: edited.rev }),
    );
  });
  const submit = () => {
    setSubmitted(true);
    if (url.trim() !== '' && events.length > 0) void action.run();
  };
  const title = t(edited === undefined ? 'webhooks.create' : 'webhooks.edit');
  const toggle = (group: string, isOn: boolean) =>
    setSelection({
      ...selection,
      groups: isOn ? [...selection.groups, group] : selection.groups.filter((other) => other !== group),
    });
  return (
    <Dialog
      title={title}
      isWide
      onClose={onClose}
      onSubmit={submit}
      foot={
        <>
          <Button onClick={onClose}>{t('action.cancel')}</Button>
          <Button type="submit" look="primary" isBusy={action.isBusy}>
            {edited === undefined ? title : t('action.save')}
          </Button>
        </>
      }
    >
      <ProblemBanner problem={action.problem} />
      <TextField
        label={t('webhooks.url')}
        hint={t('webhooks.urlHint')}
        isMono
        maxLength={2_000}
        autoFocus
        value={url}
        onInput={setUrl}
        placeholder="https://hooks.example.com/capstan"
        error={isSubmitted && url.trim() === '' ? t('spec.error.required') : fieldMessage(action.problem, '/url')}
      />
      <fieldset class="stack-small">
        <legend class="label">{t('webhooks.events')}</legend>
        <Checkbox
          label={t('webhooks.everything')}
          isChecked={selection.isEverything}
          onChange={(isEverything) => setSelection({ ...selection, isEverything })}
        />
        <div class="columns">
          {EVENT_GROUPS.map((group) => (
            <Checkbox
              key={group}
              label={t(`webhooks.group.${group}`)}
              isDisabled={selection.isEverything}
              isChecked={selection.isEverything || selection.groups.includes(group)}
              onChange={(isOn) => toggle(group, isOn)}
            />
          ))}
        </div>
        {isSubmitted && events.length === 0 && <div class="field-error">{t('webhooks.noEvents')}</div>}
      </fieldset>
      <TextArea
        label={t('webhooks.single')}
        hint={t('webhooks.singleHint')}
        isOptional
        isMono
        rows={2}
        value={selection.types}
        onInput={(types) => setSelection({ ...selection, types })}
        placeholder="version.error"
      />
      {edited === undefined && (
        <OwnerField value={owner} onChange={setOwner} minRole="admin" hint={t('webhooks.ownerHint')} />
      )}
    </Dialog>
  );
}
