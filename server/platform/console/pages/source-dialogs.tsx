import { useEffect, useState } from 'preact/hooks';
import type { DataSource, DataSourceDetails, OwnerReference } from '../../api/objects';
import { me } from '../app/session';
import { call } from '../api/client';
import { fieldMessage } from '../api/problem';
import { useAction, useResource } from '../api/resource';
import { HUB_NAMES } from '../format/hubs';
import { formatBytes, formatNumber } from '../format/numbers';
import { neutralise } from '../format/neutral';
import { locale, t } from '../i18n';
import { mountPath } from '../spec/bindings';
import { OwnerField, selfOwner } from '../spec/owner-field';
import { Button } from '../ui/button';
import { Dialog } from '../ui/dialog';
import { SelectField, TextArea, TextField } from '../ui/field';
import { Facts } from '../ui/page';
import { Loaded, ProblemBanner } from '../ui/state';
import { At } from '../ui/time';
import { toast } from '../ui/toast';
import { isPulling, PullFailure, PullStatus } from './pull-status';

const TYPES = ['dataset', 'model', 'workspace', 'upload'] as const satisfies readonly DataSource['type'][];
const VISIBILITIES = ['private', 'org', 'public'] as const satisfies readonly DataSource['visibility'][];
/** Poll interval while the data source is being measured. */
const POLL_MS = 2_000;

/** Registers a folder of the data root as a data source, or edits a data source. */
export function SourceDialog({
  edited,
  onClose,
  onDone,
}: {
  edited?: DataSource;
  onClose: () => void;
  onDone: () => void;
}) {
  const [name, setName] = useState(edited?.name ?? '');
  const [description, setDescription] = useState(edited?.description ?? '');
  const [path, setPath] = useState(edited?.path ?? '');
  const [type, setType] = useState<DataSource['type']>('model');
  const [visibility, setVisibility] = useState<DataSource['visibility']>(edited?.visibility ?? 'private');
  const [owner, setOwner] = useState<OwnerReference>(selfOwner);
  const action = useAction(async () => {
    const body = { name: name.trim(), description: description.trim() === '' ? null : description.trim(), visibility };
    if (edited === undefined)
      await call('POST', '/data-sources', { body: { ...body, path: path.trim(), type, owner } });
    else
      await call('PATCH', `/data-sources/${edited.id}`, {
        body: { ...body, ...(path.trim() === edited.path ? {} : { path: path.trim() }) },
        ifMatch: edited.rev,
      });
    onDone();
  });
  const title = t(edited === undefined ? 'data.addSource' : 'data.editSource');
  return (
    <Dialog
      title={title}
      onClose={onClose}
      onSubmit={() => void action.run()}
      foot={
        <>
          <Button onClick={onClose}>{t('action.cancel')}</Button>
          <Button
            type="submit"
            look="primary"
            isBusy={action.isBusy}
            isDisabled={name.trim() === '' || path.trim() === ''}
          >
            {edited === undefined ? title : t('action.save')}
          </Button>
        </>
      }
    >
      <ProblemBanner problem={action.problem} />
      <TextField
        label={t('keys.name')}
        maxLength={100}
        autoFocus
        value={name}
        onInput={setName}
        error={fieldMessage(action.problem, '/name')}
      />
      <TextArea
        label={t('data.description')}
        isOptional
        rows={2}
        maxLength={1_000}
        value={description}
        onInput={setDescription}
      />
      {(edited?.pull ?? null) === null && (
        <TextField
          label={t('data.path')}
          hint={t(edited === undefined ? 'data.pathHint' : 'data.pathEditHint')}
          isMono
          value={path}
          onInput={setPath}
          placeholder="/srv/capstan/data/qwen"
        />
      )}
      <div class="columns">
        {edited === undefined && (
          <SelectField
            label={t('data.type')}
            value={type}
            onChange={(value) => setType(value as DataSource['type'])}
            options={TYPES.map((value) => ({ value, label: t(`data.type.${value}`) }))}
          />
        )}
        <SelectField
          label={t('data.visibility')}
          value={visibility}
          onChange={(value) => setVisibility(value as DataSource['visibility'])}
          options={VISIBILITIES.map((value) => ({ value, label: t(`data.visibility.${value}`) }))}
        />
      </div>
      {edited === undefined && <OwnerField value={owner} onChange={setOwner} hint={t('data.ownerHint')} />}
    </Dialog>
  );
}

/** The details of a data source and what uses it. */
export function SourceDetails({
  of,
  onClose,
  onChange,
}: {
  of: DataSource;
  onClose: () => void;
  onChange: () => void;
}) {
  const details = useResource<DataSourceDetails>(`/data-sources/${of.id}`);
  const reloadDetails = details.reload;
  const pull = details.data?.pull ?? null;
  const isDownloading = isPulling(pull);
  const isPending = details.data?.measurement.state === 'pending' && pull?.is_filled !== false;
  useEffect(() => {
    if (!isPending && !isDownloading) return undefined;
    const timer = setInterval(reloadDetails, POLL_MS);
    return () => clearInterval(timer);
  }, [isPending, isDownloading, reloadDetails]);
  const measure = useAction(async () => {
    await call(isPending ? 'DELETE' : 'POST', `/data-sources/${of.id}/measurement`);
    details.reload();
    onChange();
  });
  const cancel = useAction(async () => {
    await call('DELETE', `/data-sources/${of.id}/pull`);
    toast(t('data.pullCancelled'));
    details.reload();
    onChange();
  });
  const foot = (
    <>
      {isDownloading && (
        <Button isBusy={cancel.isBusy} onClick={() => void cancel.run()}>
          {t('data.pullCancel')}
        </Button>
      )}
      {me().is_admin && pull?.is_filled !== false && (
        <Button isBusy={measure.isBusy} onClick={() => void measure.run()}>
          {t(isPending ? 'data.cancelMeasure' : 'data.measure')}
        </Button>
      )}
      <Button look="primary" onClick={onClose}>
        {t('action.close')}
      </Button>
    </>
  );
  return (
    <Dialog title={neutralise(of.name)} isWide onClose={onClose} foot={foot}>
      <ProblemBanner problem={measure.problem ?? cancel.problem} />
      {pull !== null && <PullFailure of={pull} />}
      <Loaded of={details}>{(data) => <SourceFacts of={data} />}</Loaded>
    </Dialog>
  );
}

function SourceFacts({
  of: {
    description,
    path,
    size_bytes: size,
    file_count: numFiles,
    digest,
    measurement,
    pull,
    used_by: users,
    used_by_others: numOthers,
  },
}: {
  of: DataSourceDetails;
}) {
  return (
    <Facts
      of={[
        description !== null && [t('data.description'), <span class="isolate">{neutralise(description)}</span>],
        ...pullFacts(pull),
        path !== null && [t('data.path'), <code class="isolate">{neutralise(path)}</code>],
        pull?.is_filled !== false && [t('data.size'), <MeasuredSize of={{ size_bytes: size, measurement }} />],
        numFiles !== null && [t('data.files'), formatNumber(numFiles, locale())],
        digest !== null && [t('data.digest'), <code class="small">{digest}</code>],
        measurement.message !== null && [
          t('data.measureNote'),
          <span class="isolate">{neutralise(measurement.message)}</span>,
        ],
        measurement.at !== null && [t('data.measuredAt'), <At time={measurement.at} />],
        [
          t('data.usedBy'),
          users.length + numOthers === 0 ? (
            <span class="faint">{t('data.unused')}</span>
          ) : (
            <ul class="stack-small">
              {users.map(({ type, id, name, version, mount }) => (
                <li class="row-tight" key={`${id} ${version} ${mount}`}>
                  <a
                    class="isolate"
                    href={type === 'container' ? `/containers/${id}` : `/deployments/${id}/versions/${version}`}
                  >
                    {neutralise(name)}
                    {version !== null && ` v${version}`}
                  </a>{' '}
                  <code class="small">{mountPath(mount)}</code>
                </li>
              ))}
              {numOthers > 0 && <li class="faint">{t('data.usedByOthers', { n: numOthers })}</li>}
            </ul>
          ),
        ],
      ]}
    />
  );
}

function pullFacts(pull: DataSourceDetails['pull']): Parameters<typeof Facts>[0]['of'] {
  if (pull === null) return [];
  return [
    [t('data.model'), <code class="isolate">{neutralise(pull.model)}</code>],
    [t('spec.hub'), HUB_NAMES[pull.hub]],
    [t('data.pull.download'), <PullStatus of={pull} />],
    pull.commit !== null && [t('data.pull.commit'), <code class="small">{neutralise(pull.commit)}</code>],
    pull.note !== null && [t('data.pull.note'), <span class="isolate">{neutralise(pull.note)}</span>],
  ];
}

/** The size of a data source, or the state of its measurement. */
export function MeasuredSize({
  of: {
    size_bytes: size,
    measurement: { state },
  },
}: {
  of: Pick<DataSource, 'size_bytes' | 'measurement'>;
}) {
  const why =
    state === 'measured' ? null : (
      <span class={size === null ? 'faint' : 'table-sub'}>{t(`data.measure.${state}`)}</span>
    );
  return (
    <span>
      {size !== null && <span class="numeric">{formatBytes(size, locale())}</span>}
      {why}
    </span>
  );
}
