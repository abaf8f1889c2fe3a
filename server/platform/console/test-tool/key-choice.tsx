import { t } from '../i18n';
import { Segments, TextField } from '../ui/field';

/** Chooses the key of a request. The key is sent, but not stored. */
export function KeyChoice({
  value,
  onChange,
  error,
  isRestricted,
}: {
  value: { auth: 'none' | 'key'; key: string };
  onChange: (value: { auth: 'none' | 'key'; key: string }) => void;
  error?: string;
  isRestricted: boolean;
}) {
  return (
    <div class="stack-small">
      <div class="row">
        <Segments
          label={t('test.auth')}
          value={value.auth}
          onChange={(auth) => onChange({ ...value, auth })}
          options={[
            { value: 'none', label: t('test.auth.none') },
            { value: 'key', label: t('test.auth.key') },
          ]}
        />
        {value.auth === 'none' && (
          <span class="hint">{t(isRestricted ? 'test.auth.willRefuse' : 'test.auth.public')}</span>
        )}
      </div>
      {value.auth === 'key' && (
        <TextField
          label={t('test.key')}
          hint={t('test.keyHint')}
          type="password"
          isMono
          autocomplete="off"
          placeholder="sk-cap1_…"
          value={value.key}
          onInput={(key) => onChange({ ...value, key })}
          error={error}
        />
      )}
    </div>
  );
}
