import { t } from '../i18n';
import { ProviderButtons } from '../pages/provider-buttons';
import { SignInForm } from '../pages/sign-in-form';
import { Button } from '../ui/button';
import { Dialog } from '../ui/dialog';
import { clearSession, me } from './session';

/** Asks the user to sign in again after the session has ended. The page behind it keeps its input. */
export function ReturnDialog() {
  return (
    <Dialog title={t('ended.title')} onClose={clearSession} isPersistent>
      <p class="soft">{t('ended.text')}</p>
      <ProviderButtons />
      <SignInForm email={me().email} />
      <div>
        <Button look="quiet" isSmall onClick={clearSession}>
          {t('ended.leave')}
        </Button>
      </div>
    </Dialog>
  );
}
