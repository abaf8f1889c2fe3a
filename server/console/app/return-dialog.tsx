import { t } from '../i18n';
import { SignInForm } from '../pages/sign-in-form';
import { Button } from '../ui/button';
import { Dialog } from '../ui/dialog';
import { forget, me } from './session';

/** The session has ended while a page was open: what was typed there stays, and goes on after signing in again. */
export function ReturnDialog() {
  return (
    <Dialog title={t('ended.title')} onClose={forget} isKept>
      <p class="soft">{t('ended.text')}</p>
      <SignInForm email={me().email} />
      <div>
        <Button look="quiet" isSmall onClick={forget}>
          {t('ended.leave')}
        </Button>
      </div>
    </Dialog>
  );
}
