import type { Deployment } from '../../../api/objects';
import { t } from '../../i18n';
import { Choices } from '../../ui/field';

type Strategy = Deployment['strategy'];

export function StrategyChoices({ value, onChange }: { value: Strategy; onChange: (value: Strategy) => void }) {
  return (
    <Choices
      legend={t('strategy.title')}
      value={value}
      onChange={onChange}
      options={(['auto', 'surge', 'replace'] as const).map((strategy) => ({
        value: strategy,
        label: t(`strategy.${strategy}`),
        hint: t(`strategy.${strategy}.hint`),
      }))}
    />
  );
}
