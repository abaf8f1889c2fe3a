import type { Reason } from '../../../api/objects';
import { neutralise } from '../../format/neutral';
import { exitCodeBeside } from '../../format/states';
import { serviceText, t } from '../../i18n';
import { Banner } from '../../ui/state';

const SHOWN_LINES = 40;

/** Explains a failure: its meaning, a remedy, the message of the service and the last log lines. */
export function ReasonView({
  of,
  logsHref,
  tone,
  isQueued,
}: {
  of: Reason;
  logsHref?: string;
  tone: 'bad' | 'warn';
  /** The version waits for resources. */
  isQueued: boolean;
}) {
  const lines = of.last_lines.slice(-SHOWN_LINES);
  const exitCode = exitCodeBeside(of);
  return (
    <div class="stack-small">
      <Banner
        tone={tone}
        title={
          <>
            {t(`reason.${of.code}`)} <code class="small">{of.code}</code>
          </>
        }
      >
        <p>
          {t(`reason.${of.code}.help`)}{' '}
          {of.code === 'downloading_model' ? (
            <a href="/data">{t('reason.showDownload')}</a>
          ) : (
            isQueued && t('reason.queued')
          )}
        </p>
        <p class="isolate soft">
          {neutralise(serviceText(of.message))}
          {exitCode !== null && ` · ${t('reason.exitCode', { code: exitCode })}`}
        </p>
        {logsHref !== undefined && (
          <div class="row">
            <a href={logsHref}>{t('reason.wholeLog')}</a>
          </div>
        )}
      </Banner>
      {lines.length > 0 && (
        <div class="log-tail" tabIndex={0} role="region" aria-label={t('reason.lastLines')}>
          {lines.map((line, i) => (
            <div key={i}>{neutralise(line)}</div>
          ))}
        </div>
      )}
    </div>
  );
}
