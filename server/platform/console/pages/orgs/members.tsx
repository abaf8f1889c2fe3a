import { useState } from 'preact/hooks';
import type { Invitation, MadeInvitation, Member, Organization } from '../../../api/objects';
import { isAtLeast } from '../../app/rights';
import { loadSession, me } from '../../app/session';
import { call } from '../../api/client';
import { fieldMessage } from '../../api/problem';
import { useAction, usePages } from '../../api/resource';
import { neutralise } from '../../format/neutral';
import { formatDate } from '../../format/times';
import { locale, t } from '../../i18n';
import { navigate } from '../../router/location';
import { Button } from '../../ui/button';
import { ConfirmDialog, Dialog } from '../../ui/dialog';
import { Select, SelectField, TextField } from '../../ui/field';
import { Card } from '../../ui/page';
import { SecretDialog } from '../../ui/secret-dialog';
import { Empty, Loaded, ProblemBanner } from '../../ui/state';
import { Table } from '../../ui/table';
import { toast } from '../../ui/toast';

type Role = Member['role'];
const ROLES: readonly Role[] = ['viewer', 'developer', 'admin', 'owner'];

export function MembersTab({ org }: { org: Organization }) {
  const isAdmin = isAtLeast(org.role, 'admin');
  return (
    <div class="stack">
      <MembersCard org={org} isAdmin={isAdmin} />
      {isAdmin && <InvitationsCard org={org} />}
    </div>
  );
}

function MembersCard({ org, isAdmin }: { org: Organization; isAdmin: boolean }) {
  const members = usePages<Member>(`/orgs/${org.id}/members`);
  const [leaving, setLeaving] = useState<Member | null>(null);
  const setRole = useAction(async (member: Member, role: Role) => {
    await call('PATCH', `/orgs/${org.id}/members/${member.user_id}`, { body: { role } });
    members.reload();
    toast(t('orgs.roleChanged'));
  });
  const remove = useAction(async (member: Member) => {
    await call('DELETE', `/orgs/${org.id}/members/${member.user_id}`);
    setLeaving(null);
    if (member.user_id !== me().id) return members.reload();
    await loadSession();
    navigate('/orgs');
  });
  const assignableRoles = ROLES.filter((role) => isAtLeast(org.role, role));
  const isSelf = (member: Member) => member.user_id === me().id;
  return (
    <Card title={t('orgs.members')} note={t('orgs.membersNote')} isFlush>
      {setRole.problem !== null && (
        <div class="card-body">
          <ProblemBanner problem={setRole.problem} />
        </div>
      )}
      <Loaded of={members}>
        {(data) => (
          <Table
            label={t('orgs.members')}
            rows={data}
            keyOf={({ user_id }) => user_id}
            hasMore={members.hasMore}
            isLoading={members.isLoading}
            onMore={members.loadMore}
            columns={[
              {
                title: t('account.name'),
                cell: (member) => (
                  <div>
                    <span class="table-name isolate">{neutralise(member.name)}</span>
                    {isSelf(member) && (
                      <>
                        {' '}
                        <span class="tag">{t('orgs.you')}</span>
                      </>
                    )}
                    <span class="table-sub isolate">{member.email}</span>
                  </div>
                ),
              },
              {
                title: t('orgs.role'),
                cell: (member) =>
                  isAdmin && isAtLeast(org.role, member.role) && !isSelf(member) ? (
                    <Select
                      label={`${t('orgs.role')}: ${neutralise(member.name)}`}
                      value={member.role}
                      onChange={(role) => void setRole.run(member, role as Role)}
                      options={assignableRoles.map((role) => ({ value: role, label: t(`role.${role}`) }))}
                    />
                  ) : (
                    t(`role.${member.role}`)
                  ),
              },
              {
                title: t('field.actions'),
                isActions: true,
                cell: (member) =>
                  (isSelf(member) || (isAdmin && isAtLeast(org.role, member.role))) && (
                    <Button isSmall look="danger" onClick={() => setLeaving(member)}>
                      {t(isSelf(member) ? 'orgs.leave' : 'orgs.remove')}
                    </Button>
                  ),
              },
            ]}
          />
        )}
      </Loaded>
      {leaving !== null && (
        <ConfirmDialog
          title={t(isSelf(leaving) ? 'orgs.leaveTitle' : 'orgs.removeTitle')}
          confirm={t(isSelf(leaving) ? 'orgs.leave' : 'orgs.remove')}
          isBusy={remove.isBusy}
          problem={remove.problem}
          onClose={() => setLeaving(null)}
          onConfirm={() => void remove.run(leaving)}
        >
          <p>
            {t(isSelf(leaving) ? 'orgs.leaveText' : 'orgs.removeText')}{' '}
            <strong class="isolate">{neutralise(isSelf(leaving) ? org.name : leaving.name)}</strong>
          </p>
        </ConfirmDialog>
      )}
    </Card>
  );
}

function InvitationsCard({ org }: { org: Organization }) {
  const invitations = usePages<Invitation>(`/orgs/${org.id}/invitations`);
  const [isInviting, setInviting] = useState(false);
  const [made, setMade] = useState<MadeInvitation | null>(null);
  const withdraw = useAction(async ({ id }: Invitation) => {
    await call('DELETE', `/orgs/${org.id}/invitations/${id}`);
    invitations.reload();
    toast(t('invitations.withdrawn'));
  });
  const done = (invitation: MadeInvitation) => {
    setInviting(false);
    invitations.reload();
    if (invitation.token !== null) setMade(invitation);
  };
  return (
    <Card
      title={t('invitations.title')}
      note={t('invitations.note')}
      isFlush
      aside={
        <Button isSmall look="primary" icon="plus" onClick={() => setInviting(true)}>
          {t('invitations.create')}
        </Button>
      }
    >
      {withdraw.problem !== null && (
        <div class="card-body">
          <ProblemBanner problem={withdraw.problem} />
        </div>
      )}
      <Loaded of={invitations}>
        {(data) =>
          data.length === 0 ? (
            <Empty level={3} icon="send" title={t('invitations.empty')} />
          ) : (
            <Table
              label={t('invitations.title')}
              rows={data}
              keyOf={({ id }) => id}
              hasMore={invitations.hasMore}
              isLoading={invitations.isLoading}
              onMore={invitations.loadMore}
              columns={[
                { title: t('signIn.email'), cell: ({ email }) => <span class="isolate">{neutralise(email)}</span> },
                { title: t('orgs.role'), cell: ({ role }) => t(`role.${role}`) },
                { title: t('keys.expires'), cell: (invitation) => formatDate(invitation.expires_at, locale()) },
                {
                  title: t('field.actions'),
                  isActions: true,
                  cell: (invitation) => (
                    <Button isSmall look="danger" onClick={() => void withdraw.run(invitation)}>
                      {t('invitations.withdraw')}
                    </Button>
                  ),
                },
              ]}
            />
          )
        }
      </Loaded>
      {isInviting && <InviteDialog org={org} onClose={() => setInviting(false)} onDone={done} />}
      {made !== null && (
        <SecretDialog
          title={t('invitations.linkTitle')}
          secret={`${location.origin}/invitation#${made.token ?? ''}`}
          label={t('invitations.link')}
          onClose={() => setMade(null)}
        >
          <p class="soft">
            {t('invitations.linkText')} <strong class="isolate">{neutralise(made.email)}</strong>
          </p>
        </SecretDialog>
      )}
    </Card>
  );
}

function InviteDialog({
  org,
  onClose,
  onDone,
}: {
  org: Organization;
  onClose: () => void;
  onDone: (made: MadeInvitation) => void;
}) {
  const [email, setEmail] = useState('');
  const [role, setRole] = useState<Role>('developer');
  const action = useAction(async () =>
    onDone(await call<MadeInvitation>('POST', `/orgs/${org.id}/invitations`, { body: { email: email.trim(), role } })),
  );
  return (
    <Dialog
      title={t('invitations.create')}
      onClose={onClose}
      onSubmit={() => void action.run()}
      foot={
        <>
          <Button onClick={onClose}>{t('action.cancel')}</Button>
          <Button type="submit" look="primary" isBusy={action.isBusy} isDisabled={!email.includes('@')}>
            {t('invitations.create')}
          </Button>
        </>
      }
    >
      <ProblemBanner problem={action.problem} />
      <TextField
        label={t('signIn.email')}
        type="email"
        autoFocus
        value={email}
        onInput={setEmail}
        error={fieldMessage(action.problem, '/email')}
      />
      <SelectField
        label={t('orgs.role')}
        hint={t(`role.hint.${role}`)}
        value={role}
        onChange={(value) => setRole(value as Role)}
        options={ROLES.filter((option) => isAtLeast(org.role, option)).map((option) => ({
          value: option,
          label: t(`role.${option}`),
        }))}
      />
    </Dialog>
  );
}
