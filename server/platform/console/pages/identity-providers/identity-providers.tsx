import { useState } from 'preact/hooks';
import type { IdentityProvider } from '../../../api/objects';
import { NotFound } from '../../app/error-pages';
import { me } from '../../app/session';
import { call } from '../../api/client';
import { useAction, usePages } from '../../api/resource';
import { neutralise } from '../../format/neutral';
import { t } from '../../i18n';
import { withQuery } from '../../router/match';
import { Button } from '../../ui/button';
import { ConfirmDialog } from '../../ui/dialog';
import { Menu, type MenuItem } from '../../ui/menu';
import { Card, Page } from '../../ui/page';
import { Empty, Loaded, ProblemBanner } from '../../ui/state';
import { Table } from '../../ui/table';
import { toast } from '../../ui/toast';
import { ProviderDialog, RedirectDialog } from './provider-form';

type Open = { what: 'create' } | { what: 'edit' | 'delete' | 'register'; of: IdentityProvider } | null;

/** The OpenID Connect providers of the sign-in. Only for administrators of the service. */
export function IdentityProvidersPage() {
  const isAdmin = me().is_admin;
  const providers = usePages<IdentityProvider>(isAdmin ? '/identity-providers' : null);
  const [open, setOpen] = useState<Open>(null);
  const close = () => setOpen(null);
  const done = () => {
    close();
    providers.reload();
    toast(t('action.saved'));
  };
  const created = (of: IdentityProvider) => {
    done();
    setOpen({ what: 'register', of });
  };
  const change = useAction(async ({ id, rev }: IdentityProvider, enabled: boolean) => {
    await call('PATCH', `/identity-providers/${id}`, { body: { enabled }, ifMatch: rev });
    providers.reload();
  });
  if (!isAdmin) return <NotFound />;
  const items = (of: IdentityProvider): (MenuItem | 'line')[] => [
    { label: t('action.edit'), icon: 'edit', onSelect: () => setOpen({ what: 'edit', of }) },
    of.enabled
      ? { label: t('keys.disable'), icon: 'stop', onSelect: () => void change.run(of, false) }
      : { label: t('keys.enable'), icon: 'play', onSelect: () => void change.run(of, true) },
    'line',
    { label: t('action.delete'), icon: 'trash', isDanger: true, onSelect: () => setOpen({ what: 'delete', of }) },
  ];
  const create = (
    <Button look="primary" icon="plus" onClick={() => setOpen({ what: 'create' })}>
      {t('idp.create')}
    </Button>
  );
  return (
    <Page title={t('nav.identityProviders')} subtitle={t('idp.subtitle')} actions={create}>
      <ProblemBanner problem={change.problem} />
      <Card isFlush>
        <Loaded of={providers}>
          {(data) =>
            data.length === 0 ? (
              <Empty icon="lock" title={t('idp.empty')} actions={create}>
                {t('idp.emptyHint')}
              </Empty>
            ) : (
              <Table
                label={t('nav.identityProviders')}
                rows={data}
                keyOf={({ id }) => id}
                columns={[
                  {
                    title: t('idp.name'),
                    cell: ({ name, issuer }) => (
                      <div>
                        <span class="table-name isolate">{neutralise(name)}</span>
                        <code class="table-sub">{neutralise(issuer)}</code>
                      </div>
                    ),
                  },
                  { title: t('field.state'), cell: ({ enabled }) => t(enabled ? 'field.on' : 'field.off') },
                  { title: t('idp.users'), cell: ({ users }) => <span class="numeric">{users}</span> },
                  { title: t('idp.mappings'), cell: ({ mappings }) => <span class="numeric">{mappings.length}</span> },
                  {
                    title: t('field.actions'),
                    isActions: true,
                    cell: (of) => <Menu label={t('keys.actionsOf', { name: neutralise(of.name) })} items={items(of)} />,
                  },
                ]}
              />
            )
          }
        </Loaded>
      </Card>
      {open?.what === 'create' && <ProviderDialog onClose={close} onDone={created} />}
      {open?.what === 'register' && <RedirectDialog of={open.of} onClose={close} />}
      {open?.what === 'edit' && <ProviderDialog edited={open.of} onClose={close} onDone={done} />}
      {open?.what === 'delete' && <DeleteDialog of={open.of} onClose={close} onDone={done} />}
    </Page>
  );
}

function DeleteDialog({ of, onClose, onDone }: { of: IdentityProvider; onClose: () => void; onDone: () => void }) {
  const action = useAction(async () => {
    await call('DELETE', withQuery(`/identity-providers/${of.id}`, { confirm: of.name }));
    onDone();
  });
  return (
    <ConfirmDialog
      title={t('idp.delete')}
      confirm={t('action.delete')}
      name={of.name}
      isBusy={action.isBusy}
      problem={action.problem}
      onClose={onClose}
      onConfirm={() => void action.run()}
    >
      <p>{t('idp.deleteText')}</p>
    </ConfirmDialog>
  );
}
