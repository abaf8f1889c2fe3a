import { useState } from 'preact/hooks';
import type { Me, RecoveryCodes, TotpSecret } from '../../../api/objects';
import { me, setAccount } from '../../app/session';
import { call } from '../../api/client';
import { useAction } from '../../api/resource';
import { t } from '../../i18n';
import { Button } from '../../ui/button';
import { CopyLine } from '../../ui/copy';
import { Dialog } from '../../ui/dialog';
import { TextField } from '../../ui/field';
import { Card } from '../../ui/page';
import { QrCode } from '../../ui/qr';
import { SecretDialog } from '../../ui/secret-dialog';
import { Banner, ProblemBanner } from '../../ui/state';
import { toast } from '../../ui/toast';

/** The second factor and its recovery codes. */
export function TotpCard() {
  const { has_totp: hasTotp, recovery_codes_left: numLeft } = me();
  const [open, setOpen] = useState<'enable' | 'disable' | 'renew' | null>(null);
  const [codes, setCodes] = useState<readonly string[] | null>(null);
  const close = () => setOpen(null);
  const done = async (message: string, shown: RecoveryCodes | null) => {
    setAccount(await call<Me>('GET', '/me'));
    setCodes(shown?.recovery_codes ?? null);
    toast(message);
    close();
  };
  const disable = async (password: string) => {
    await call('DELETE', '/me/totp', { body: { password }, isSigningIn: true });
    await done(t('totp.disabled'), null);
  };
  const renew = async (password: string) =>
    done(
      t('recovery.renewed'),
      await call<RecoveryCodes>('POST', '/me/recovery-codes', { body: { password }, isSigningIn: true }),
    );
  return (
    <Card title={t('totp.title')} note={t('totp.note')}>
      <div class="stack">
        <Banner tone={hasTotp ? 'ok' : 'info'} title={t(hasTotp ? 'totp.on' : 'totp.off')} />
        {hasTotp && <Banner tone={numLeft > 2 ? 'info' : 'warn'} title={t('recovery.left', { n: numLeft })} />}
        <div class="row">
          {hasTotp && <Button onClick={() => setOpen('renew')}>{t('recovery.renew')}</Button>}
          <Button
            look={hasTotp ? 'danger' : 'plain'}
            icon="lock"
            onClick={() => setOpen(hasTotp ? 'disable' : 'enable')}
          >
            {t(hasTotp ? 'totp.disable' : 'totp.enable')}
          </Button>
        </div>
      </div>
      {open === 'enable' && <EnableTotp onClose={close} onDone={(shown) => done(t('totp.enabled'), shown)} />}
      {open === 'disable' && (
        <PasswordDialog
          isDanger
          text={t('totp.disableText')}
          submit={t('totp.disable')}
          onClose={close}
          run={disable}
        />
      )}
      {open === 'renew' && (
        <PasswordDialog text={t('recovery.renewText')} submit={t('recovery.renew')} onClose={close} run={renew} />
      )}
      {codes !== null && (
        <SecretDialog
          title={t('recovery.title')}
          secret={codes.join('\n')}
          label={t('recovery.title')}
          onClose={() => setCodes(null)}
        >
          <p class="soft">{t('recovery.text')}</p>
        </SecretDialog>
      )}
    </Card>
  );
}

function EnableTotp({ onClose, onDone }: { onClose: () => void; onDone: (shown: RecoveryCodes) => Promise<void> }) {
  const [password, setPassword] = useState('');
  const [secret, setSecret] = useState<TotpSecret | null>(null);
  const [otp, setOtp] = useState('');
  const start = useAction(async () =>
    setSecret(await call<TotpSecret>('POST', '/me/totp', { body: { password }, isSigningIn: true })),
  );
  const confirm = useAction(async () =>
    onDone(await call<RecoveryCodes>('PUT', '/me/totp', { body: { otp: otp.trim() }, isSigningIn: true })),
  );
  const foot = (
    <>
      <Button onClick={onClose}>{t('action.cancel')}</Button>
      <Button type="submit" look="primary" isBusy={start.isBusy || confirm.isBusy}>
        {t(secret === null ? 'action.continue' : 'totp.enable')}
      </Button>
    </>
  );
  return (
    <Dialog
      title={t('totp.title')}
      onClose={onClose}
      onSubmit={() => void (secret === null ? start.run() : confirm.run())}
      foot={foot}
    >
      {secret === null ? (
        <>
          <p class="soft">{t('totp.passwordFirst')}</p>
          <ProblemBanner problem={start.problem} />
          <CurrentPassword value={password} onInput={setPassword} />
        </>
      ) : (
        <>
          <p class="soft">{t('totp.scan')}</p>
          <QrCode text={secret.url} label={t('totp.qr')} />
          <CopyLine text={secret.secret} label={t('totp.secret')} isWrapped />
          <ProblemBanner problem={confirm.problem} />
          <TextField
            label={t('signIn.otp')}
            hint={t('totp.codeHint')}
            inputMode="numeric"
            autocomplete="one-time-code"
            maxLength={6}
            isMono
            autoFocus
            value={otp}
            onInput={setOtp}
          />
        </>
      )}
    </Dialog>
  );
}

/** Asks for the password before a change. */
function PasswordDialog({
  text,
  submit,
  isDanger = false,
  onClose,
  run,
}: {
  text: string;
  submit: string;
  isDanger?: boolean;
  onClose: () => void;
  run: (password: string) => Promise<void>;
}) {
  const [password, setPassword] = useState('');
  const action = useAction(() => run(password));
  return (
    <Dialog
      title={t('totp.title')}
      onClose={onClose}
      onSubmit={() => void action.run()}
      foot={
        <>
          <Button onClick={onClose}>{t('action.cancel')}</Button>
          <Button type="submit" look={isDanger ? 'danger-solid' : 'primary'} isBusy={action.isBusy}>
            {submit}
          </Button>
        </>
      }
    >
      <p class="soft">{text}</p>
      <ProblemBanner problem={action.problem} />
      <CurrentPassword value={password} onInput={setPassword} />
    </Dialog>
  );
}

function CurrentPassword({ value, onInput }: { value: string; onInput: (value: string) => void }) {
  return (
    <TextField
      label={t('password.current')}
      type="password"
      autocomplete="current-password"
      autoFocus
      value={value}
      onInput={onInput}
    />
  );
}
