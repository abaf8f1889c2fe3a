import type { SignInProviders } from '../../api/objects';
import { beginAt } from '../api/provider-sign-in';
import { useAction, useResource } from '../api/resource';
import { neutralise } from '../format/neutral';
import { t } from '../i18n';
import { Button } from '../ui/button';
import { ProblemBanner } from '../ui/state';

/** One button for each identity provider. Empty without providers. */
export function ProviderButtons() {
  const { data } = useResource<SignInProviders>('/auth/providers');
  const action = useAction(beginAt);
  if (data === undefined || data.data.length === 0) return null;
  return (
    <div class="stack-small">
      <ProblemBanner problem={action.problem} />
      {data.data.map(({ id, name }) => (
        <Button key={id} icon="external" isBlock isBusy={action.isBusy} onClick={() => void action.run(id)}>
          {t('signIn.with', { name: neutralise(name) })}
        </Button>
      ))}
      <p class="hint">{t('signIn.orPassword')}</p>
    </div>
  );
}
