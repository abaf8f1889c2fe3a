import { isScale, type ScaleDraft } from '../../format/scale';
import { t } from '../../i18n';
import { Checkbox, TextField } from '../../ui/field';

export function ScaleFields({ value, onChange }: { value: ScaleDraft; onChange: (value: ScaleDraft) => void }) {
  const set = (part: Partial<ScaleDraft>) => onChange({ ...value, ...part });
  return (
    <div class="stack">
      <div class="columns">
        <TextField
          label={t('scale.min')}
          inputMode="numeric"
          value={value.minReplicas}
          onInput={(minReplicas) => set({ minReplicas })}
        />
        <TextField
          label={t('scale.max')}
          inputMode="numeric"
          value={value.maxReplicas}
          onInput={(maxReplicas) => set({ maxReplicas })}
        />
      </div>
      <Checkbox
        label={t('scale.sleeps')}
        hint={t('scale.sleepsHint')}
        isChecked={value.sleeps}
        onChange={(sleeps) => set({ sleeps })}
      />
      {value.sleeps && (
        <div class="columns">
          <TextField
            label={t('scale.idle')}
            inputMode="numeric"
            unit={t('unit.seconds')}
            value={value.idleTimeoutS}
            onInput={(idleTimeoutS) => set({ idleTimeoutS })}
          />
          <TextField
            label={t('scale.wait')}
            inputMode="numeric"
            unit={t('unit.seconds')}
            value={value.coldStartWaitS}
            onInput={(coldStartWaitS) => set({ coldStartWaitS })}
          />
        </div>
      )}
      {!isScale(value) && (
        <div class="field-error" role="alert">
          {t('scale.error')}
        </div>
      )}
    </div>
  );
}
