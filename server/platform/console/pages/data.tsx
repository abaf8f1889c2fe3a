import { useEffect, useState } from 'preact/hooks';
import type { Capacity, DataSource, Image } from '../../api/objects';
import { me } from '../app/session';
import { usePages, useResource } from '../api/resource';
import { formatCores, formatMegabytes } from '../format/numbers';
import { neutralise } from '../format/neutral';
import { locale, t } from '../i18n';
import { Button } from '../ui/button';
import { Menu, type MenuItem } from '../ui/menu';
import { Card, Page } from '../ui/page';
import { Banner, Empty, Loaded } from '../ui/state';
import { Table } from '../ui/table';
import { Ago } from '../ui/time';
import { ImageDialog, RemoveDialog } from './data-dialogs';
import { MeasuredSize, SourceDetails, SourceDialog } from './source-dialogs';

/** Poll interval while a data source is being measured. */
const POLL_MS = 3_000;

/** Compute, data sources and images. */
export function DataPage() {
  const images = usePages<Image>('/images');
  const sources = usePages<DataSource>('/data-sources');
  const compute = useResource<Capacity>('/compute');
  const [open, setOpen] = useState<
    | 'source'
    | 'image'
    | { of: DataSource | Image; path: '/data-sources' | '/images' }
    | { show: DataSource }
    | { edit: DataSource }
    | null
  >(null);
  const isAdmin = me().is_admin;
  const reloadSources = sources.reload;
  const isMeasuring = sources.data?.some(({ measurement }) => measurement.state === 'pending') === true;
  useEffect(() => {
    if (!isMeasuring) return undefined;
    const timer = setInterval(reloadSources, POLL_MS);
    return () => clearInterval(timer);
  }, [isMeasuring, reloadSources]);
  const items = (source: DataSource): (MenuItem | 'line' | false)[] => [
    { label: t('data.details'), icon: 'info', onSelect: () => setOpen({ show: source }) },
    isAdmin && { label: t('action.edit'), icon: 'edit', onSelect: () => setOpen({ edit: source }) },
    isAdmin && 'line',
    isAdmin && {
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
            isAdmin && (
              <Button isSmall icon="plus" onClick={() => setOpen('source')}>
                {t('data.addSource')}
              </Button>
            )
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
                    { title: t('data.size'), cell: (source) => <MeasuredSize of={source} /> },
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
        <span class="isolate">{neutralise(isolation.reason)}</span>
      </Banner>
    </div>
  );
}
