import type { Webhook, WebhookDelivery } from '../../../api/objects';
import { call } from '../../api/client';
import { useAction, usePages } from '../../api/resource';
import { neutralise } from '../../format/neutral';
import { t } from '../../i18n';
import { Button } from '../../ui/button';
import { Dialog } from '../../ui/dialog';
import { Loaded, ProblemBanner } from '../../ui/state';
import { Table } from '../../ui/table';
import { Ago, Until } from '../../ui/time';
import { toast } from '../../ui/toast';

/** The messages of a webhook and their delivery attempts. */
export function DeliveriesDialog({ of, onClose }: { of: Webhook; onClose: () => void }) {
  const deliveries = usePages<WebhookDelivery>(`/webhooks/${of.id}/deliveries`);
  const again = useAction(async ({ id }: WebhookDelivery) => {
    await call('POST', `/webhooks/${of.id}/deliveries/${id}/redeliver`);
    toast(t('webhooks.queued'));
    deliveries.reload();
  });
  return (
    <Dialog title={t('webhooks.deliveries')} isWide onClose={onClose}>
      <p class="soft isolate">{neutralise(of.url)}</p>
      <ProblemBanner problem={again.problem} />
      <Loaded of={deliveries}>
        {(data) =>
          data.length === 0 ? (
            <p class="hint">{t('webhooks.noDeliveries')}</p>
          ) : (
            <Table
              label={t('webhooks.deliveries')}
              rows={data}
              keyOf={({ id }) => id}
              hasMore={deliveries.hasMore}
              isLoading={deliveries.isLoading}
              onMore={deliveries.loadMore}
              columns={[
                {
                  title: t('webhooks.event'),
                  cell: ({ event, created_at: at }) => (
                    <div>
                      <code>{event}</code>
                      <span class="table-sub">
                        <Ago time={at} />
                      </span>
                    </div>
                  ),
                },
                { title: t('field.state'), cell: ({ state }) => t(`webhooks.delivery.${state}`) },
                { title: t('webhooks.attempts'), cell: (delivery) => <Attempts of={delivery} /> },
                {
                  title: t('field.actions'),
                  isActions: true,
                  cell: (delivery) =>
                    canSendAgain(delivery) && (
                      <Button
                        isSmall
                        label={t('webhooks.againOf', { event: delivery.event })}
                        onClick={() => void again.run(delivery)}
                      >
                        {t('webhooks.again')}
                      </Button>
                    ),
                },
              ]}
            />
          )
        }
      </Loaded>
    </Dialog>
  );
}

/** Pending messages are retried anyway, and a test has no event to send again. */
function canSendAgain({ state, event_seq: seq }: WebhookDelivery): boolean {
  return state !== 'pending' && seq !== null;
}

function Attempts({ of: { attempts, next_at: nextAt } }: { of: WebhookDelivery }) {
  const last = attempts.at(-1);
  return (
    <div>
      <span class="numeric">{attempts.length}</span>
      {last !== undefined && (
        <span class="table-sub isolate">
          {neutralise(last.error ?? String(last.status))} · {last.duration_ms} ms
        </span>
      )}
      {nextAt !== null && (
        <span class="table-sub">
          {t('webhooks.next')} <Until time={nextAt} />
        </span>
      )}
    </div>
  );
}
