import { useEffect, useState } from 'preact/hooks';
import type { Propagation } from '../../api/objects';
import { call } from '../api/client';
import { t } from '../i18n';
import { Icon } from '../ui/icons';

const POLL_MS = 1_000;

/** The number of gateways that have applied a change. Polls until all have. */
export function PropagationNote({ propagation }: { propagation: Propagation }) {
  const [shown, setShown] = useState(propagation);
  useEffect(() => setShown(propagation), [propagation]);
  const isDone = shown.applied >= shown.total;
  useEffect(() => {
    if (isDone) return undefined;
    let isOver = false;
    const timer = setTimeout(() => {
      // A failed poll is repeated instead of shown: the note is not important enough for an error.
      call<Propagation>('GET', `/propagation/${shown.rev}`).then(
        (next) => {
          if (!isOver) setShown(next);
        },
        () => {
          if (!isOver) setShown({ ...shown });
        },
      );
    }, POLL_MS);
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [shown, isDone]);
  const { applied, total, ceiling_s: ceilingS } = shown;
  return (
    <span
      class={`badge badge-${isDone ? 'ok' : 'info'}`}
      role="status"
      title={t('propagation.hint', { minutes: Math.round(ceilingS / 60) })}
    >
      {isDone ? <Icon name="check" size={13} /> : <span class="dot dot-moving" />}
      {t(isDone ? 'propagation.applied' : 'propagation.applying', { applied, total })}
    </span>
  );
}
