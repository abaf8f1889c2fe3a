import { useState } from 'preact/hooks';
import type { Session } from '../../../api/objects';
import { loadSession, me } from '../../app/session';
import { call } from '../../api/client';
import { fieldMessage } from '../../api/problem';
import { useAction, usePages } from '../../api/resource';
import { agentName } from '../../format/agent';
import { t } from '../../i18n';
import { Button } from '../../ui/button';
import { TextField } from '../../ui/field';
import { Card } from '../../ui/page';
import { Banner, Loaded, ProblemBanner } from '../../ui/state';
import { Table } from '../../ui/table';
import { Ago, At } from '../../ui/time';
import { toast } from '../../ui/toast';
import { NewPassword, passwordProblem } from '../new-password';
import { DeleteAccountCard } from './delete-account';
import { TotpCard } from './totp';

export function SecurityTab() {
  const { has_password: hasPassword } = me();
  return (
    <div class="stack">
      {hasPassword ? (
        <div class="columns-wide">
          <PasswordCard />
          <TotpCard />
        </div>
      ) : (
        <Banner title={t('account.provider')}>{t('account.providerHint')}</Banner>
      )}
      <SessionsCard />
      {hasPassword && <DeleteAccountCard />}
    </div>
  );
}

function PasswordCard() {
  const [current, setCurrent] = useState('');
  const [password, setPassword] = useState('');
  const [isSubmitted, setSubmitted] = useState(false);
  const action = useAction(async () => {
    await call('POST', '/me/password', { body: { current, password }, isSigningIn: true });
    await loadSession();
    setCurrent('');
    setPassword('');
    setSubmitted(false);
    toast(t('password.changed'));
  });
  const submit = (event: Event) => {
    event.preventDefault();
    setSubmitted(true);
    if (current !== '' && passwordProblem(password, me().email) === undefined) void action.run();
  };
  return (
    <Card title={t('password.title')} note={t('password.note')}>
      <form class="stack" noValidate onSubmit={submit}>
        <ProblemBanner problem={action.problem} />
        <TextField
          label={t('password.current')}
          type="password"
          autocomplete="current-password"
          value={current}
          onInput={setCurrent}
          error={isSubmitted && current === '' ? t('spec.error.required') : fieldMessage(action.problem, '/current')}
        />
        <NewPassword
          label={t('password.new')}
          value={password}
          onInput={setPassword}
          email={me().email}
          isSubmitted={isSubmitted}
        />
        <div>
          <Button type="submit" look="primary" isBusy={action.isBusy}>
            {t('password.change')}
          </Button>
        </div>
      </form>
    </Card>
  );
}

function SessionsCard() {
  const sessions = usePages<Session>('/sessions');
  const action = useAction(async (id: string) => {
    await call('DELETE', `/sessions/${id}`);
    sessions.reload();
    toast(t('sessions.ended'));
  });
  return (
    <Card
      title={t('sessions.title')}
      note={`${t('sessions.note')} ${t(`sessions.guard.${me().session_guard}`)}`}
      isFlush
    >
      {action.problem !== null && (
        <div class="card-body">
          <ProblemBanner problem={action.problem} />
        </div>
      )}
      <Loaded of={sessions}>
        {(data) => (
          <Table
            label={t('sessions.title')}
            rows={data}
            keyOf={({ id }) => id}
            hasMore={sessions.hasMore}
            isLoading={sessions.isLoading}
            onMore={sessions.loadMore}
            columns={[
              {
                title: t('sessions.browser'),
                cell: (session) => (
                  <div>
                    <span class="table-name" title={session.user_agent ?? ''}>
                      {agentName(session.user_agent) ?? t('sessions.unknown')}
                    </span>
                    {session.is_current && (
                      <>
                        {' '}
                        <span class="tag">{t('sessions.current')}</span>
                      </>
                    )}
                  </div>
                ),
              },
              { title: t('sessions.address'), cell: ({ ip }) => <code>{ip ?? '–'}</code> },
              { title: t('sessions.opened'), cell: (session) => <At time={session.created_at} /> },
              { title: t('sessions.seen'), cell: (session) => <Ago time={session.last_seen_at} /> },
              {
                title: t('field.actions'),
                isActions: true,
                cell: (session) =>
                  !session.is_current && (
                    <Button isSmall look="danger" onClick={() => void action.run(session.id)}>
                      {t('sessions.end')}
                    </Button>
                  ),
              },
            ]}
          />
        )}
      </Loaded>
    </Card>
  );
}
