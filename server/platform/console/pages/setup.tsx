import { useState } from 'preact/hooks';
import { beginSession, useSession } from '../app/session';
import { call } from '../api/client';
import { fieldMessage } from '../api/problem';
import { useAction } from '../api/resource';
import { t } from '../i18n';
import { navigate, takeToken } from '../router/location';
import { Button, LinkButton } from '../ui/button';
import { TextField } from '../ui/field';
import { Banner, ProblemBanner } from '../ui/state';
import { Gate } from './gate';
import { NewPassword, passwordProblem } from './new-password';

/** The page behind the set-up link: creates the first administrator and signs in. */
export function SetupPage() {
  const { me } = useSession();
  const [token] = useState(takeToken);
  const [name, setName] = useState('');
  const [email, setEmail] = useState('');
  const [password, setPassword] = useState('');
  const [isSubmitted, setSubmitted] = useState(false);
  const action = useAction(async () => {
    await call('POST', '/bootstrap', {
      body: { token, email: email.trim(), name: name.trim(), password },
      isSigningIn: true,
    });
    await beginSession();
    navigate('/deployments', { replace: true });
  });
  if (token === '')
    return (
      <Gate title={t('setup.title')}>
        <Banner tone="warn" title={t('setup.noToken')}>
          {t('setup.noTokenHint')}
        </Banner>
        <div>
          <LinkButton href="/sign-in">{t('signIn.title')}</LinkButton>
        </div>
      </Gate>
    );
  if (me !== null)
    return (
      <Gate title={t('setup.title')}>
        <Banner title={t('setup.done')} />
        <div>
          <LinkButton href="/deployments" look="primary">
            {t('setup.openConsole')}
          </LinkButton>
        </div>
      </Gate>
    );
  const submit = (event: Event) => {
    event.preventDefault();
    setSubmitted(true);
    if (name.trim() !== '' && email.trim() !== '' && passwordProblem(password, email) === undefined) void action.run();
  };
  const missing = (value: string) => (isSubmitted && value.trim() === '' ? t('spec.error.required') : undefined);
  return (
    <Gate title={t('setup.title')} text={t('setup.text')}>
      <form class="stack" noValidate onSubmit={submit}>
        <ProblemBanner problem={action.problem} />
        <TextField
          label={t('account.name')}
          autocomplete="name"
          maxLength={100}
          autoFocus
          value={name}
          onInput={setName}
          error={missing(name) ?? fieldMessage(action.problem, '/name')}
        />
        <TextField
          label={t('signIn.email')}
          type="email"
          autocomplete="username"
          value={email}
          onInput={setEmail}
          error={missing(email) ?? fieldMessage(action.problem, '/email')}
        />
        <NewPassword value={password} onInput={setPassword} email={email} isSubmitted={isSubmitted} />
        <Button type="submit" look="primary" isBlock isBusy={action.isBusy}>
          {t('setup.submit')}
        </Button>
      </form>
    </Gate>
  );
}
