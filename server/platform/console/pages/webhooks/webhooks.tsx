import { useState } from 'preact/hooks';
import type { MadeWebhook, Webhook, WebhookDelivery } from '../../../api/objects';
import { call } from '../../api/client';
import { useAction, usePages } from '../../api/resource';
import { neutralise } from '../../format/neutral';
import { serviceText, t } from '../../i18n';
import { RotateDialog } from '../../keys/rotate-dialog';
import { StateBadge } from '../../ui/badge';
import { Button } from '../../ui/button';
import { ConfirmDialog } from '../../ui/dialog';
import { Menu, type MenuItem } from '../../ui/menu';
import { Card, Page } from '../../ui/page';
import { SecretDialog } from '../../ui/secret-dialog';
import { Empty, Loaded, ProblemBanner } from '../../ui/state';
import { Table } from '../../ui/table';
import { Ago, At } from '../../ui/time';
import { toast } from '../../ui/toast';
import { DeliveriesDialog } from './deliveries';
import { WebhookDialog } from './webhook-form';

type Open =
  | { type: 'create' }
  | { type: 'edit' | 'rotate' | 'delete' | 'deliveries'; webhook: Webhook }
  | { type: 'secret'; secret: string }
  | null;

export function WebhooksPage() {
  const webhooks = usePages<Webhook>('/webhooks');
  const [open, setOpen] = useState<Open>(null);
  const close = () => setOpen(null);
  const done = (webhook: Webhook | MadeWebhook) => {
    webhooks.reload();
    setOpen('secret' in webhook && webhook.secret !== null ? { type: 'secret', secret: webhook.secret } : null);
  };
  const change = useAction(async ({ id, rev }: Webhook, enabled: boolean) => {
    await call('PATCH', `/webhooks/${id}`, { body: { enabled }, ifMatch: rev });
    webhooks.reload();
  });
  const finish = useAction(async ({ id, rev }: Webhook) => {
    await call('POST', `/webhooks/${id}/rotate/finish`, { ifMatch: rev });
    webhooks.reload();
  });
  const test = useAction(async ({ id }: Webhook) => {
    const {
      attempts: [{ status, duration_ms: ms, error }],
    } = await call<WebhookDelivery>('POST', `/webhooks/${id}/test`);
    toast(
      error === null
        ? t('webhooks.arrived', { status: status ?? 0, ms })
        : t('webhooks.notArrived', { error: neutralise(error) }),
      { isBad: error !== null },
    );
  });
  const items = (webhook: Webhook): (MenuItem | 'line' | false)[] => [
    { label: t('webhooks.test'), icon: 'send', onSelect: () => void test.run(webhook) },
    { label: t('webhooks.deliveries'), icon: 'audit', onSelect: () => setOpen({ type: 'deliveries', webhook }) },
    { label: t('action.edit'), icon: 'edit', onSelect: () => setOpen({ type: 'edit', webhook }) },
    {
      label: t('webhooks.rotateTitle'),
      icon: 'rotate',
      isDisabled: webhook.rotating_until !== null,
      onSelect: () => setOpen({ type: 'rotate', webhook }),
    },
    webhook.rotating_until !== null && {
      label: t('keys.finishRotation'),
      icon: 'check',
      onSelect: () => void finish.run(webhook),
    },
    webhook.state === 'active'
      ? { label: t('keys.disable'), icon: 'stop', onSelect: () => void change.run(webhook, false) }
      : { label: t('keys.enable'), icon: 'play', onSelect: () => void change.run(webhook, true) },
    'line',
    { label: t('action.delete'), icon: 'trash', isDanger: true, onSelect: () => setOpen({ type: 'delete', webhook }) },
  ];
  const create = (
    <Button look="primary" icon="plus" onClick={() => setOpen({ type: 'create' })}>
      {t('webhooks.create')}
    </Button>
  );
  return (
    <Page title={t('nav.webhooks')} subtitle={t('webhooks.subtitle')} actions={create}>
      <ProblemBanner problem={change.problem ?? finish.problem ?? test.problem} />
      <Card isFlush>
        <Loaded of={webhooks}>
          {(data) =>
            data.length === 0 ? (
              <Empty icon="send" title={t('webhooks.empty')} actions={create}>
                {t('webhooks.emptyHint')}
              </Empty>
            ) : (
              <Table
                label={t('nav.webhooks')}
                rows={data}
                keyOf={({ id }) => id}
                hasMore={webhooks.hasMore}
                isLoading={webhooks.isLoading}
                onMore={webhooks.loadMore}
                columns={[
                  {
                    title: t('webhooks.url'),
                    cell: ({ url, id }) => (
                      <div>
                        <span class="table-name isolate">{neutralise(url)}</span>
                        <code class="table-sub">{id}</code>
                      </div>
                    ),
                  },
                  { title: t('events.title'), cell: ({ events }) => <code class="small">{events.join(', ')}</code> },
                  {
                    title: t('field.owner'),
                    cell: ({ owner }) => <span class="isolate">{neutralise(owner.name)}</span>,
                  },
                  { title: t('field.state'), cell: (webhook) => <Health of={webhook} /> },
                  {
                    title: t('field.actions'),
                    isActions: true,
                    cell: (webhook) => (
                      <Menu label={t('keys.actionsOf', { name: neutralise(webhook.url) })} items={items(webhook)} />
                    ),
                  },
                ]}
              />
            )
          }
        </Loaded>
      </Card>
      {open?.type === 'create' && <WebhookDialog onClose={close} onDone={done} />}
      {open?.type === 'edit' && <WebhookDialog edited={open.webhook} onClose={close} onDone={done} />}
      {open?.type === 'deliveries' && <DeliveriesDialog of={open.webhook} onClose={close} />}
      {open?.type === 'rotate' && (
        <RotateDialog
          title={t('webhooks.rotateTitle')}
          text={t('webhooks.rotateText')}
          onClose={close}
          rotate={async (body) =>
            done(
              await call<MadeWebhook>('POST', `/webhooks/${open.webhook.id}/rotate`, {
                body,
                ifMatch: open.webhook.rev,
              }),
            )
          }
        />
      )}
      {open?.type === 'secret' && (
        <SecretDialog
          title={t('webhooks.secretTitle')}
          secret={open.secret}
          label={t('webhooks.secret')}
          onClose={close}
        />
      )}
      {open?.type === 'delete' && (
        <DeleteDialog
          of={open.webhook}
          onClose={close}
          onDone={() => {
            close();
            webhooks.reload();
          }}
        />
      )}
    </Page>
  );
}

function Health({
  of: { state, reason, failing_since: since, rotating_until: until, waiting, dropped },
}: {
  of: Webhook;
}) {
  const isFailing = since !== null && state === 'active';
  return (
    <div>
      {isFailing ? <span class="badge badge-warn">{t('webhooks.failing')}</span> : <StateBadge state={state} />}
      {reason !== null && <span class="table-sub isolate">{neutralise(serviceText(reason))}</span>}
      {isFailing && (
        <span class="table-sub">
          {t('webhooks.failingSince')} <Ago time={since} />
        </span>
      )}
      {until !== null && (
        <span class="table-sub">
          {t('webhooks.rotating')} <At time={until} />
        </span>
      )}
      {waiting > 0 && <span class="table-sub">{t('webhooks.waiting', { n: waiting })}</span>}
      {dropped > 0 && <span class="table-sub">{t('webhooks.dropped', { n: dropped })}</span>}
    </div>
  );
}

function DeleteDialog({ of, onClose, onDone }: { of: Webhook; onClose: () => void; onDone: () => void }) {
  const action = useAction(async () => {
    await call('DELETE', `/webhooks/${of.id}`);
    onDone();
  });
  return (
    <ConfirmDialog
      title={t('webhooks.deleteTitle')}
      confirm={t('action.delete')}
      isBusy={action.isBusy}
      problem={action.problem}
      onClose={onClose}
      onConfirm={() => void action.run()}
    >
      <p>
        {t('webhooks.deleteText')} <strong class="isolate">{neutralise(of.url)}</strong>
      </p>
    </ConfirmDialog>
  );
}
