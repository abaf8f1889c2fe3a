import { HUB_NAMES } from '../format/hubs';
import { t } from '../i18n';
import { Checkbox, SelectField, TextArea, TextField } from '../ui/field';
import { CACHE_DTYPES, DTYPES, HUBS, isHubModel, QUANTIZATIONS, type SpecDraft } from './draft';

interface RuntimePartProps {
  draft: SpecDraft;
  set: (part: Partial<SpecDraft>) => void;
  errorOf: (field: keyof SpecDraft) => string | undefined;
}

/** The options of the built-in runtime. */
export function RuntimePart({ draft, set, errorOf, isContainer }: RuntimePartProps & { isContainer: boolean }) {
  return (
    <div class="stack">
      <div class="columns">
        <TextField
          label={t('spec.model')}
          hint={t(isHubModel(draft.model) ? 'spec.modelOfHubHint' : 'spec.modelHint')}
          isMono
          placeholder="demo"
          value={draft.model}
          onInput={(model) => set({ model })}
        />
        <TextField
          label={t('spec.servedName')}
          hint={t('spec.servedNameHint')}
          isOptional
          maxLength={100}
          value={draft.servedName}
          onInput={(servedName) => set({ servedName })}
        />
        {isHubModel(draft.model) && (
          <SelectField
            label={t('spec.hub')}
            value={draft.hub}
            onChange={(hub) => set({ hub: hub as SpecDraft['hub'] })}
            options={HUBS.map((value) => ({ value, label: HUB_NAMES[value === '' ? 'huggingface' : value] }))}
          />
        )}
        {isHubModel(draft.model) && (
          <TextField
            label={t('data.token')}
            hint={t('data.tokenHint')}
            isOptional
            type="password"
            autocomplete="new-password"
            maxLength={1_024}
            value={draft.hubToken}
            onInput={(hubToken) => set({ hubToken })}
          />
        )}
        <SelectField
          label={t('spec.quantization')}
          hint={t('spec.quantizationHint')}
          value={draft.quantization}
          onChange={(quantization) => set({ quantization: quantization as SpecDraft['quantization'] })}
          options={optionsOf(QUANTIZATIONS, t('spec.asInFile'))}
        />
      </div>
      <details class="disclosure">
        <summary>{t('spec.runtimeMore')}</summary>
        <div class="stack">
          <SelectField
            label={t('spec.task')}
            hint={t('spec.taskHint')}
            value={draft.task}
            onChange={(task) => set({ task: task as SpecDraft['task'] })}
            options={(['', 'generate', 'embed', 'score'] as const).map((value) => ({
              value,
              label: t(value === '' ? 'spec.task.auto' : `spec.task.${value}`),
            }))}
          />
          <Numbers draft={draft} set={set} errorOf={errorOf} />
          <Formats draft={draft} set={set} errorOf={errorOf} />
          <Checkbox
            label={t('spec.prefixCaching')}
            hint={t('spec.prefixCachingHint')}
            isChecked={draft.prefixCaching}
            onChange={(prefixCaching) => set({ prefixCaching })}
          />
          {draft.prefixCaching && !isContainer && (
            <TextField
              label={t('spec.prefixCacheDisk')}
              hint={t('spec.prefixCacheDiskHint')}
              isOptional
              inputMode="numeric"
              unit="MiB"
              value={draft.prefixCacheDiskMb}
              onInput={(prefixCacheDiskMb) => set({ prefixCacheDiskMb })}
              error={errorOf('prefixCacheDiskMb')}
            />
          )}
        </div>
      </details>
    </div>
  );
}

const NUMBERS = [
  ['maxModelLen', 'spec.maxModelLen', 'unit.tokens'],
  ['kvCacheMemoryMb', 'spec.kvCacheMemory', undefined],
  ['maxNumSeqs', 'spec.maxNumSeqs', undefined],
  ['maxNumBatchedTokens', 'spec.maxNumBatchedTokens', 'unit.tokens'],
  ['gpuMemory', 'spec.gpuMemory', undefined],
  ['tensorParallel', 'spec.tensorParallel', undefined],
] as const;

function Numbers({ draft, set, errorOf }: RuntimePartProps) {
  return (
    <div class="columns">
      {NUMBERS.map(([field, label, unit]) => (
        <TextField
          key={field}
          label={t(label)}
          isOptional
          inputMode={field === 'gpuMemory' ? 'decimal' : 'numeric'}
          placeholder={field === 'gpuMemory' ? '0.9' : undefined}
          unit={field === 'kvCacheMemoryMb' ? 'MiB' : unit && t(unit)}
          value={draft[field]}
          onInput={(value) => set({ [field]: value })}
          error={errorOf(field)}
        />
      ))}
    </div>
  );
}

function Formats({ draft, set, errorOf }: RuntimePartProps) {
  return (
    <>
      <div class="columns">
        <SelectField
          label={t('spec.dtype')}
          value={draft.dtype}
          onChange={(dtype) => set({ dtype: dtype as SpecDraft['dtype'] })}
          options={optionsOf(DTYPES, t('spec.asInFile'))}
        />
        <SelectField
          label={t('spec.kvCacheDtype')}
          value={draft.kvCacheDtype}
          onChange={(kvCacheDtype) => set({ kvCacheDtype: kvCacheDtype as SpecDraft['kvCacheDtype'] })}
          options={optionsOf(CACHE_DTYPES, t('spec.automatic'))}
        />
        <TextField
          label={t('spec.toolCallParser')}
          isOptional
          isMono
          placeholder="auto"
          value={draft.toolCallParser}
          onInput={(toolCallParser) => set({ toolCallParser })}
          error={errorOf('toolCallParser')}
        />
        <TextField
          label={t('spec.reasoningParser')}
          isOptional
          isMono
          placeholder="auto"
          value={draft.reasoningParser}
          onInput={(reasoningParser) => set({ reasoningParser })}
          error={errorOf('reasoningParser')}
        />
      </div>
      <TextArea
        label={t('spec.chatTemplate')}
        hint={t('spec.chatTemplateHint')}
        isOptional
        isMono
        rows={3}
        maxLength={65_536}
        value={draft.chatTemplate}
        onInput={(chatTemplate) => set({ chatTemplate })}
        error={errorOf('chatTemplate')}
      />
    </>
  );
}

/** An empty value means the default. */
function optionsOf(values: readonly string[], byDefault: string) {
  return values.map((value) => ({ value, label: value === '' ? byDefault : value }));
}
