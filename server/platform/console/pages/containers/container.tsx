import { useState } from 'preact/hooks';
import type { Container, Deployment, Image } from '../../../api/objects';
import { mayChange } from '../../app/rights';
import { call } from '../../api/client';
import { describeProblem } from '../../api/describe';
import { useAction, usePages, useResource } from '../../api/resource';
import { isMoving } from '../../format/states';
import { neutralise } from '../../format/neutral';
import { serviceText, t } from '../../i18n';
import { LogView } from '../../logs';
import { navigate } from '../../router/location';
import { withQuery } from '../../router/match';
import { imageName } from '../../spec/choices';
import { SpecView } from '../../spec/spec-view';
import { StateBadge } from '../../ui/badge';
import { Button, LinkButton } from '../../ui/button';
import { ConfirmDialog } from '../../ui/dialog';
import { CopyLine } from '../../ui/copy';
import { Menu } from '../../ui/menu';
import { Card, Facts, Page } from '../../ui/page';
import { Banner, Loaded } from '../../ui/state';
import { Ago, At } from '../../ui/time';
import { toast } from '../../ui/toast';
import { useLiveReload } from '../deployments/live';

export function ContainerPage({ id }: { id: string }) {
  const container = useResource<Container>(`/containers/${id}`);
  const images = usePages<Image>('/images?limit=100');
  const { data } = container;
  useLiveReload('/events/stream', data !== undefined && isMoving(data.state), container.reload);
  return (
    <Page
      title={data?.name ?? t('containers.one')}
      crumbs={[{ href: '/containers', label: t('nav.containers') }]}
      aside={
        data !== undefined && (
          <span role="status">
            <StateBadge state={data.state} />
          </span>
        )
      }
      actions={
        data !== undefined &&
        mayChange(data.owner) && (
          <Actions of={data} onChange={(next) => (next === undefined ? container.reload() : container.set(next))} />
        )
      }
    >
      <Loaded of={container} lines={5}>
        {(shown) => (
          <div class="stack">
            {shown.reason !== null && (
              <Banner {...bannerOf(shown.state)}>
                <span class="isolate">{neutralise(serviceText(shown.reason))}</span>
              </Banner>
            )}
            <div class="split">
              <Card title={t('versions.spec')}>
                <SpecView spec={shown} imageName={imageName(images.data, shown.image_id)} />
              </Card>
              <div class="stack">
                <Card title={t('containers.about')}>
                  <div class="stack">
                    {shown.url !== null && (
                      <div class="stack-small">
                        <span class="label">{t('containers.url')}</span>
                        <CopyLine text={shown.url} label={t('containers.url')} />
                        <span class="hint">{t('containers.urlHint')}</span>
                      </div>
                    )}
                    <Facts
                      of={[
                        [t('field.owner'), <span class="isolate">{neutralise(shown.owner.name)}</span>],
                        [t('field.created'), <At time={shown.created_at} />],
                        [t('field.updated'), <Ago time={shown.updated_at} />],
                        [t('field.id'), <code class="small">{shown.id}</code>],
                      ]}
                    />
                  </div>
                </Card>
                <Deployments of={shown} />
              </div>
            </div>
            <Card title={t('logs.title')}>
              <LogView path={`/containers/${id}/logs`} />
            </Card>
          </div>
        )}
      </Loaded>
    </Page>
  );
}

function Actions({ of, onChange }: { of: Container; onChange: (container: Container | undefined) => void }) {
  const [isDeleting, setDeleting] = useState(false);
  const command = useAction(async (name: 'start' | 'stop') =>
    onChange(await call<Container | undefined>('POST', `/containers/${of.id}/${name}`)),
  );
  const remove = useAction(async () => {
    await call('DELETE', withQuery(`/containers/${of.id}`, { confirm: of.name }), { ifMatch: of.rev });
    toast(t('containers.deleted'));
    navigate('/containers');
  });
  const canStart = of.state === 'stopped' || of.state === 'error';
  const canStop = of.state === 'queued' || of.state === 'preparing' || of.state === 'running';
  return (
    <>
      {command.problem !== null && (
        <span class="field-error" role="alert">
          {Object.values(describeProblem(command.problem))
            .filter((part) => part !== '')
            .join(' – ')}
        </span>
      )}
      <LinkButton look="primary" icon="rocket" href={`/containers/${of.id}/deploy`}>
        {t('deploy.oneClick')}
      </LinkButton>
      {canStart && (
        <Button icon="play" isBusy={command.isBusy} onClick={() => void command.run('start')}>
          {t('containers.start')}
        </Button>
      )}
      {canStop && (
        <Button icon="stop" isBusy={command.isBusy} onClick={() => void command.run('stop')}>
          {t('containers.stop')}
        </Button>
      )}
      <Menu
        label={t('field.actions')}
        items={[
          { label: t('action.edit'), icon: 'edit', href: `/containers/${of.id}/edit` },
          'line',
          {
            label: t('action.delete'),
            icon: 'trash',
            isDanger: true,
            isDisabled: !canStart,
            onSelect: () => setDeleting(true),
          },
        ]}
      />
      {isDeleting && (
        <ConfirmDialog
          title={t('containers.deleteTitle')}
          confirm={t('containers.deleteConfirm')}
          name={neutralise(of.name)}
          isBusy={remove.isBusy}
          problem={remove.problem}
          onClose={() => setDeleting(false)}
          onConfirm={() => void remove.run()}
        >
          <p>{t('containers.deleteText')}</p>
        </ConfirmDialog>
      )}
    </>
  );
}

/** The reason of a container says what it waits for, or why it stopped or failed. */
function bannerOf(state: Container['state']): { tone: 'info' | 'warn' | 'bad'; title: string } {
  if (state === 'queued') return { tone: 'info', title: t('containers.queued') };
  if (state === 'stopped') return { tone: 'warn', title: t('containers.ended') };
  return { tone: 'bad', title: t('containers.failed') };
}

/** The deployments that were created from the container. */
function Deployments({ of }: { of: Container }) {
  const deployments = usePages<Deployment>(
    withQuery('/deployments', { owner: `${of.owner.type}:${of.owner.id}`, limit: 100 }),
  );
  const created = deployments.data?.filter(({ source_container_id }) => source_container_id === of.id) ?? [];
  if (created.length === 0) return null;
  return (
    <Card title={t('containers.deployments')}>
      <ul class="stack-small">
        {created.map((deployment) => (
          <li key={deployment.id} class="row">
            <a class="isolate" href={`/deployments/${deployment.id}`}>
              {neutralise(deployment.name)}
            </a>
            <StateBadge state={deployment.state} />
          </li>
        ))}
      </ul>
    </Card>
  );
}
