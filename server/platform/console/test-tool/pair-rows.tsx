import { t } from '../i18n';
import { Button } from '../ui/button';

type Pair = readonly [name: string, value: string];

export function PairRows({
  name,
  value,
  onChange,
  error,
}: {
  name: string;
  value: readonly Pair[];
  onChange: (value: readonly [string, string][]) => void;
  error?: string;
}) {
  const set = (i: number, pair: [string, string]) =>
    onChange(value.map(([key, text], j) => (j === i ? pair : [key, text])));
  return (
    <div class="stack-small">
      {value.map(([key, text], i) => (
        <div class="pair-row" key={i}>
          <input
            class="input mono"
            aria-label={t('pair.name', { name, n: i + 1 })}
            placeholder={t('pair.namePlaceholder')}
            spellcheck={false}
            value={key}
            onInput={(event) => set(i, [event.currentTarget.value, text])}
          />
          <input
            class="input mono"
            aria-label={t('pair.value', { name, n: i + 1 })}
            placeholder={t('pair.valuePlaceholder')}
            spellcheck={false}
            value={text}
            onInput={(event) => set(i, [key, event.currentTarget.value])}
          />
          <Button
            look="quiet"
            icon="trash"
            label={t('pair.remove', { name, n: i + 1 })}
            onClick={() => onChange(value.filter((_, j) => j !== i).map(([k, v]) => [k, v]))}
          />
        </div>
      ))}
      {error !== undefined && (
        <div class="field-error" role="alert">
          {error}
        </div>
      )}
      <div>
        <Button
          isSmall
          icon="plus"
          onClick={() => onChange([...value.map(([k, v]): [string, string] => [k, v]), ['', '']])}
        >
          {t('pair.add')}
        </Button>
      </div>
    </div>
  );
}
