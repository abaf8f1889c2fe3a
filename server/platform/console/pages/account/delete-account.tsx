import { useState } from 'preact/hooks';
import { clearSession } from '../../app/session';
import { call } from '../../api/client';
import { useAction } from '../../api/resource';
import { t } from '../../i18n';
import { navigate } from '../../router/location';
import { Button } from '../../ui/button';
import { Dialog } from '../../ui/dialog';
import { TextField } from '../../ui/field';
import { Card } from '../../ui/page';
import { ProblemBanner } from '../../ui/state';

/** Deletes the user's account. */
export function DeleteAccountCard() {
  const [isOpen, setOpen] = useState(false);
  return (
    <Card title={t('deleteAccount.title')} note={t('deleteAccount.note')} isDanger>
      <Button look="danger" icon="trash" onClick={() => setOpen(true)}>
        {t('deleteAccount.title')}
      </Button>
      {isOpen && <EndDialog onClose={() => setOpen(false)} />}
    </Card>
  );
}

function EndDialog({ onClose }: { onClose: () => void }) {
  const [password, setPassword] = useState('');
  const action = useAction(async () => {
    await call('DELETE', '/me', { body: { password }, isSigningIn: true });
    navigate('/sign-in', { replace: true });
    clearSession();
  });
  return (
    <Dialog
      title={t('deleteAccount.title')}
      onClose={onClose}
      onSubmit={() => {
        if (password !== '') void action.run();
      }}
      foot={
        <>
          <Button onClick={onClose}>{t('action.cancel')}</Button>
          <Button type="submit" look="danger-solid" isBusy={action.isBusy} isDisabled={password === ''}>
            {t('deleteAccount.title')}
          </Button>
        </>
      }
    >
      <p>{t('deleteAccount.text')}</p>
      <ProblemBanner problem={action.problem} />
      <TextField
        label={t('password.current')}
        type="password"
        autocomplete="current-password"
        autoFocus
        value={password}
        onInput={setPassword}
      />
    </Dialog>
  );
}
