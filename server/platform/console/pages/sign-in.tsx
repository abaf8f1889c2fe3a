import { t } from '../i18n';
import { Gate } from './gate';
import { ProviderButtons } from './provider-buttons';
import { SignInForm } from './sign-in-form';

/** Shown at every path while there is no session. After the sign-in, the requested page appears. */
export function SignInPage() {
  return (
    <Gate title={t('signIn.title')} text={t('signIn.text')}>
      <ProviderButtons />
      <SignInForm />
    </Gate>
  );
}
