import { useState } from 'preact/hooks';
import { t } from '../i18n';
import { Checkbox, TextField } from '../ui/field';

const MIN_PASSWORD_LENGTH = 10;

/** Applies the password rule of the service before the request is sent. */
export function passwordProblem(password: string, email: string): string | undefined {
  if ([...password].length < MIN_PASSWORD_LENGTH) return t('password.short', { n: MIN_PASSWORD_LENGTH });
  return password.toLowerCase() === email.trim().toLowerCase() ? t('password.isEmail') : undefined;
}

export function NewPassword({
  value,
  onInput,
  email,
  isSubmitted,
  label = t('signIn.password'),
}: {
  value: string;
  onInput: (value: string) => void;
  email: string;
  isSubmitted: boolean;
  label?: string;
}) {
  const [isShown, setShown] = useState(false);
  return (
    <div class="stack-small">
      <TextField
        label={label}
        type={isShown ? 'text' : 'password'}
        autocomplete="new-password"
        maxLength={256}
        value={value}
        onInput={onInput}
        hint={t('password.hint', { n: MIN_PASSWORD_LENGTH })}
        error={isSubmitted ? passwordProblem(value, email) : undefined}
      />
      <Checkbox label={t('password.show')} isChecked={isShown} onChange={setShown} />
    </div>
  );
}
