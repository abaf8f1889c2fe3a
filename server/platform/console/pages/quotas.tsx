import { useState } from 'preact/hooks';
import type { MadePasswordReset, OwnerQuota } from '../../api/objects';
import { NotFound } from '../app/error-pages';
import { me } from '../app/session';
import { call } from '../api/client';
import { useAction, usePages, useResource } from '../api/resource';
import { neutralise } from '../format/neutral';
import { parseQuota, QUOTA_KINDS, type QuotaKind, quotaText } from '../format/quotas';
import { locale, t } from '../i18n';
import { navigate, useLocation } from '../router/location';
import { withQuery } from '../router/match';
import { Button } from '../ui/button';
import { ConfirmDialog, Dialog } from '../ui/dialog';
import { TextField } from '../ui/field';
import { Menu, type MenuItem } from '../ui/menu';
import { Card, Page } from '../ui/page';
import { SecretDialog } from '../ui/secret-dialog';
import { Empty, Loaded, ProblemBanner } from '../ui/state';
import { Table } from '../ui/table';
import { toast } from '../ui/toast';

/** Accounts and organizations with their quotas. Only for administrators of the service. */
export function QuotasPage() {
  const { query } = useLocation();
  const q = query.get('q');
  const isAdmin = me().is_admin;
  const quotas = usePages<OwnerQuota>(isAdmin ? withQuery('/quotas', { q }) : null);
  const [wanted, setWanted] = useState(q ?? '');
  const [open, setOpen] = useState<Open | null>(null);
  const done = () => {
    setOpen(null);
    quotas.reload();
  };
  const submit = (event: Event) => {
    event.preventDefault();
    navigate(withQuery('/quotas', { q: wanted.trim() }), { replace: true });
  };
  if (!isAdmin) return <NotFound />;
  return (
    <Page title={t('nav.quotas')} subtitle={t('quotas.subtitle')}>
      <div class="stack">
        <Card>
          <form class="stack" onSubmit={submit}>
            <TextField label={t('quotas.search')} maxLength={100} value={wanted} onInput={setWanted} />
            <div class="row">
              <Button type="submit" icon="search">
                {t('action.filter')}
              </Button>
            </div>
          </form>
        </Card>
        <Card isFlush>
          <Loaded of={quotas}>
            {(data) =>
              data.length === 0 ? (
                <Empty icon="orgs" title={t('quotas.noMatch')} />
              ) : (
                <Table
                  label={t('nav.quotas')}
                  rows={data}
                  keyOf={({ owner }) => owner.id}
                  hasMore={quotas.hasMore}
                  isLoading={quotas.isLoading}
                  onMore={quotas.loadMore}
                  columns={[
                    {
                      title: t('field.owner'),
                      cell: ({ owner, is_admin: isAdministrator }) => (
                        <div>
                          <span class="table-name isolate">{neutralise(owner.name)}</span>
                          {isAdministrator && (
                            <>
                              {' '}
                              <span class="badge badge-info">{t('quotas.admin')}</span>
                            </>
                          )}
                          <code class="table-sub">{owner.id}</code>
                        </div>
                      ),
                    },
                    { title: t('quotas.type'), cell: ({ owner }) => t(`quotas.type.${owner.type}`) },
                    ...QUOTA_KINDS.map((kind) => ({
                      title: t(kind.title),
                      cell: (of: OwnerQuota) => <QuotaUsage of={of} kind={kind} />,
                    })),
                    {
                      title: t('field.actions'),
                      isActions: true,
                      cell: (of) => (
                        <Menu
                          label={t('keys.actionsOf', { name: neutralise(of.owner.name) })}
                          items={[
                            { label: t('quotas.edit'), icon: 'edit', onSelect: () => setOpen({ what: 'quota', of }) },
                            ...(of.owner.type === 'user' && of.owner.id !== me().id ? accountItems(of, setOpen) : []),
                          ]}
                        />
                      ),
                    },
                  ]}
                />
              )
            }
          </Loaded>
        </Card>
      </div>
      {open?.what === 'quota' && <QuotaDialog of={open.of} onClose={() => setOpen(null)} onDone={done} />}
      {open?.what === 'role' && <RoleDialog of={open.of} onClose={() => setOpen(null)} onDone={done} />}
      {open?.what === 'reset' && <ResetDialog of={open.of} onClose={() => setOpen(null)} />}
      {open?.what === 'delete' && <DeleteDialog of={open.of} onClose={() => setOpen(null)} onDone={done} />}
    </Page>
  );
}

interface Open {
  what: 'quota' | 'role' | 'reset' | 'delete';
  of: OwnerQuota;
}

/** What an administrator can do with the account of another user. */
function accountItems(of: OwnerQuota, open: (next: Open) => void): (MenuItem | 'line')[] {
  return [
    {
      label: t(of.is_admin ? 'quotas.demote' : 'quotas.promote'),
      icon: 'account',
      onSelect: () => open({ what: 'role', of }),
    },
    { label: t('quotas.reset'), icon: 'lock', onSelect: () => open({ what: 'reset', of }) },
    'line',
    { label: t('deleteAccount.title'), icon: 'trash', isDanger: true, onSelect: () => open({ what: 'delete', of }) },
  ];
}

function QuotaUsage({ of, kind: { kind, format } }: { of: OwnerQuota; kind: QuotaKind }) {
  const used = format(of[`used_${kind}`], locale());
  const quota = of[`quota_${kind}`];
  return (
    <div class="numeric nowrap">
      {used}
      <span class="table-sub">
        {quota === null ? t('quotas.unlimited') : t('quotas.of', { quota: format(quota, locale()) })}
      </span>
    </div>
  );
}

interface DialogProps {
  of: OwnerQuota;
  onClose: () => void;
  onDone: () => void;
}

function QuotaDialog({ of, onClose, onDone }: DialogProps) {
  const current = useResource<OwnerQuota>(`/quotas/${of.owner.id}`);
  const { rev, owner, ...quotas } = current.data ?? of;
  /** By index. They stay when the current quotas arrive. */
  const [edits, setEdits] = useState<Readonly<Record<number, string>>>({});
  const texts = QUOTA_KINDS.map((kind, i) => edits[i] ?? quotaText(kind, quotas));
  const values = QUOTA_KINDS.map((kind, i) => parseQuota(kind, texts[i]));
  const action = useAction(async () => {
    await call('PATCH', `/quotas/${owner.id}`, {
      body: Object.fromEntries(QUOTA_KINDS.map(({ kind }, i) => [`quota_${kind}`, values[i]])),
      ifMatch: rev,
    });
    toast(t('action.saved'));
    onDone();
  });
  return (
    <Dialog
      title={t('quotas.edit')}
      onClose={onClose}
      onSubmit={() => {
        if (!values.includes(undefined)) void action.run();
      }}
      foot={
        <>
          <Button onClick={onClose}>{t('action.cancel')}</Button>
          <Button type="submit" look="primary" isBusy={action.isBusy}>
            {t('action.save')}
          </Button>
        </>
      }
    >
      <p>
        <span class="isolate">{neutralise(owner.name)}</span>
      </p>
      <ProblemBanner problem={action.problem}>
        {action.problem?.status === 412 && (
          <div class="row">
            <Button
              isSmall
              onClick={() => {
                setEdits({});
                current.reload();
              }}
            >
              {t('action.reload')}
            </Button>
          </div>
        )}
      </ProblemBanner>
      <p class="soft">{t('orgs.quotaHint')}</p>
      <div class="columns">
        {QUOTA_KINDS.map(({ kind, limit, unit }, i) => (
          <TextField
            key={kind}
            label={t(limit)}
            isOptional
            inputMode="decimal"
            {...(unit === undefined ? {} : { unit })}
            value={texts[i]}
            onInput={(text) => setEdits({ ...edits, [i]: text })}
            error={values[i] === undefined ? t('spec.error.number') : undefined}
          />
        ))}
      </div>
    </Dialog>
  );
}

function RoleDialog({ of: { owner, is_admin: isAdmin }, onClose, onDone }: DialogProps) {
  const action = useAction(async () => {
    await call('PUT', `/users/${owner.id}/administrator`, { body: { enabled: !isAdmin } });
    toast(t('action.saved'));
    onDone();
  });
  return (
    <ConfirmDialog
      title={t(isAdmin ? 'quotas.demoteName' : 'quotas.promoteName', { name: neutralise(owner.name) })}
      confirm={t(isAdmin ? 'quotas.demote' : 'quotas.promote')}
      isDanger={isAdmin}
      isBusy={action.isBusy}
      problem={action.problem}
      onClose={onClose}
      onConfirm={() => void action.run()}
    >
      <p>{t(isAdmin ? 'quotas.demoteText' : 'quotas.promoteText')}</p>
    </ConfirmDialog>
  );
}

function ResetDialog({ of: { owner }, onClose }: Pick<DialogProps, 'of' | 'onClose'>) {
  const [made, setMade] = useState<MadePasswordReset | null>(null);
  const action = useAction(async () =>
    setMade(await call<MadePasswordReset>('POST', `/users/${owner.id}/password-reset`)),
  );
  if (made !== null)
    return (
      <SecretDialog
        title={t('quotas.resetLink')}
        secret={`${location.origin}/reset#${made.token ?? ''}`}
        label={t('quotas.resetLink')}
        onClose={onClose}
      >
        <p class="soft">
          {t('quotas.resetSend')} <strong class="isolate">{neutralise(made.email)}</strong>
        </p>
      </SecretDialog>
    );
  return (
    <ConfirmDialog
      title={t('quotas.resetName', { name: neutralise(owner.name) })}
      confirm={t('quotas.resetCreate')}
      isDanger={false}
      isBusy={action.isBusy}
      problem={action.problem}
      onClose={onClose}
      onConfirm={() => void action.run()}
    >
      <p>{t('quotas.resetText')}</p>
    </ConfirmDialog>
  );
}

function DeleteDialog({ of: { owner }, onClose, onDone }: DialogProps) {
  const action = useAction(async () => {
    await call('DELETE', withQuery(`/users/${owner.id}`, { confirm: owner.name }));
    toast(t('quotas.deleted'));
    onDone();
  });
  return (
    <ConfirmDialog
      title={t('deleteAccount.title')}
      confirm={t('deleteAccount.title')}
      name={owner.name}
      isBusy={action.isBusy}
      problem={action.problem}
      onClose={onClose}
      onConfirm={() => void action.run()}
    >
      <p>{t('quotas.deleteText')}</p>
    </ConfirmDialog>
  );
}
