import { useState } from 'preact/hooks';
import { signIn } from '../app/session';
import { useAction } from '../api/resource';
import { t } from '../i18n';
import { Button } from '../ui/button';
import { TextField } from '../ui/field';
import { ProblemBanner } from '../ui/state';

/** Asks for email and password, and for the code of the authenticator app if the account needs it. */
export function SignInForm({ email: initialEmail = '' }: { email?: string }) {
  const [email, setEmail] = useState(initialEmail);
  const [password, setPassword] = useState('');
  const [otp, setOtp] = useState('');
  const action = useAction(async () => {
    await signIn({ email: email.trim(), password, ...(otp === '' ? {} : { otp: otp.trim() }) });
  });
  const needsOtp = action.problem?.code === 'otp_required' || otp !== '';
  const submit = (event: Event) => {
    event.preventDefault();
    void action.run();
  };
  return (
    <form class="stack" onSubmit={submit}>
      {action.problem !== null && action.problem.code !== 'otp_required' && <ProblemBanner problem={action.problem} />}
      <TextField
        label={t('signIn.email')}
        type="email"
        name="email"
        autocomplete="username"
        required
        autoFocus={initialEmail === ''}
        value={email}
        onInput={setEmail}
      />
      <TextField
        label={t('signIn.password')}
        type="password"
        name="password"
        autocomplete="current-password"
        required
        autoFocus={initialEmail !== ''}
        value={password}
        onInput={setPassword}
      />
      {needsOtp && (
        <TextField
          label={t('signIn.otp')}
          hint={t('signIn.otpHint')}
          name="otp"
          autocomplete="one-time-code"
          maxLength={40}
          autoFocus
          value={otp}
          onInput={setOtp}
          isMono
        />
      )}
      <Button type="submit" look="primary" isBlock isBusy={action.isBusy}>
        {t('signIn.submit')}
      </Button>
    </form>
  );
}
