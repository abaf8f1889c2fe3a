import type { Binding, DataSource } from '../../api/objects';
import type { PageList } from '../api/resource';
import { neutralise } from '../format/neutral';
import { t } from '../i18n';
import { Button } from '../ui/button';
import { Select } from '../ui/field';

const MOUNTS: readonly Binding['mount'][] = ['input0', 'input1', 'input2', 'input3', 'input4', 'home'];

export function mountPath(mount: Binding['mount']): string {
  return mount === 'home' ? '/platform/home' : `/platform/input/${mount}`;
}

/** Binds data sources to mounts: inputs 0 to 4, and home. */
export function BindingRows({
  value,
  onChange,
  error,
  sources,
}: {
  value: Binding[];
  onChange: (value: Binding[]) => void;
  error?: string;
  sources: PageList<DataSource>;
}) {
  const set = (i: number, part: Partial<Binding>) =>
    onChange(value.map((binding, j) => (j === i ? { ...binding, ...part } : binding)));
  const free = MOUNTS.find((mount) => !value.some((binding) => binding.mount === mount));
  const options = (sources.data ?? []).map((source) => ({ value: source.id, label: neutralise(source.name) }));
  const isEmpty = sources.data?.length === 0;
  return (
    <div class="stack-small">
      {value.length === 0 && <p class="hint">{t(isEmpty ? 'data.noSources' : 'spec.noBindings')}</p>}
      {value.map((binding, i) => (
        <div class="binding-row" key={i}>
          <Select
            label={t('spec.mount', { n: i + 1 })}
            value={binding.mount}
            onChange={(mount) => set(i, { mount: mount as Binding['mount'] })}
            options={MOUNTS.map((mount) => ({
              value: mount,
              label: mountPath(mount),
              isDisabled: mount !== binding.mount && value.some((other) => other.mount === mount),
            }))}
          />
          <Select
            label={t('spec.source', { n: i + 1 })}
            value={binding.source_id}
            onChange={(source_id) => set(i, { source_id })}
            options={[
              { value: '', label: t('spec.chooseSource') },
              ...options,
              ...(binding.source_id === '' || options.some(({ value: id }) => id === binding.source_id)
                ? []
                : [{ value: binding.source_id, label: binding.source_id }]),
            ]}
          />
          <Button
            look="quiet"
            icon="trash"
            label={t('spec.removeBinding', { mount: mountPath(binding.mount) })}
            onClick={() => onChange(value.filter((_, j) => j !== i))}
          />
        </div>
      ))}
      {error !== undefined && (
        <div class="field-error" role="alert">
          {error}
        </div>
      )}
      <div class="row">
        <Button
          isSmall
          icon="plus"
          isDisabled={free === undefined || isEmpty}
          onClick={() => free !== undefined && onChange([...value, { mount: free, source_id: '' }])}
        >
          {t('spec.addBinding')}
        </Button>
        {sources.hasMore && (
          <Button isSmall look="quiet" isBusy={sources.isLoading} onClick={sources.loadMore}>
            {t('spec.moreSources')}
          </Button>
        )}
      </div>
    </div>
  );
}
