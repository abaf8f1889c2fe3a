import { useEffect, useState } from 'preact/hooks';
import { loadSession } from '../app/session';
import { finishWith, takeResponse } from '../api/provider-sign-in';
import { useAction } from '../api/resource';
import { t } from '../i18n';
import { navigate } from '../router/location';
import { LinkButton } from '../ui/button';
import { ProblemBanner, Skeleton } from '../ui/state';
import { Gate } from './gate';

/** The page to which an identity provider sends the browser back. */
export function SignInCallbackPage() {
  const [response] = useState(takeResponse);
  const action = useAction(async () => {
    const returnTo = await finishWith(response);
    await loadSession();
    navigate(returnTo, { replace: true });
  });
  useEffect(() => void action.run(), []);
  return (
    <Gate title={t('signIn.title')}>
      {action.problem === null ? (
        <Skeleton lines={2} />
      ) : (
        <>
          <ProblemBanner problem={action.problem} />
          <div>
            <LinkButton href="/sign-in" look="primary">
              {t('signIn.again')}
            </LinkButton>
          </div>
        </>
      )}
    </Gate>
  );
}
