import { useState } from 'preact/hooks';
import type { Me } from '../../../api/objects';
import { me, setAccount } from '../../app/session';
import { call } from '../../api/client';
import { fieldMessage } from '../../api/problem';
import { useAction } from '../../api/resource';
import { t } from '../../i18n';
import { Button } from '../../ui/button';
import { TextField } from '../../ui/field';
import { Card } from '../../ui/page';
import { ProblemBanner } from '../../ui/state';
import { toast } from '../../ui/toast';

/** Changes the email address. Requires the password, because the address identifies the account. */
export function EmailCard() {
  const [email, setEmail] = useState('');
  const [password, setPassword] = useState('');
  const [isSubmitted, setSubmitted] = useState(false);
  const action = useAction(async () => {
    setAccount(await call<Me>('POST', '/me/email', { body: { email: email.trim(), password }, isSigningIn: true }));
    setEmail('');
    setPassword('');
    setSubmitted(false);
    toast(t('email.changed'));
  });
  const submit = (event: Event) => {
    event.preventDefault();
    setSubmitted(true);
    if (email.trim() !== '' && password !== '') void action.run();
  };
  const missing = (value: string) => (isSubmitted && value.trim() === '' ? t('spec.error.required') : undefined);
  return (
    <Card title={t('signIn.email')} note={t('email.note', { email: me().email })}>
      <form class="stack" noValidate onSubmit={submit}>
        <ProblemBanner problem={action.problem} />
        <TextField
          label={t('email.new')}
          type="email"
          autocomplete="username"
          maxLength={254}
          value={email}
          onInput={setEmail}
          error={missing(email) ?? fieldMessage(action.problem, '/email')}
        />
        <TextField
          label={t('password.current')}
          type="password"
          autocomplete="current-password"
          value={password}
          onInput={setPassword}
          error={missing(password) ?? fieldMessage(action.problem, '/password')}
        />
        <div>
          <Button type="submit" look="primary" isBusy={action.isBusy}>
            {t('email.change')}
          </Button>
        </div>
      </form>
    </Card>
  );
}
