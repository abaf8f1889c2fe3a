import { useEffect, useState } from 'preact/hooks';
import type { Capacity, DataSource, Image } from '../../api/objects';
import { me } from '../app/session';
import { usePages, useResource } from '../api/resource';
import { formatCores, formatMegabytes } from '../format/numbers';
import { neutralise } from '../format/neutral';
import { locale, serviceText, t } from '../i18n';
import { Button } from '../ui/button';
import { Menu, type MenuItem } from '../ui/menu';
import { Card, Page } from '../ui/page';
import { Banner, Empty, Loaded } from '../ui/state';
import { Table } from '../ui/table';
import { Ago } from '../ui/time';
import { ImageDialog, RemoveDialog } from './data-dialogs';
import { PullDialog } from './pull-dialog';
import { isPulling, PullStatus } from './pull-status';
import { MeasuredSize, SourceDetails, SourceDialog } from './source-dialogs';

/** Poll interval while a data source is being measured or downloaded. */
const POLL_MS = 2_000;

/** Compute, data sources and images. */
export function DataPage() {
  const images = usePages<Image>('/images');
  const sources = usePages<DataSource>('/data-sources');
  const compute = useResource<Capacity>('/compute');
  const [open, setOpen] = useState<
    | 'source'
    | 'image'
    | 'pull'
    | { pull: DataSource }
    | { of: DataSource | Image; path: '/data-sources' | '/images' }
    | { show: DataSource }
    | { edit: DataSource }
    | null
  >(null);
  const isAdmin = me().is_admin;
  const reloadSources = sources.reload;
  const isBusy = sources.data?.some(isChanging) === true;
  useEffect(() => {
    if (!isBusy) return undefined;
    const timer = setInterval(reloadSources, POLL_MS);
    return () => clearInterval(timer);
  }, [isBusy, reloadSources]);
  const items = (source: DataSource): (MenuItem | 'line' | false)[] => [
    { label: t('data.details'), icon: 'info', onSelect: () => setOpen({ show: source }) },
    isAdmin && { label: t('action.edit'), icon: 'edit', onSelect: () => setOpen({ edit: source }) },
    source.pull !== null &&
      !isPulling(source.pull) && {
        label: t('data.pullAgain'),
        icon: 'download',
        onSelect: () => setOpen({ pull: source }),
      },
    (isAdmin || source.pull !== null) && 'line',
    (isAdmin || source.pull !== null) && {
      label: t('action.delete'),
      icon: 'trash',
      isDanger: true,
      onSelect: () => setOpen({ of: source, path: '/data-sources' }),
    },
  ];
  const done = () => {
    setOpen(null);
    sources.reload();
    images.reload();
  };
  return (
    <Page title={t('nav.data')} subtitle={t('data.subtitle')}>
      <div class="stack">
        <Card title={t('data.compute')}>
          <Loaded of={compute}>{(data) => <Compute of={data} />}</Loaded>
        </Card>
        <Card
          title={t('data.sources')}
          note={t('data.sourcesNote')}
          isFlush
          aside={
            <div class="row-tight">
              <Button isSmall icon="download" onClick={() => setOpen('pull')}>
                {t('data.pull')}
              </Button>
              {isAdmin && (
                <Button isSmall icon="plus" onClick={() => setOpen('source')}>
                  {t('data.addSource')}
                </Button>
              )}
            </div>
          }
        >
          <Loaded of={sources}>
            {(data) =>
              data.length === 0 ? (
                <Empty level={3} icon="data" title={t('data.noSources')}>
                  {t('data.noSourcesHint')}
                </Empty>
              ) : (
                <Table
                  label={t('data.sources')}
                  rows={data}
                  keyOf={({ id }) => id}
                  hasMore={sources.hasMore}
                  isLoading={sources.isLoading}
                  onMore={sources.loadMore}
                  columns={[
                    {
                      title: t('keys.name'),
                      cell: (source) => (
                        <div>
                          <span class="table-name isolate">{neutralise(source.name)}</span>
                          {source.description !== null && (
                            <span class="table-sub isolate">{neutralise(source.description)}</span>
                          )}
                          {source.pull !== null && source.pull.model !== source.name && (
                            <code class="table-sub isolate">{neutralise(source.pull.model)}</code>
                          )}
                          <code class="table-sub">{source.id}</code>
                        </div>
                      ),
                    },
                    { title: t('data.type'), cell: ({ type }) => t(`data.type.${type}`) },
                    {
                      title: t('field.owner'),
                      cell: ({ owner }) => <span class="isolate">{neutralise(owner.name)}</span>,
                    },
                    { title: t('data.visibility'), cell: ({ visibility }) => t(`data.visibility.${visibility}`) },
                    { title: t('data.size'), cell: (source) => <SourceSize of={source} /> },
                    { title: t('field.created'), cell: ({ created_at }) => <Ago time={created_at} /> },
                    {
                      title: t('field.actions'),
                      isActions: true,
                      cell: (source) => (
                        <Menu label={t('keys.actionsOf', { name: neutralise(source.name) })} items={items(source)} />
                      ),
                    },
                  ]}
                />
              )
            }
          </Loaded>
        </Card>
        <Card
          title={t('data.images')}
          note={t('data.imagesNote')}
          isFlush
          aside={
            isAdmin && (
              <Button isSmall icon="plus" onClick={() => setOpen('image')}>
                {t('data.addImage')}
              </Button>
            )
          }
        >
          <Loaded of={images}>
            {(data) => (
              <Table
                label={t('data.images')}
                rows={data}
                keyOf={({ id }) => id}
                hasMore={images.hasMore}
                isLoading={images.isLoading}
                onMore={images.loadMore}
                columns={[
                  {
                    title: t('keys.name'),
                    cell: (image) => <span class="table-name isolate">{neutralise(image.name)}</span>,
                  },
                  { title: t('data.version'), cell: ({ version }) => <code>{version}</code> },
                  { title: t('data.type'), cell: ({ type }) => t(`image.type.${type}`) },
                  {
                    title: t('data.gpu'),
                    cell: ({ gpu_required }) => t(gpu_required ? 'data.gpuRequired' : 'data.gpuOptional'),
                  },
                  {
                    title: t('field.actions'),
                    isActions: true,
                    cell: (image) =>
                      isAdmin &&
                      image.type !== 'builtin-runtime' && (
                        <Button
                          look="quiet"
                          icon="trash"
                          label={t('data.remove', { name: neutralise(image.name) })}
                          onClick={() => setOpen({ of: image, path: '/images' })}
                        />
                      ),
                  },
                ]}
              />
            )}
          </Loaded>
        </Card>
      </div>
      {open === 'source' && <SourceDialog onClose={() => setOpen(null)} onDone={done} />}
      {open === 'pull' && <PullDialog onClose={() => setOpen(null)} onDone={done} />}
      {open !== null && typeof open === 'object' && 'pull' in open && (
        <PullDialog source={open.pull} onClose={() => setOpen(null)} onDone={done} />
      )}
      {open === 'image' && <ImageDialog onClose={() => setOpen(null)} onDone={done} />}
      {open !== null && typeof open === 'object' && 'show' in open && (
        <SourceDetails of={open.show} onClose={() => setOpen(null)} onChange={sources.reload} />
      )}
      {open !== null && typeof open === 'object' && 'edit' in open && (
        <SourceDialog edited={open.edit} onClose={() => setOpen(null)} onDone={done} />
      )}
      {open !== null && typeof open === 'object' && 'of' in open && (
        <RemoveDialog {...open} onClose={() => setOpen(null)} onDone={done} />
      )}
    </Page>
  );
}

/** Whether the data source is being measured or downloaded. */
function isChanging({ measurement, pull }: DataSource): boolean {
  return isPulling(pull) || (measurement.state === 'pending' && pull?.is_filled !== false);
}

/** The size of a data source, or the state of its download. */
function SourceSize({ of }: { of: DataSource }) {
  if (of.pull === null || (of.pull.state === 'done' && of.pull.is_filled)) return <MeasuredSize of={of} />;
  return <PullStatus of={of.pull} />;
}

function Compute({ of: { total, free, gpus, isolation, driver } }: { of: Capacity }) {
  return (
    <div class="stack">
      <dl class="columns">
        <div>
          <dt class="faint">{t('spec.cores')}</dt>
          <dd>{t('data.sharedCores', { total: formatCores(total.cpu_millis, locale()) })}</dd>
        </div>
        <div>
          <dt class="faint">{t('spec.memory')}</dt>
          <dd>
            {t('data.freeOf', {
              free: formatMegabytes(free.memory_mb, locale()),
              total: formatMegabytes(total.memory_mb, locale()),
            })}
          </dd>
        </div>
        <div>
          <dt class="faint">{t('spec.gpus')}</dt>
          <dd>
            {gpus.length === 0 ? t('data.noGpus') : t('data.freeOf', { free: free.gpu_count, total: total.gpu_count })}
          </dd>
        </div>
        <div>
          <dt class="faint">{t('data.driver')}</dt>
          <dd>
            {driver} · {t(`isolation.${isolation.level}`)}
          </dd>
        </div>
      </dl>
      <Banner tone={isolation.level === 'L2' ? 'ok' : 'warn'} title={t(`isolation.title.${isolation.level}`)}>
        <span class="isolate">{neutralise(serviceText(isolation.reason))}</span>
      </Banner>
    </div>
  );
}
