import { useState } from 'preact/hooks';
import type { Deployment, Version } from '../../../api/objects';
import { mayChange } from '../../app/rights';
import { call } from '../../api/client';
import { type PageList, useAction } from '../../api/resource';
import { neutralise } from '../../format/neutral';
import { t } from '../../i18n';
import { StateBadge } from '../../ui/badge';
import { LinkButton } from '../../ui/button';
import { ConfirmDialog } from '../../ui/dialog';
import { Menu } from '../../ui/menu';
import { Card } from '../../ui/page';
import { Empty, Loaded } from '../../ui/state';
import { Table } from '../../ui/table';
import { Ago } from '../../ui/time';
import { toast } from '../../ui/toast';
import { CanaryCard } from './canary-card';

/** All versions of a deployment, newest first. */
export function VersionsTab({
  of,
  versions,
  onChange,
}: {
  of: Deployment;
  versions: PageList<Version>;
  onChange: (deployment: Deployment | undefined) => void;
}) {
  const [asked, setAsked] = useState<{ type: 'activate' | 'delete'; version: Version } | null>(null);
  const base = `/deployments/${of.id}/versions`;
  const isMine = mayChange(of.owner);
  const card = (
    <Card
      title={t('deployment.versions')}
      note={t('versions.note')}
      isFlush
      aside={
        isMine && (
          <LinkButton isSmall look="primary" icon="plus" href={`${base}/new`}>
            {t('versions.create')}
          </LinkButton>
        )
      }
    >
      <Loaded of={versions}>
        {(data) =>
          data.length === 0 ? (
            <Empty level={3} icon="deployments" title={t('versions.empty')} />
          ) : (
            <Table
              label={t('deployment.versions')}
              rows={data}
              keyOf={({ id }) => id}
              hasMore={versions.hasMore}
              isLoading={versions.isLoading}
              onMore={versions.loadMore}
              columns={[
                {
                  title: t('deployments.version'),
                  cell: (version) => (
                    <div class="row-tight">
                      <a class="table-name" href={`${base}/${version.number}`}>
                        v{version.number}
                      </a>
                      {version.is_active && <span class="tag">{t('versions.active')}</span>}
                      {of.target_version === version.number && !version.is_active && version.state !== 'error' && (
                        <span class="tag">{t('versions.target')}</span>
                      )}
                    </div>
                  ),
                },
                {
                  title: t('field.state'),
                  cell: (version) => (
                    <div>
                      <StateBadge state={version.state} />
                      {version.reason !== null && <span class="table-sub">{t(`reason.${version.reason.code}`)}</span>}
                    </div>
                  ),
                },
                {
                  title: t('versions.noteField'),
                  cell: ({ note }) =>
                    note === null || note === '' ? (
                      <span class="faint">–</span>
                    ) : (
                      <span class="isolate">{neutralise(note)}</span>
                    ),
                },
                { title: t('field.created'), cell: ({ created_at }) => <Ago time={created_at} /> },
                {
                  title: t('logs.title'),
                  cell: ({ number }) => <a href={`${base}/${number}/logs`}>{t('logs.title')}</a>,
                },
                {
                  title: t('field.actions'),
                  isActions: true,
                  cell: (version) =>
                    isMine && (
                      <Menu
                        label={t('versions.actionsOf', { n: version.number })}
                        items={[
                          { label: t('versions.details'), icon: 'info', href: `${base}/${version.number}` },
                          { label: t('versions.derive'), icon: 'copy', href: `${base}/new?from=${version.number}` },
                          {
                            label: t(isOlder(version, of) ? 'versions.rollBack' : 'versions.rollOut'),
                            icon: 'rocket',
                            isDisabled: version.is_active,
                            onSelect: () => setAsked({ type: 'activate', version }),
                          },
                          'line',
                          {
                            label: t('action.delete'),
                            icon: 'trash',
                            isDanger: true,
                            isDisabled: version.is_active || (version.state !== 'stopped' && version.state !== 'error'),
                            onSelect: () => setAsked({ type: 'delete', version }),
                          },
                        ]}
                      />
                    ),
                },
              ]}
            />
          )
        }
      </Loaded>
      {asked !== null && (
        <VersionDialog
          of={of}
          version={asked.version}
          type={asked.type}
          onClose={() => setAsked(null)}
          onDone={(next) => {
            setAsked(null);
            onChange(next);
          }}
        />
      )}
    </Card>
  );
  return (
    <div class="stack">
      <CanaryCard of={of} />
      {card}
    </div>
  );
}

export function isOlder(version: Version, { active_version }: Deployment): boolean {
  return active_version !== null && version.number < active_version;
}

/** Confirms the roll-out or deletion of a version. */
export function VersionDialog({
  of,
  version,
  type,
  onClose,
  onDone,
}: {
  of: Deployment;
  version: Version;
  type: 'activate' | 'delete';
  onClose: () => void;
  onDone: (deployment: Deployment | undefined) => void;
}) {
  const path = `/deployments/${of.id}/versions/${version.number}`;
  const action = useAction(async () => {
    if (type === 'activate') await call('POST', `${path}/activate`);
    else await call('DELETE', path);
    toast(t(type === 'activate' ? 'versions.activated' : 'versions.deleted', { n: version.number }));
    onDone(undefined);
  });
  const verb = t(isOlder(version, of) ? 'versions.rollBack' : 'versions.rollOut');
  return (
    <ConfirmDialog
      title={type === 'delete' ? t('versions.deleteTitle', { n: version.number }) : `${verb}: v${version.number}`}
      confirm={type === 'delete' ? t('action.delete') : verb}
      isDanger={type === 'delete'}
      isBusy={action.isBusy}
      problem={action.problem}
      onClose={onClose}
      onConfirm={() => void action.run()}
    >
      <p>{t(type === 'delete' ? 'versions.deleteText' : 'versions.activateText', { n: version.number })}</p>
      {type === 'activate' && <p class="soft">{t(`strategy.${of.strategy}.hint`)}</p>}
    </ConfirmDialog>
  );
}
