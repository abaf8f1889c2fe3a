import type { Deployment, Version } from '../../../api/objects';
import { download } from '../../api/client';
import { useAction, useResource } from '../../api/resource';
import { LogView } from '../../logs';
import { t } from '../../i18n';
import { StateBadge } from '../../ui/badge';
import { Page } from '../../ui/page';
import { Button } from '../../ui/button';
import { ProblemBanner } from '../../ui/state';
import { useLiveReload } from './live';

/** The log of a version, with a download of the complete log. */
export function VersionLogsPage({ id, number }: { id: string; number: string }) {
  const base = `/deployments/${id}`;
  const deployment = useResource<Deployment>(base);
  const version = useResource<Version>(`${base}/versions/${number}`);
  const saving = useAction(() => download(`${base}/versions/${number}/logs/download`, `${id}-v${number}.log.gz`));
  useLiveReload(`${base}/events/stream`, false, version.reload);
  return (
    <Page
      title={t('logs.ofVersion', { n: number })}
      aside={version.data !== undefined && <StateBadge state={version.data.state} />}
      crumbs={[
        { href: '/deployments', label: t('nav.deployments') },
        { href: base, label: deployment.data?.name ?? '…' },
        { href: `${base}/versions`, label: t('deployment.versions') },
        { href: `${base}/versions/${number}`, label: `v${number}` },
      ]}
      actions={
        <Button icon="download" isBusy={saving.isBusy} onClick={() => void saving.run()}>
          {t('logs.download')}
        </Button>
      }
    >
      <ProblemBanner problem={saving.problem} />
      <LogView path={`${base}/versions/${number}/logs`} />
    </Page>
  );
}
