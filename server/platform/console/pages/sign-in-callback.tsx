import { useEffect, useRef, useState } from 'preact/hooks';
import { loadSession } from '../app/session';
import { finishWith, takeResponse } from '../api/provider-sign-in';
import { useAction } from '../api/resource';
import { t } from '../i18n';
import { navigate } from '../router/location';
import { LinkButton } from '../ui/button';
import { ProblemBanner, Skeleton } from '../ui/state';
import { Gate } from './gate';

/** The page to which an identity provider sends the browser back. A shared redirect URI names no `provider`. */
export function SignInCallbackPage({ provider }: { provider?: string }) {
  const [response] = useState(takeResponse);
  const { run, problem } = useAction(async () => {
    const returnTo = await finishWith(provider === undefined ? response : { ...response, provider });
    await loadSession();
    navigate(returnTo, { replace: true });
  });
  const finish = useRef(run);
  useEffect(() => void finish.current(), []);
  return (
    <Gate title={t('signIn.title')}>
      {problem === null ? (
        <Skeleton lines={2} />
      ) : (
        <>
          <ProblemBanner problem={problem} />
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
