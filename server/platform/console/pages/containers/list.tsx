import type { Container } from '../../../api/objects';
import { mayChange } from '../../app/rights';
import { usePages } from '../../api/resource';
import { isMoving } from '../../format/states';
import { neutralise } from '../../format/neutral';
import { t } from '../../i18n';
import { computeText } from '../../spec/spec-view';
import { StateBadge } from '../../ui/badge';
import { LinkButton } from '../../ui/button';
import { Card, Page } from '../../ui/page';
import { Empty, Loaded } from '../../ui/state';
import { Table } from '../../ui/table';
import { Ago } from '../../ui/time';
import { useLiveReload } from '../deployments/live';

export function ContainerListPage() {
  const containers = usePages<Container>('/containers');
  useLiveReload('/events/stream', containers.data?.some(({ state }) => isMoving(state)) === true, containers.reload);
  const create = (
    <LinkButton href="/containers/new" look="primary" icon="plus">
      {t('containers.create')}
    </LinkButton>
  );
  return (
    <Page title={t('nav.containers')} subtitle={t('containers.subtitle')} actions={create}>
      <Card isFlush>
        <Loaded of={containers}>
          {(data) =>
            data.length === 0 ? (
              <Empty icon="containers" title={t('containers.empty')} actions={create}>
                {t('containers.emptyHint')}
              </Empty>
            ) : (
              <Table
                label={t('nav.containers')}
                rows={data}
                keyOf={({ id }) => id}
                hasMore={containers.hasMore}
                isLoading={containers.isLoading}
                onMore={containers.loadMore}
                columns={[
                  {
                    title: t('keys.name'),
                    cell: (container) => (
                      <div>
                        <a class="table-name isolate" href={`/containers/${container.id}`}>
                          {neutralise(container.name)}
                        </a>
                        <span class="table-sub isolate">{neutralise(container.owner.name)}</span>
                      </div>
                    ),
                  },
                  { title: t('field.state'), cell: ({ state }) => <StateBadge state={state} /> },
                  { title: t('spec.compute'), cell: ({ compute }) => computeText(compute) },
                  { title: t('field.updated'), cell: ({ updated_at }) => <Ago time={updated_at} /> },
                  {
                    title: t('field.actions'),
                    isActions: true,
                    cell: (container) =>
                      mayChange(container.owner) && (
                        <LinkButton isSmall icon="rocket" href={`/containers/${container.id}/deploy`}>
                          {t('deploy.oneClick')}
                        </LinkButton>
                      ),
                  },
                ]}
              />
            )
          }
        </Loaded>
      </Card>
    </Page>
  );
}
