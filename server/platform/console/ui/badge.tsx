import { type AnyState, STATE_LOOKS } from '../format/states';
import { t } from '../i18n';

export function StateBadge({ state }: { state: AnyState }) {
  const { tone, isMoving, isHollow } = STATE_LOOKS[state];
  return (
    <span class={`badge badge-${tone}`} data-state={state}>
      <span class={`dot${isMoving === true ? ' dot-moving' : ''}${isHollow === true ? ' dot-hollow' : ''}`} />
      {t(`state.${state}`)}
    </span>
  );
}
