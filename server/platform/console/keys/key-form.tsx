import { useState } from 'preact/hooks';
import type { Deployment, Key, MadeKey } from '../../api/objects';
import { call } from '../api/client';
import { useAction, usePages } from '../api/resource';
import { neutralise } from '../format/neutral';
import { t } from '../i18n';
import { withQuery } from '../router/match';
import { Button } from '../ui/button';
import { Dialog } from '../ui/dialog';
import { Checkbox, Choices, Field, Select, TextArea, TextField } from '../ui/field';
import { Loaded, ProblemBanner } from '../ui/state';
import { draftOfKey, EMPTY_KEY, type KeyDraft, keyProblems, toKeyEdit, toKeyRequest } from './draft';
import { keysPath, type KeyScope, ownerOf } from './scope';

/** Creates or edits a key. */
export function KeyDialog({
  scope,
  edited,
  onDone,
  onClose,
}: {
  scope: KeyScope;
  edited?: Key;
  onDone: (key: MadeKey) => void;
  onClose: () => void;
}) {
  const [start] = useState<KeyDraft>(() => (edited === undefined ? emptyDraft(scope) : draftOfKey(edited)));
  const [draft, setDraft] = useState(start);
  const [isSubmitted, setSubmitted] = useState(false);
  const set = (part: Partial<KeyDraft>) => setDraft({ ...draft, ...part });
  const problems = keyProblems(draft, Date.now());
  const errorOf = (field: keyof KeyDraft) =>
    isSubmitted && problems[field] !== undefined ? t(problems[field]) : undefined;
  const action = useAction(async () => {
    onDone(
      edited === undefined
        ? await call<MadeKey>('POST', keysPath(scope), { body: { ...toKeyRequest(draft), owner: ownerOf(scope) } })
        : await call<MadeKey>('PATCH', `/keys/${edited.id}`, { body: toKeyEdit(draft, start), ifMatch: edited.rev }),
    );
  });
  const submit = () => {
    setSubmitted(true);
    if (Object.keys(problems).length === 0) void action.run();
  };
  return (
    <Dialog
      title={edited === undefined ? t('keys.create') : t('keys.edit')}
      onClose={onClose}
      onSubmit={submit}
      isWide
      foot={
        <>
          <Button onClick={onClose}>{t('action.cancel')}</Button>
          <Button type="submit" look="primary" isBusy={action.isBusy}>
            {edited === undefined ? t('keys.create') : t('action.save')}
          </Button>
        </>
      }
    >
      <ProblemBanner problem={action.problem} />
      <TextField
        label={t('keys.name')}
        hint={t('keys.nameHint')}
        maxLength={100}
        autoFocus
        value={draft.name}
        onInput={(name) => set({ name })}
        error={errorOf('name')}
      />
      <Choices
        legend={t('keys.type')}
        value={draft.type}
        onChange={(type) => set({ type })}
        options={[
          {
            value: 'user-level',
            label: t('keys.type.user-level'),
            hint: t(ownerOf(scope).type === 'org' ? 'keys.type.orgHint' : 'keys.type.userHint'),
          },
          { value: 'deployment-level', label: t('keys.type.deployment-level'), hint: t('keys.type.deploymentHint') },
        ]}
      />
      {draft.type === 'deployment-level' && (
        <Bindings
          scope={scope}
          value={draft.deployments}
          onChange={(deployments) => set({ deployments })}
          error={errorOf('deployments')}
        />
      )}
      <TextField
        label={t('keys.expires')}
        hint={t('keys.expiresHint')}
        isOptional
        type="datetime-local"
        value={draft.expires}
        onInput={(expires) => set({ expires })}
        error={errorOf('expires')}
      />
      <details
        class="disclosure"
        open={draft.rpm + draft.tpm + draft.parallel + draft.cidrs + draft.budgetTokens !== ''}
      >
        <summary>{t('keys.limits')}</summary>
        <div class="stack">
          <div class="columns">
            <TextField
              label={t('keys.rpm')}
              inputMode="numeric"
              isOptional
              value={draft.rpm}
              onInput={(rpm) => set({ rpm })}
              error={errorOf('rpm')}
            />
            <TextField
              label={t('keys.tpm')}
              inputMode="numeric"
              isOptional
              value={draft.tpm}
              onInput={(tpm) => set({ tpm })}
              error={errorOf('tpm')}
            />
            <TextField
              label={t('keys.parallel')}
              inputMode="numeric"
              isOptional
              value={draft.parallel}
              onInput={(parallel) => set({ parallel })}
              error={errorOf('parallel')}
            />
          </div>
          <div class="columns">
            <TextField
              label={t('keys.budget')}
              inputMode="numeric"
              isOptional
              value={draft.budgetTokens}
              onInput={(budgetTokens) => set({ budgetTokens })}
              error={errorOf('budgetTokens')}
            />
            <Field label={t('keys.budgetPeriod')}>
              {(wiring) => (
                <Select
                  wiring={wiring}
                  value={draft.budgetPeriod}
                  onChange={(value) => set({ budgetPeriod: value as KeyDraft['budgetPeriod'] })}
                  options={(['day', 'week', 'month', 'total'] as const).map((period) => ({
                    value: period,
                    label: t(`keys.period.${period}`),
                  }))}
                />
              )}
            </Field>
          </div>
          <TextArea
            label={t('keys.cidrs')}
            hint={t('keys.cidrsHint')}
            isOptional
            isMono
            rows={2}
            value={draft.cidrs}
            onInput={(cidrs) => set({ cidrs })}
          />
        </div>
      </details>
    </Dialog>
  );
}

function emptyDraft(scope: KeyScope): KeyDraft {
  if (scope.type !== 'deployment') return EMPTY_KEY;
  return { ...EMPTY_KEY, type: 'deployment-level', deployments: [scope.deploymentId] };
}

function Bindings({
  scope,
  value,
  onChange,
  error,
}: {
  scope: KeyScope;
  value: string[];
  onChange: (value: string[]) => void;
  error?: string;
}) {
  const { id, type } = ownerOf(scope);
  const deployments = usePages<Deployment>(withQuery('/deployments', { owner: `${type}:${id}`, limit: 100 }));
  const toggle = (deploymentId: string, isBound: boolean) =>
    onChange(isBound ? [...value, deploymentId] : value.filter((other) => other !== deploymentId));
  return (
    <fieldset class="stack-small">
      <legend class="label">{t('keys.bound')}</legend>
      <Loaded of={deployments} lines={2}>
        {(data) =>
          data.length === 0 ? (
            <p class="hint">{t('keys.noDeployments')}</p>
          ) : (
            <div class="stack-small">
              {data.map((deployment) => (
                <Checkbox
                  key={deployment.id}
                  label={<span class="isolate">{neutralise(deployment.name)}</span>}
                  isChecked={value.includes(deployment.id)}
                  onChange={(isBound) => toggle(deployment.id, isBound)}
                />
              ))}
              {deployments.hasMore && (
                <div>
                  <Button isSmall isBusy={deployments.isLoading} onClick={deployments.loadMore}>
                    {t('action.more')}
                  </Button>
                </div>
              )}
            </div>
          )
        }
      </Loaded>
      {error !== undefined && <div class="field-error">{error}</div>}
    </fieldset>
  );
}
