import { type ApiProblem, fieldMessage } from '../api/problem';
import { t } from '../i18n';
import { Checkbox, TextField } from '../ui/field';
import { INTERFACES, isConvertible, isUrl, type UpstreamDraft } from './upstream-draft';

/** The fields of an upstream server. */
export function UpstreamFields({
  draft,
  onChange,
  hasSecret,
  isChecked,
  problem,
}: {
  draft: UpstreamDraft;
  onChange: (draft: UpstreamDraft) => void;
  /** A key is stored. */
  hasSecret: boolean;
  /** Shows what is missing. */
  isChecked: boolean;
  problem: ApiProblem | null;
}) {
  const set = (part: Partial<UpstreamDraft>) => onChange({ ...draft, ...part });
  return (
    <div class="stack">
      <TextField
        label={t('upstream.url')}
        hint={t('upstream.urlHint')}
        placeholder="https://api.example.com/v1"
        maxLength={2_000}
        isMono
        value={draft.url}
        onInput={(url) => set({ url })}
        error={
          isChecked && !isUrl(draft.url)
            ? t('upstream.urlError')
            : (fieldMessage(problem, '/upstream/url') ?? fieldMessage(problem, '/upstream.url'))
        }
      />
      <TextField
        label={t('upstream.secret')}
        hint={t(hasSecret ? 'upstream.secretKeep' : 'upstream.secretHint')}
        type="password"
        autocomplete="new-password"
        maxLength={1_000}
        value={draft.secret}
        onInput={(secret) => set({ secret })}
        error={fieldMessage(problem, '/upstream/secret')}
        isOptional
      />
      {hasSecret && (
        <Checkbox
          label={t('upstream.removeSecret')}
          isChecked={draft.removesSecret}
          onChange={(removesSecret) => set({ removesSecret })}
        />
      )}
      <TextField
        label={t('upstream.model')}
        hint={t('upstream.modelHint')}
        maxLength={200}
        value={draft.model}
        onInput={(model) => set({ model })}
        error={fieldMessage(problem, '/upstream/model')}
        isOptional
      />
      <fieldset class="stack-small">
        <legend>{t('upstream.interfaces')}</legend>
        {INTERFACES.map((name) => (
          <Checkbox
            key={name}
            label={t(`upstream.interface.${name}`)}
            isChecked={draft.interfaces.includes(name)}
            onChange={(isOn) =>
              set({
                interfaces: INTERFACES.filter((other) => (other === name ? isOn : draft.interfaces.includes(other))),
              })
            }
          />
        ))}
        <p class="hint">{t('upstream.interfacesHint')}</p>
        {!isConvertible(draft.interfaces) && (
          <span class="field-error" role="alert">
            {t('upstream.interfacesError')}
          </span>
        )}
      </fieldset>
    </div>
  );
}
