import { useState } from 'preact/hooks';
import { clearSession } from '../app/session';
import { call } from '../api/client';
import { useAction } from '../api/resource';
import { t } from '../i18n';
import { takeToken } from '../router/location';
import { Button, LinkButton } from '../ui/button';
import { Banner, ProblemBanner } from '../ui/state';
import { Gate } from './gate';
import { NewPassword, passwordProblem } from './new-password';

/** The page behind a link of an administrator: sets a new password. */
export function ResetPage() {
  const [token] = useState(takeToken);
  const [password, setPassword] = useState('');
  const [isSubmitted, setSubmitted] = useState(false);
  const [isDone, setDone] = useState(false);
  const action = useAction(async () => {
    await call('POST', '/auth/password-reset', { body: { token, password }, isSigningIn: true });
    clearSession();
    setDone(true);
  });
  if (token === '')
    return (
      <Gate title={t('reset.title')}>
        <Banner tone="warn" title={t('reset.noToken')} />
      </Gate>
    );
  if (isDone)
    return (
      <Gate title={t('reset.title')}>
        <Banner tone="ok" title={t('reset.done')}>
          {t('reset.doneHint')}
        </Banner>
        <div>
          <LinkButton href="/sign-in" look="primary">
            {t('signIn.title')}
          </LinkButton>
        </div>
      </Gate>
    );
  const submit = (event: Event) => {
    event.preventDefault();
    setSubmitted(true);
    if (passwordProblem(password, '') === undefined) void action.run();
  };
  return (
    <Gate title={t('reset.title')} text={t('reset.text')}>
      <form class="stack" noValidate onSubmit={submit}>
        <ProblemBanner problem={action.problem} />
        <NewPassword
          label={t('password.new')}
          value={password}
          onInput={setPassword}
          email=""
          isSubmitted={isSubmitted}
        />
        <Button type="submit" look="primary" isBlock isBusy={action.isBusy}>
          {t('reset.submit')}
        </Button>
      </form>
    </Gate>
  );
}
