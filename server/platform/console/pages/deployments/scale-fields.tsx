import type { Deployment } from '../../../api/objects';
import { t } from '../../i18n';
import { Checkbox, TextField } from '../../ui/field';

export interface ScaleDraft {
  minReplicas: string;
  maxReplicas: string;
  sleeps: boolean;
  idleTimeoutS: string;
  coldStartWaitS: string;
}

export const DEFAULT_SCALE: ScaleDraft = {
  minReplicas: '1',
  maxReplicas: '1',
  sleeps: false,
  idleTimeoutS: '900',
  coldStartWaitS: '60',
};

export function scaleOf({ min_replicas, max_replicas, idle_timeout_s, cold_start_wait_s }: Deployment): ScaleDraft {
  return {
    minReplicas: String(min_replicas),
    maxReplicas: String(max_replicas),
    sleeps: idle_timeout_s !== null,
    idleTimeoutS: String(idle_timeout_s ?? 900),
    coldStartWaitS: String(cold_start_wait_s),
  };
}

export function isScale({ minReplicas, maxReplicas, sleeps, idleTimeoutS, coldStartWaitS }: ScaleDraft): boolean {
  const isInteger = (value: string, min: number, max: number) =>
    /^\d+$/.test(value) && Number(value) >= min && Number(value) <= max;
  return (
    isInteger(maxReplicas, 1, 64) &&
    isInteger(minReplicas, 0, Number(maxReplicas)) &&
    (!sleeps || isInteger(idleTimeoutS, 1, 31_536_000)) &&
    isInteger(coldStartWaitS, 0, 3_600)
  );
}

export function toScale({ minReplicas, maxReplicas, sleeps, idleTimeoutS, coldStartWaitS }: ScaleDraft) {
  return {
    min_replicas: Number(minReplicas),
    max_replicas: Number(maxReplicas),
    idle_timeout_s: sleeps ? Number(idleTimeoutS) : null,
    cold_start_wait_s: Number(coldStartWaitS),
  };
}

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
