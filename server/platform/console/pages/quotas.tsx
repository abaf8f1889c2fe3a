import { useEffect, useState } from 'preact/hooks';
import type { MadePasswordReset, OwnerQuota } from '../../api/objects';
import { NotFound } from '../app/error-pages';
import { me } from '../app/session';
import { call } from '../api/client';
import { useAction, usePages, useResource } from '../api/resource';
import { neutralise } from '../format/neutral';
import { t } from '../i18n';
import { navigate, useLocation } from '../router/location';
import { withQuery } from '../router/match';
import { Button } from '../ui/button';
import { ConfirmDialog, Dialog } from '../ui/dialog';
import { TextField } from '../ui/field';
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
  const [open, setOpen] = useState<{ what: 'quota' | 'role' | 'reset' | 'delete'; of: OwnerQuota } | null>(null);
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
                    {
                      title: t('nav.deployments'),
                      cell: (of) => <QuotaUsage used={of.used_deployments} quota={of.quota_deployments} />,
                    },
                    { title: t('spec.gpus'), cell: (of) => <QuotaUsage used={of.used_gpu} quota={of.quota_gpu} /> },
                    {
                      title: t('field.actions'),
                      isActions: true,
                      cell: (of) => (
                        <div>
                          <Button isSmall onClick={() => setOpen({ what: 'quota', of })}>
                            {t('quotas.edit')}
                          </Button>
                          {of.owner.type === 'user' && of.owner.id !== me().id && (
                            <>
                              {' '}
                              <Button
                                isSmall
                                label={t(of.is_admin ? 'quotas.demoteName' : 'quotas.promoteName', {
                                  name: neutralise(of.owner.name),
                                })}
                                onClick={() => setOpen({ what: 'role', of })}
                              >
                                {t(of.is_admin ? 'quotas.demote' : 'quotas.promote')}
                              </Button>{' '}
                              <Button
                                isSmall
                                label={t('quotas.resetName', { name: neutralise(of.owner.name) })}
                                onClick={() => setOpen({ what: 'reset', of })}
                              >
                                {t('quotas.reset')}
                              </Button>{' '}
                              <Button
                                isSmall
                                look="danger"
                                label={t('quotas.deleteAccount', { name: neutralise(of.owner.name) })}
                                onClick={() => setOpen({ what: 'delete', of })}
                              >
                                {t('action.delete')}
                              </Button>
                            </>
                          )}
                        </div>
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

function QuotaUsage({ used, quota }: { used: number; quota: number | null }) {
  return (
    <span class="numeric">
      {quota === null ? t('quotas.useUnlimited', { used }) : t('quotas.use', { used, quota })}
    </span>
  );
}

interface DialogProps {
  of: OwnerQuota;
  onClose: () => void;
  onDone: () => void;
}

const isQuota = (value: string) => value === '' || (/^\d+$/.test(value) && Number(value) <= 1_000_000);
const textOf = (quota: number | null) => (quota === null ? '' : String(quota));
const quotaOf = (value: string) => (value === '' ? null : Number(value));

function QuotaDialog({ of, onClose, onDone }: DialogProps) {
  const current = useResource<OwnerQuota>(`/quotas/${of.owner.id}`);
  const { quota_deployments, quota_gpu, rev, owner } = current.data ?? of;
  const [deployments, setDeployments] = useState(textOf(quota_deployments));
  const [gpus, setGpus] = useState(textOf(quota_gpu));
  useEffect(() => {
    setDeployments(textOf(quota_deployments));
    setGpus(textOf(quota_gpu));
  }, [rev, quota_deployments, quota_gpu]);
  const action = useAction(async () => {
    await call('PATCH', `/quotas/${owner.id}`, {
      body: { quota_deployments: quotaOf(deployments), quota_gpu: quotaOf(gpus) },
      ifMatch: rev,
    });
    toast(t('action.saved'));
    onDone();
  });
  const errorOf = (value: string) => (isQuota(value) ? undefined : t('spec.error.number'));
  return (
    <Dialog
      title={t('quotas.edit')}
      onClose={onClose}
      onSubmit={() => {
        if (isQuota(deployments) && isQuota(gpus)) void action.run();
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
            <Button isSmall onClick={current.reload}>
              {t('action.reload')}
            </Button>
          </div>
        )}
      </ProblemBanner>
      <TextField
        label={t('orgs.quotaDeployments')}
        hint={t('orgs.quotaHint')}
        isOptional
        inputMode="numeric"
        value={deployments}
        onInput={setDeployments}
        error={errorOf(deployments)}
      />
      <TextField
        label={t('orgs.quotaGpu')}
        hint={t('orgs.quotaHint')}
        isOptional
        inputMode="numeric"
        value={gpus}
        onInput={setGpus}
        error={errorOf(gpus)}
      />
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
