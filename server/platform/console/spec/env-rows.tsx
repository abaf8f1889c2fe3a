import { t } from '../i18n';
import { Button } from '../ui/button';
import type { EnvRow } from './draft';

/** Environment variables. Stored secrets can be replaced or removed, but not shown. */
export function EnvRows({
  value,
  onChange,
  error,
}: {
  value: EnvRow[];
  onChange: (value: EnvRow[]) => void;
  error?: string;
}) {
  const set = (i: number, part: Partial<EnvRow>) =>
    onChange(value.map((row, j) => (j === i ? { ...row, ...part } : row)));
  return (
    <div class="stack-small">
      {value.map((row, i) => (
        <div class="env-row" key={i}>
          <input
            class="input mono"
            aria-label={t('env.name', { n: i + 1 })}
            placeholder="NAME"
            spellcheck={false}
            autocomplete="off"
            value={row.name}
            readOnly={row.value === null}
            onInput={(event) => set(i, { name: event.currentTarget.value })}
          />
          <Value row={row} label={t('env.value', { n: i + 1 })} onInput={(value) => set(i, { value })} />
          <label class="check">
            <input
              type="checkbox"
              checked={row.isSecret}
              disabled={row.value === null}
              onChange={(event) => set(i, { isSecret: event.currentTarget.checked })}
            />
            <span>{t('env.secret')}</span>
          </label>
          <Button
            look="quiet"
            icon="trash"
            label={t('env.remove', { name: row.name })}
            onClick={() => onChange(value.filter((_, j) => j !== i))}
          />
        </div>
      ))}
      {error !== undefined && (
        <div class="field-error" role="alert">
          {error}
        </div>
      )}
      <div>
        <Button isSmall icon="plus" onClick={() => onChange([...value, { name: '', value: '', isSecret: false }])}>
          {t('env.add')}
        </Button>
      </div>
    </div>
  );
}

function Value({
  row: { value, isSecret },
  label,
  onInput,
}: {
  row: EnvRow;
  label: string;
  onInput: (value: string) => void;
}) {
  const props = {
    class: 'input mono',
    'aria-label': label,
    spellcheck: false,
    placeholder: value === null ? t('env.kept') : '',
    value: value ?? '',
  };
  return isSecret ? (
    <input
      type="password"
      {...props}
      autocomplete="new-password"
      onInput={(event) => onInput(event.currentTarget.value)}
    />
  ) : (
    <input type="text" {...props} autocomplete="off" onInput={(event) => onInput(event.currentTarget.value)} />
  );
}
