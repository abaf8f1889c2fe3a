import { useState } from 'preact/hooks';
import type { ChangedKey, Key, MadeKey, Propagation } from '../../api/objects';
import { call } from '../api/client';
import { useAction, usePages } from '../api/resource';
import { formatCompact } from '../format/numbers';
import { neutralise } from '../format/neutral';
import { formatDate } from '../format/times';
import { locale, t } from '../i18n';
import { withQuery } from '../router/match';
import { StateBadge } from '../ui/badge';
import { Button } from '../ui/button';
import { ConfirmDialog } from '../ui/dialog';
import { Menu, type MenuItem } from '../ui/menu';
import { Card } from '../ui/page';
import { SecretDialog } from '../ui/secret-dialog';
import { Empty, Loaded, ProblemBanner } from '../ui/state';
import { Table } from '../ui/table';
import { Ago } from '../ui/time';
import { toast } from '../ui/toast';
import { KeyDialog } from './key-form';
import { PropagationNote } from './propagation';
import { RotateDialog } from './rotate-dialog';
import { keysPath, type KeyScope } from './scope';
import { UsageDialog } from './usage-dialog';

type Open =
  | { type: 'create' }
  | { type: 'edit' | 'rotate' | 'delete' | 'usage'; key: Key }
  | { type: 'secret'; key: MadeKey }
  | null;

/** The keys of a deployment, an account or an organization. */
export function KeysPanel({
  scope,
  note,
  canCreate = true,
  onChange,
}: {
  scope: KeyScope;
  note: string;
  canCreate?: boolean;
  onChange?: () => void;
}) {
  const keys = usePages<Key>(keysPath(scope));
  const [open, setOpen] = useState<Open>(null);
  const [propagation, setPropagation] = useState<Propagation | null>(null);
  const close = () => setOpen(null);
  const changed = (key: ChangedKey | MadeKey) => {
    setPropagation(key.propagation);
    keys.reload();
    onChange?.();
    setOpen('secret' in key && key.secret !== null ? { type: 'secret', key } : null);
  };
  const change = useAction(async (key: Key, method: 'PATCH' | 'POST', path: string, body?: unknown) => {
    changed(await call<ChangedKey>(method, path, { body, ifMatch: key.rev }));
  });
  const create = canCreate && (
    <Button look="primary" isSmall icon="plus" onClick={() => setOpen({ type: 'create' })}>
      {t('keys.create')}
    </Button>
  );
  const act = (key: Key, isDisabled: boolean) =>
    void change.run(key, 'PATCH', `/keys/${key.id}`, { disabled: isDisabled }).then((isDone) => {
      if (!isDone) keys.reload();
    });
  const items = (key: Key): (MenuItem | 'line' | false)[] => [
    { label: t('action.edit'), icon: 'edit', onSelect: () => setOpen({ type: 'edit', key }) },
    { label: t('keys.usage'), icon: 'audit', onSelect: () => setOpen({ type: 'usage', key }) },
    {
      label: t('keys.rotate'),
      icon: 'rotate',
      isDisabled: key.state === 'rotating',
      onSelect: () => setOpen({ type: 'rotate', key }),
    },
    key.state === 'rotating' && {
      label: t('keys.finishRotation'),
      icon: 'check',
      onSelect: () => void change.run(key, 'POST', `/keys/${key.id}/rotate/finish`),
    },
    key.state === 'disabled'
      ? { label: t('keys.enable'), icon: 'play', onSelect: () => act(key, false) }
      : { label: t('keys.disable'), icon: 'stop', onSelect: () => act(key, true) },
    'line',
    { label: t('action.delete'), icon: 'trash', isDanger: true, onSelect: () => setOpen({ type: 'delete', key }) },
  ];
  return (
    <Card
      title={t('keys.title')}
      note={note}
      isFlush
      aside={
        <div class="row">
          {propagation !== null && <PropagationNote propagation={propagation} />}
          {create}
        </div>
      }
    >
      {change.problem !== null && (
        <div class="card-body">
          <ProblemBanner problem={change.problem} />
        </div>
      )}
      <Loaded of={keys}>
        {(data) =>
          data.length === 0 ? (
            <Empty level={3} icon="key" title={t('keys.empty')}>
              {t('keys.emptyHint')}
            </Empty>
          ) : (
            <Table
              label={t('keys.title')}
              rows={data}
              keyOf={({ id }) => id}
              hasMore={keys.hasMore}
              isLoading={keys.isLoading}
              onMore={keys.loadMore}
              columns={[
                {
                  title: t('keys.name'),
                  cell: (key) => (
                    <div>
                      <span class="table-name isolate">{neutralise(key.name)}</span>
                      <code class="table-sub">{key.display}</code>
                    </div>
                  ),
                },
                { title: t('keys.type'), cell: (key) => <KeyReach keyOf={key} /> },
                { title: t('field.state'), cell: (key) => <StateBadge state={key.state} /> },
                {
                  title: t('keys.lastUsed'),
                  cell: (key) =>
                    key.last_used_at === null ? (
                      <span class="faint">{t('keys.neverUsed')}</span>
                    ) : (
                      <span>
                        <Ago time={key.last_used_at} />
                        {key.last_used_ip !== null && <span class="table-sub">{key.last_used_ip}</span>}
                      </span>
                    ),
                },
                {
                  title: t('keys.expires'),
                  cell: (key) =>
                    key.expires_at === null ? (
                      <span class="faint">{t('keys.never')}</span>
                    ) : (
                      formatDate(key.expires_at, locale())
                    ),
                },
                {
                  title: t('field.actions'),
                  isActions: true,
                  cell: (key) => (
                    <Menu label={t('keys.actionsOf', { name: neutralise(key.name) })} items={items(key)} />
                  ),
                },
              ]}
            />
          )
        }
      </Loaded>
      {open?.type === 'create' && <KeyDialog scope={scope} onClose={close} onDone={changed} />}
      {open?.type === 'edit' && (
        <KeyDialog
          scope={scope}
          edited={open.key}
          onClose={close}
          onDone={(key) => {
            toast(t('keys.saved'));
            changed(key);
          }}
        />
      )}
      {open?.type === 'rotate' && (
        <RotateDialog
          title={t('keys.rotateTitle', { name: neutralise(open.key.name) })}
          text={t('keys.rotateText')}
          onClose={close}
          rotate={async (body) =>
            changed(await call<MadeKey>('POST', `/keys/${open.key.id}/rotate`, { body, ifMatch: open.key.rev }))
          }
        />
      )}
      {open?.type === 'usage' && <UsageDialog of={open.key} onClose={close} />}
      {open?.type === 'delete' && (
        <DeleteDialog
          of={open.key}
          onClose={close}
          onDone={(done) => {
            toast(t('keys.deleted'));
            setPropagation(done);
            keys.reload();
            close();
          }}
        />
      )}
      {open?.type === 'secret' && (
        <SecretDialog
          title={t('keys.secretTitle')}
          secret={open.key.secret ?? ''}
          label={t('keys.secret')}
          onClose={close}
        >
          <PropagationNote propagation={open.key.propagation} />
        </SecretDialog>
      )}
    </Card>
  );
}

function KeyReach({ keyOf: { type, deployments, budget } }: { keyOf: Key }) {
  return (
    <div>
      {t(`keys.type.${type}`)}
      {type === 'deployment-level' && (
        <span class="table-sub isolate">
          {deployments.length === 0
            ? t('keys.unbound')
            : deployments
                .slice(0, 3)
                .map(({ name }) => neutralise(name))
                .join(', ')}
          {deployments.length > 3 && ` +${deployments.length - 3}`}
        </span>
      )}
      {budget !== null && (
        <span class="table-sub">
          {t('keys.budgetUsed', {
            used: formatCompact(budget.used, locale()),
            tokens: formatCompact(budget.tokens, locale()),
          })}
        </span>
      )}
    </div>
  );
}

function DeleteDialog({
  of,
  onClose,
  onDone,
}: {
  of: Key;
  onClose: () => void;
  onDone: (propagation: Propagation | null) => void;
}) {
  const action = useAction(async () => {
    const response = await call<{ propagation?: Propagation } | undefined>(
      'DELETE',
      withQuery(`/keys/${of.id}`, { confirm: of.name }),
      { ifMatch: of.rev },
    );
    onDone(response?.propagation ?? null);
  });
  return (
    <ConfirmDialog
      title={t('keys.deleteTitle')}
      confirm={t('keys.deleteConfirm')}
      name={neutralise(of.name)}
      isBusy={action.isBusy}
      problem={action.problem}
      onClose={onClose}
      onConfirm={() => void action.run()}
    >
      <p>{t('keys.deleteText')}</p>
    </ConfirmDialog>
  );
}
