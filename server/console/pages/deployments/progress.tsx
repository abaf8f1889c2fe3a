import type { Version } from '../../../api/objects';
import { t } from '../../i18n';
import { Icon } from '../../ui/icons';
import { useNow } from '../../ui/time';
import { formatSeconds } from '../../format/times';

const STEPS = ['queued', 'preparing', 'starting', 'running'] as const;

/** The way of a version to readiness, while somebody waits for it. */
export function Progress({ of: { state, created_at, started_at, spec } }: { of: Version }) {
  const now = useNow(1_000);
  const at = state === 'backoff' ? 2 : STEPS.findIndex((step) => step === state);
  if (at === -1) return null;
  const since = Math.max(0, (now - Date.parse(started_at ?? created_at)) / 1000);
  return (
    <div class="stack-small">
      <ol class="steps" aria-label={t('progress.label')}>
        {STEPS.map((step, i) => (
          <li
            key={step}
            data-step={i < at || state === 'running' ? 'done' : i === at ? 'now' : 'next'}
            aria-current={i === at ? 'step' : undefined}
          >
            <span class="mark" aria-hidden="true">
              {i < at || state === 'running' ? <Icon name="check" size={12} /> : i + 1}
            </span>
            {t(`state.${step}`)}
          </li>
        ))}
      </ol>
      {state !== 'running' && (
        <p class="hint">
          {t('progress.since', { time: formatSeconds(since), limit: formatSeconds(spec.start_deadline_s) })}
        </p>
      )}
    </div>
  );
}
