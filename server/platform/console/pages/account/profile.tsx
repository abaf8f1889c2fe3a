import { useState } from 'preact/hooks';
import type { Me } from '../../../api/objects';
import { me, setAccount } from '../../app/session';
import { THEMES, type Theme } from '../../app/theme';
import { call } from '../../api/client';
import { fieldMessage } from '../../api/problem';
import { useAction } from '../../api/resource';
import { QUOTA_KINDS, quotaLimit } from '../../format/quotas';
import { type Locale, locale, LOCALES, t } from '../../i18n';
import { Button } from '../../ui/button';
import { Segments, TextField } from '../../ui/field';
import { Card, type Fact, Facts } from '../../ui/page';
import { ProblemBanner } from '../../ui/state';
import { toast } from '../../ui/toast';
import { EmailCard } from './email';

export function ProfileTab() {
  const account = me();
  const [name, setName] = useState(account.name);
  const action = useAction(async (edit: { name?: string; locale?: Locale; theme?: Theme }) => {
    setAccount(await call<Me>('PATCH', '/me', { body: edit, ifMatch: me().rev }));
    toast(t('account.saved'));
  });
  const submit = (event: Event) => {
    event.preventDefault();
    void action.run({ name: name.trim() });
  };
  return (
    <div class="stack page-narrow">
      <ProblemBanner problem={action.problem} />
      <Card title={t('account.profile')}>
        <form class="stack" onSubmit={submit}>
          <Facts
            of={[
              [t('signIn.email'), <span class="isolate">{account.email}</span>],
              account.is_admin && [t('account.role'), t('account.admin')],
              ...QUOTA_KINDS.map((kind): Fact => {
                const limit = quotaLimit(kind, account, locale());
                return limit !== undefined && [t(kind.limit), limit];
              }),
            ]}
          />
          <TextField
            label={t('account.name')}
            maxLength={100}
            autocomplete="name"
            value={name}
            onInput={setName}
            error={fieldMessage(action.problem, '/name')}
          />
          <div>
            <Button
              type="submit"
              look="primary"
              isBusy={action.isBusy}
              isDisabled={name.trim() === '' || name.trim() === account.name}
            >
              {t('action.save')}
            </Button>
          </div>
        </form>
      </Card>
      {account.has_password && <EmailCard />}
      <Card title={t('account.appearance')}>
        <div class="stack">
          <div class="stack-small">
            <span class="label">{t('account.language')}</span>
            <div>
              <Segments
                label={t('account.language')}
                value={account.locale}
                onChange={(locale) => void action.run({ locale })}
                options={LOCALES.map(({ locale, name: label }) => ({ value: locale, label }))}
              />
            </div>
          </div>
          <div class="stack-small">
            <span class="label">{t('account.theme')}</span>
            <div>
              <Segments
                label={t('account.theme')}
                value={account.theme}
                onChange={(theme) => void action.run({ theme })}
                options={THEMES.map((theme) => ({ value: theme, label: t(`theme.${theme}`) }))}
              />
            </div>
          </div>
        </div>
      </Card>
    </div>
  );
}
