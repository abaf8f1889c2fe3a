import type { Version } from '../../../api/objects';
import { locale, t } from '../../i18n';
import { Icon } from '../../ui/icons';
import { useNow } from '../../ui/time';
import { formatSeconds } from '../../format/times';

const STEPS = ['queued', 'preparing', 'starting', 'running'] as const;

/** The start-up steps of a version. */
export function Progress({ of: { state, started_at, spec } }: { of: Version }) {
  const now = useNow(1_000);
  const current = state === 'backoff' ? STEPS.indexOf('starting') : STEPS.findIndex((step) => step === state);
  if (current === -1) return null;
  const isDone = (i: number) => i < current || state === 'running';
  const stepState = (i: number) => {
    if (isDone(i)) return 'done';
    return i === current ? 'now' : 'next';
  };
  return (
    <div class="stack-small">
      <ol class="steps" aria-label={t('progress.label')}>
        {STEPS.map((step, i) => (
          <li key={step} data-step={stepState(i)} aria-current={i === current ? 'step' : undefined}>
            <span class="mark" aria-hidden="true">
              {isDone(i) ? <Icon name="check" size={12} /> : i + 1}
            </span>
            {t(`state.${step}`)}
          </li>
        ))}
      </ol>
      {state === 'starting' && started_at !== null && (
        <p class="hint">
          {t('progress.since', {
            time: formatSeconds((now - Date.parse(started_at)) / 1000, locale()),
            limit: formatSeconds(spec.start_deadline_s, locale()),
          })}
        </p>
      )}
    </div>
  );
}
