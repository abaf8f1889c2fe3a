import { useEffect, useState } from 'preact/hooks';
import type { InvitationView } from '../../api/objects';
import { beginSession, loadSession, signOut, useSession } from '../app/session';
import { call } from '../api/client';
import { type ApiProblem, toProblem } from '../api/problem';
import { useAction } from '../api/resource';
import { neutralise } from '../format/neutral';
import { t } from '../i18n';
import { navigate, takeToken } from '../router/location';
import { Button, LinkButton } from '../ui/button';
import { TextField } from '../ui/field';
import { Banner, ProblemBanner, Skeleton } from '../ui/state';
import { Gate } from './gate';
import { NewPassword, passwordProblem } from './new-password';
import { SignInForm } from './sign-in-form';

/** Accepts an invitation to an organization. Creates the account if its email address has none. */
export function InvitationPage() {
  const [token] = useState(takeToken);
  const [view, setView] = useState<InvitationView | null>(null);
  const [problem, setProblem] = useState<ApiProblem | null>(null);
  const { me } = useSession();
  useEffect(() => {
    if (token === '') return;
    call<InvitationView>('POST', '/invitations/inspect', { body: { token }, isSigningIn: true }).then(
      setView,
      (error: unknown) => setProblem(toProblem(error)),
    );
  }, [token]);
  if (token === '')
    return (
      <Gate title={t('invitation.title')}>
        <Banner tone="warn" title={t('invitation.noToken')} />
      </Gate>
    );
  if (problem !== null)
    return (
      <Gate title={t('invitation.title')}>
        <ProblemBanner problem={problem} />
        <div>
          <LinkButton href="/deployments">{t('notFound.back')}</LinkButton>
        </div>
      </Gate>
    );
  if (view === null)
    return (
      <Gate title={t('invitation.title')}>
        <Skeleton />
      </Gate>
    );
  const text = t('invitation.text', {
    organization: neutralise(view.organization),
    role: t(`role.${view.role}`),
    email: view.email,
  });
  return (
    <Gate title={t('invitation.title')} text={text}>
      {me !== null && me.email === view.email && <Join token={token} />}
      {me !== null && me.email !== view.email && (
        <>
          <Banner tone="warn" title={t('invitation.otherAccount')}>
            <span class="isolate">{me.email}</span>
          </Banner>
          <div>
            <Button onClick={() => void signOut()}>{t('invitation.signOut')}</Button>
          </div>
        </>
      )}
      {me === null && view.has_account && (
        <>
          <p>{t('invitation.signIn')}</p>
          <SignInForm email={view.email} />
        </>
      )}
      {me === null && !view.has_account && <NewAccount token={token} email={view.email} />}
    </Gate>
  );
}

function Join({ token }: { token: string }) {
  const action = useAction(async () => {
    await call('POST', '/invitations/accept', { body: { token } });
    await loadSession();
    navigate('/orgs', { replace: true });
  });
  return (
    <>
      <ProblemBanner problem={action.problem} />
      <Button look="primary" isBlock isBusy={action.isBusy} onClick={() => void action.run()}>
        {t('invitation.join')}
      </Button>
    </>
  );
}

function NewAccount({ token, email }: { token: string; email: string }) {
  const [name, setName] = useState('');
  const [password, setPassword] = useState('');
  const [isSubmitted, setSubmitted] = useState(false);
  const action = useAction(async () => {
    await call('POST', '/invitations/accept', { body: { token, name: name.trim(), password }, isSigningIn: true });
    await beginSession();
    navigate('/orgs', { replace: true });
  });
  const submit = (event: Event) => {
    event.preventDefault();
    setSubmitted(true);
    if (name.trim() !== '' && passwordProblem(password, email) === undefined) void action.run();
  };
  return (
    <form class="stack" noValidate onSubmit={submit}>
      <p>{t('invitation.newAccount')}</p>
      <ProblemBanner problem={action.problem} />
      <TextField
        label={t('account.name')}
        autocomplete="name"
        maxLength={100}
        value={name}
        onInput={setName}
        error={isSubmitted && name.trim() === '' ? t('spec.error.required') : undefined}
      />
      <NewPassword value={password} onInput={setPassword} email={email} isSubmitted={isSubmitted} />
      <Button type="submit" look="primary" isBlock isBusy={action.isBusy}>
        {t('invitation.createAndJoin')}
      </Button>
    </form>
  );
}
