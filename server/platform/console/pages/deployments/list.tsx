import { useEffect, useRef, useState } from 'preact/hooks';
import type { Deployment } from '../../../api/objects';
import { me } from '../../app/session';
import { usePages } from '../../api/resource';
import { neutralise } from '../../format/neutral';
import { isMoving } from '../../format/states';
import { t } from '../../i18n';
import { navigate, useLocation } from '../../router/location';
import { withQuery } from '../../router/match';
import { StateBadge } from '../../ui/badge';
import { Button, LinkButton } from '../../ui/button';
import { CopyButton } from '../../ui/copy';
import { Select } from '../../ui/field';
import { Icon } from '../../ui/icons';
import { Card, Page } from '../../ui/page';
import { Empty, Loaded } from '../../ui/state';
import { Table } from '../../ui/table';
import { Ago } from '../../ui/time';
import { useLiveReload } from './live';

const STATES = [
  'pending',
  'running',
  'updating',
  'update_failed',
  'degraded',
  'scaled_to_zero',
  'paused',
  'stopping',
  'deleting',
  'failed',
] as const satisfies readonly Deployment['state'][];
const TYPING_MS = 250;

export function DeploymentListPage() {
  const { query } = useLocation();
  const filter = { owner: query.get('owner'), state: query.get('state'), q: query.get('q') };
  const deployments = usePages<Deployment>(withQuery('/deployments', filter));
  useLiveReload('/events/stream', deployments.data?.some(({ state }) => isMoving(state)) === true, deployments.reload);
  const isFiltered = Object.values(filter).some((value) => value !== null);
  const set = (part: Partial<typeof filter>) =>
    navigate(withQuery('/deployments', { ...filter, ...part }), { replace: true });
  const create = (
    <LinkButton href="/deployments/new" look="primary" icon="plus">
      {t('deployments.create')}
    </LinkButton>
  );
  return (
    <Page title={t('nav.deployments')} subtitle={t('deployments.subtitle')} actions={create}>
      <div class="stack">
        {(isFiltered || (deployments.data?.length ?? 0) > 0) && <Filters filter={filter} set={set} />}
        <Card isFlush>
          <Loaded of={deployments}>
            {(data) => {
              if (data.length > 0)
                return (
                  <DeploymentTable
                    rows={data}
                    hasMore={deployments.hasMore}
                    isLoading={deployments.isLoading}
                    onMore={deployments.loadMore}
                  />
                );
              if (isFiltered)
                return (
                  <Empty
                    icon="search"
                    title={t('deployments.noMatch')}
                    actions={
                      <Button onClick={() => navigate('/deployments', { replace: true })}>
                        {t('action.clearFilter')}
                      </Button>
                    }
                  />
                );
              return (
                <Empty
                  icon="deployments"
                  title={t('deployments.empty')}
                  actions={
                    <>
                      {create}
                      <LinkButton href="/containers" icon="containers">
                        {t('deployments.fromContainer')}
                      </LinkButton>
                    </>
                  }
                >
                  {t('deployments.emptyHint')}
                </Empty>
              );
            }}
          </Loaded>
        </Card>
      </div>
    </Page>
  );
}

interface Filter {
  owner: string | null;
  state: string | null;
  q: string | null;
}

function Filters({ filter, set }: { filter: Filter; set: (part: Partial<Filter>) => void }) {
  const [text, setText] = useState(filter.q ?? '');
  const account = me();
  const orNull = (value: string) => (value === '' ? null : value);
  const search = useRef<(q: string) => void>(() => undefined);
  search.current = (q) => {
    if (q !== (filter.q ?? '')) set({ q: orNull(q) });
  };
  useEffect(() => {
    const timer = setTimeout(() => search.current(text), TYPING_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return (
    <div class="filters" role="search">
      <input
        class="input"
        type="search"
        aria-label={t('deployments.search')}
        placeholder={t('deployments.search')}
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
      />
      <Select
        label={t('field.state')}
        value={filter.state ?? ''}
        onChange={(state) => set({ state: orNull(state) })}
        options={[
          { value: '', label: t('deployments.anyState') },
          ...STATES.map((state) => ({ value: state, label: t(`state.${state}`) })),
        ]}
      />
      {account.organizations.length > 0 && (
        <Select
          label={t('field.owner')}
          value={filter.owner ?? ''}
          onChange={(owner) => set({ owner: orNull(owner) })}
          options={[
            { value: '', label: t('deployments.anyOwner') },
            { value: `user:${account.id}`, label: t('owner.self') },
            ...account.organizations.map(({ id, name }) => ({ value: `org:${id}`, label: neutralise(name) })),
          ]}
        />
      )}
    </div>
  );
}

function DeploymentTable({
  rows,
  hasMore,
  isLoading,
  onMore,
}: {
  rows: readonly Deployment[];
  hasMore: boolean;
  isLoading: boolean;
  onMore: () => void;
}) {
  return (
    <Table
      label={t('nav.deployments')}
      rows={rows}
      keyOf={({ id }) => id}
      hasMore={hasMore}
      isLoading={isLoading}
      onMore={onMore}
      columns={[
        {
          title: t('keys.name'),
          cell: (deployment) => (
            <div>
              <a class="table-name isolate" href={`/deployments/${deployment.id}`}>
                {neutralise(deployment.name)}
              </a>
              <span class="table-sub isolate">{neutralise(deployment.owner.name)}</span>
            </div>
          ),
        },
        { title: t('field.state'), cell: ({ state }) => <StateBadge state={state} /> },
        {
          title: t('deployments.version'),
          cell: ({ active_version, upstream }) => {
            const version = upstream?.version ?? active_version;
            return <span class="numeric">{version === null ? '–' : `v${version}`}</span>;
          },
        },
        {
          title: t('deployments.replicas'),
          cell: ({ ready_replicas, max_replicas, upstream }) => (
            <span class="numeric">{upstream === null ? `${ready_replicas} / ${max_replicas}` : '–'}</span>
          ),
        },
        {
          title: t('deployments.access'),
          cell: ({ access_control }) => (
            <span class="row-tight soft nowrap">
              <Icon name={access_control ? 'lock' : 'globe'} size={14} />
              {t(access_control ? 'access.restricted' : 'access.public')}
            </span>
          ),
        },
        { title: t('field.updated'), cell: ({ updated_at }) => <Ago time={updated_at} /> },
        {
          title: t('field.actions'),
          isActions: true,
          cell: ({ url, name }) => (
            <CopyButton text={url} label={t('deployments.copyUrl', { name: neutralise(name) })} />
          ),
        },
      ]}
    />
  );
}
