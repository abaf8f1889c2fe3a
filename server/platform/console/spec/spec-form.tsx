import type { Capacity, DataSource, Image } from '../../api/objects';
import type { PageList, Resource } from '../api/resource';
import { formatCores, formatMegabytes } from '../format/numbers';
import { neutralise } from '../format/neutral';
import { locale, serviceText, t } from '../i18n';
import { CodeField } from '../ui/code-field';
import { Choices, SelectField, TextField } from '../ui/field';
import { Card } from '../ui/page';
import { Banner } from '../ui/state';
import { BindingRows } from './bindings';
import type { DraftProblems, SpecDraft } from './draft';
import { EnvRows } from './env-rows';
import { RuntimePart } from './runtime-part';

const EXAMPLE_SCRIPT = [
  '#!/bin/sh',
  'PORT=8080',
  '[ -n "$PLATFORM_SERVING_PRODUCTION" ] && PORT=80',
  'exec my-server --host 0.0.0.0 --port "$PORT"',
].join('\n');

/** The options that the form offers. */
export interface SpecChoices {
  images: PageList<Image>;
  sources: PageList<DataSource>;
  capacity: Resource<Capacity>;
}

export interface SpecFormProps {
  draft: SpecDraft;
  onChange: (draft: SpecDraft) => void;
  problems: DraftProblems;
  choices: SpecChoices;
  /** Containers have no health check and serve on port 8080. */
  isContainer?: boolean;
}

/** The form for compute, image, data and start mode of containers, deployments and versions. */
export function SpecForm({ draft, onChange, problems, choices, isContainer = false }: SpecFormProps) {
  const set = (part: Partial<SpecDraft>) => onChange({ ...draft, ...part });
  const errorOf = (field: keyof SpecDraft) => (problems[field] === undefined ? undefined : t(problems[field]));
  const part = { draft, set, errorOf, choices };
  return (
    <>
      <Card title={t('spec.compute')}>
        <ComputePart {...part} />
      </Card>
      <Card title={t('spec.software')}>
        <SoftwarePart {...part} isContainer={isContainer} />
      </Card>
      <Card title={t('spec.data')} note={t(isContainer ? 'spec.dataNoteContainer' : 'spec.dataNote')}>
        <BindingRows
          value={draft.bindings}
          onChange={(bindings) => set({ bindings })}
          error={errorOf('bindings')}
          sources={choices.sources}
        />
      </Card>
      <Card title={t('spec.env')} note={t('spec.envNote')}>
        <EnvRows value={draft.env} onChange={(env) => set({ env })} error={errorOf('env')} />
      </Card>
      {!isContainer && (
        <Card title={t('spec.health')} note={t('spec.healthNote')}>
          <HealthPart {...part} />
        </Card>
      )}
    </>
  );
}

interface PartProps {
  draft: SpecDraft;
  set: (part: Partial<SpecDraft>) => void;
  errorOf: (field: keyof SpecDraft) => string | undefined;
  choices: SpecChoices;
}

function ComputePart({
  draft,
  set,
  errorOf,
  choices: {
    capacity: { data },
  },
}: PartProps) {
  const free = data?.free;
  const types = [...new Set(data?.gpus.map(({ type }) => type))];
  return (
    <div class="stack">
      <div class="columns">
        <TextField
          label={t('spec.cores')}
          inputMode="decimal"
          unit={t('unit.cores')}
          value={draft.cores}
          onInput={(cores) => set({ cores })}
          error={errorOf('cores')}
          hint={data && t('spec.sharedCores', { total: formatCores(data.total.cpu_millis, locale()) })}
        />
        <TextField
          label={t('spec.memory')}
          inputMode="numeric"
          unit="MiB"
          value={draft.memoryMb}
          onInput={(memoryMb) => set({ memoryMb })}
          error={errorOf('memoryMb')}
          hint={free && t('spec.free', { free: formatMegabytes(free.memory_mb, locale()) })}
        />
        <TextField
          label={t('spec.gpus')}
          inputMode="numeric"
          value={draft.gpuCount}
          onInput={(gpuCount) => set({ gpuCount })}
          error={errorOf('gpuCount')}
          hint={free && t('spec.free', { free: free.gpu_count })}
        />
        {types.length > 0 && draft.gpuCount !== '0' && (
          <SelectField
            label={t('spec.gpuType')}
            value={draft.gpuType}
            onChange={(gpuType) => set({ gpuType })}
            options={[{ value: '', label: t('spec.anyGpu') }, ...types.map((type) => ({ value: type, label: type }))]}
          />
        )}
      </div>
      {data !== undefined && Number(draft.gpuCount) > data.total.gpu_count && (
        <Banner tone="warn" title={t('spec.noSuchGpus', { n: data.total.gpu_count })} />
      )}
    </div>
  );
}

function SoftwarePart({
  draft,
  set,
  errorOf,
  choices: { images, capacity },
  isContainer,
}: PartProps & { isContainer: boolean }) {
  const options = (images.data ?? []).map((image) => ({
    value: image.id,
    label: `${neutralise(image.name)} ${neutralise(image.version)}`,
  }));
  const isolation = capacity.data?.isolation;
  // An image without a built-in runtime needs a start script.
  const chooseImage = (imageId: string) => {
    const image = images.data?.find(({ id }) => id === imageId);
    set(
      image?.type === 'host-env'
        ? {
            imageId,
            usesScript: true,
            startCommand: draft.startCommand === '' ? (image.default_start ?? '') : draft.startCommand,
          }
        : { imageId },
    );
  };
  return (
    <div class="stack">
      <SelectField
        label={t('spec.image')}
        value={draft.imageId}
        onChange={chooseImage}
        error={errorOf('imageId')}
        options={
          options.some(({ value }) => value === draft.imageId)
            ? options
            : [
                { value: draft.imageId, label: draft.imageId === '' ? t('spec.chooseImage') : draft.imageId },
                ...options,
              ]
        }
      />
      <Choices
        legend={t('spec.start')}
        value={draft.usesScript ? 'script' : 'runtime'}
        onChange={(value) => set({ usesScript: value === 'script' })}
        options={[
          { value: 'runtime', label: t('spec.start.runtime'), hint: t('spec.start.runtimeHint') },
          {
            value: 'script',
            label: t('spec.start.script'),
            hint: t(isContainer ? 'spec.start.scriptHintContainer' : 'spec.start.scriptHint'),
          },
        ]}
      />
      {draft.usesScript ? (
        <>
          {isolation?.allows_start_scripts === false && (
            <Banner tone="warn" title={t('spec.scriptsRefused')}>
              {neutralise(serviceText(isolation.reason))}
            </Banner>
          )}
          <CodeField
            label={t('spec.script')}
            hint={
              isolation?.outgoing_network === false
                ? `${t('spec.scriptHint')} ${t('spec.noNetwork')}`
                : t('spec.scriptHint')
            }
            language="shell"
            rows={9}
            maxLength={65_536}
            value={draft.startCommand}
            onInput={(startCommand) => set({ startCommand })}
            error={errorOf('startCommand')}
            placeholder={EXAMPLE_SCRIPT}
          />
        </>
      ) : (
        <RuntimePart draft={draft} set={set} errorOf={errorOf} isContainer={isContainer} />
      )}
    </div>
  );
}

function HealthPart({ draft, set, errorOf }: PartProps) {
  return (
    <div class="columns">
      <TextField
        label={t('spec.healthPath')}
        isMono
        value={draft.healthPath}
        onInput={(healthPath) => set({ healthPath })}
        error={errorOf('healthPath')}
      />
      <TextField
        label={t('spec.startDeadline')}
        inputMode="numeric"
        unit={t('unit.seconds')}
        value={draft.startDeadlineS}
        onInput={(startDeadlineS) => set({ startDeadlineS })}
        error={errorOf('startDeadlineS')}
      />
      <TextField
        label={t('spec.grace')}
        inputMode="numeric"
        unit={t('unit.seconds')}
        value={draft.graceS}
        onInput={(graceS) => set({ graceS })}
        error={errorOf('graceS')}
      />
    </div>
  );
}
