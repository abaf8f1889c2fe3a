import type { DataPull } from '../../api/objects';
import { formatBytes } from '../format/numbers';
import { neutralise } from '../format/neutral';
import { locale, lookUp, t } from '../i18n';
import { Banner } from '../ui/state';

/** Whether the download waits or runs. */
export function isPulling(pull: DataPull | null): boolean {
  return pull?.state === 'pending' || pull?.state === 'running';
}

/** The state of a download, with a bar while it runs. */
export function PullStatus({ of }: { of: DataPull }) {
  const { state, done_bytes: done, total_bytes: total, bytes_per_second: speed } = of;
  const bytes = (value: number) => formatBytes(value, locale());
  const hasBar = (isPulling(of) || state === 'cancelled') && total !== null && total > 0;
  return (
    <div class="pull" data-state={state}>
      <span class={state === 'failed' ? 'pull-failed' : 'faint'}>{t(`data.pull.${state}`)}</span>
      {hasBar && (
        <>
          <progress aria-label={t('data.pull.label')} max={total} value={Math.min(done, total)} />
          <span class="table-sub numeric">
            {t('data.pull.progress', { done: bytes(done), total: bytes(total) })}
            {speed !== null && speed > 0 && ` · ${t('data.pull.speed', { speed: bytes(speed) })}`}
          </span>
        </>
      )}
    </div>
  );
}

/** Why a download failed, and what to do. */
export function PullFailure({ of: { error } }: { of: DataPull }) {
  if (error === null) return null;
  return (
    <Banner tone="bad" title={t('data.pull.failed')}>
      <p class="isolate">{neutralise(error.message)}</p>
      <p>{lookUp(`data.pull.help.${error.code}`) ?? t('data.pull.help.other')}</p>
    </Banner>
  );
}
