import { t } from '../i18n';
import { Gate } from './gate';
import { SignInForm } from './sign-in-form';

/** At every address of ours while nobody is signed in: after it the page that was asked for is there. */
export function SignInPage() {
  return (
    <Gate title={t('signIn.title')} text={t('signIn.text')}>
      <SignInForm />
    </Gate>
  );
}
