import { useState } from 'preact/hooks';
import type { Budget, Key, OwnerQuota } from '../../../api/objects';
import { me } from '../../app/session';
import { call } from '../../api/client';
import { useAction, usePages } from '../../api/resource';
import { neutralise } from '../../format/neutral';
import { formatNumber } from '../../format/numbers';
import { locale, t } from '../../i18n';
import { Button } from '../../ui/button';
import { ConfirmDialog, Dialog } from '../../ui/dialog';
import { SelectField, TextField } from '../../ui/field';
import { Menu } from '../../ui/menu';
import { Card } from '../../ui/page';
import { Empty, Loaded, ProblemBanner } from '../../ui/state';
import { Table } from '../../ui/table';
import { Until } from '../../ui/time';
import { toast } from '../../ui/toast';

const PERIODS = ['day', 'month', 'total'] as const;
const AMOUNT = /^\d{1,10}(\.\d{1,9})?$/;
const SHOWN_DIGITS = 6;

type Open = { what: 'create' } | { what: 'edit' | 'delete'; budget: Budget };

/** Hard limits of what keys and owners may spend. */
export function BudgetsCard() {
  const budgets = usePages<Budget>('/budgets');
  const [open, setOpen] = useState<Open | null>(null);
  const close = () => setOpen(null);
  const done = () => {
    close();
    budgets.reload();
  };
  const create = (
    <Button isSmall icon="plus" onClick={() => setOpen({ what: 'create' })}>
      {t('budgets.create')}
    </Button>
  );
  return (
    <Card title={t('budgets.title')} aside={create} isFlush>
      <Loaded of={budgets}>
        {(data) =>
          data.length === 0 ? (
            <Empty icon="lock" title={t('budgets.empty')}>
              {t('budgets.emptyHint')}
            </Empty>
          ) : (
            <Table
              label={t('budgets.title')}
              rows={data}
              keyOf={({ id }) => id}
              hasMore={budgets.hasMore}
              isLoading={budgets.isLoading}
              onMore={budgets.loadMore}
              columns={[
                {
                  title: t('budgets.for'),
                  cell: ({ key, owner }) => (
                    <div>
                      <span class="table-name isolate">{neutralise(key?.name ?? owner.name)}</span>
                      <span class="table-sub">{key === null ? t('budgets.owner') : t('budgets.key')}</span>
                    </div>
                  ),
                },
                { title: t('budgets.spent'), cell: (budget) => <Spent of={budget} /> },
                { title: t('budgets.period'), cell: ({ period }) => t(`budgets.period.${period}`) },
                { title: t('budgets.resets'), cell: ({ resets_at: time }) => <Until time={time} /> },
                {
                  title: t('field.actions'),
                  isActions: true,
                  cell: (budget) => (
                    <Menu
                      label={t('keys.actionsOf', { name: neutralise(budget.key?.name ?? budget.owner.name) })}
                      items={[
                        { label: t('action.edit'), icon: 'edit', onSelect: () => setOpen({ what: 'edit', budget }) },
                        'line',
                        {
                          label: t('action.delete'),
                          icon: 'trash',
                          isDanger: true,
                          onSelect: () => setOpen({ what: 'delete', budget }),
                        },
                      ]}
                    />
                  ),
                },
              ]}
            />
          )
        }
      </Loaded>
      {open?.what === 'create' && <BudgetDialog onClose={close} onDone={done} />}
      {open?.what === 'edit' && <BudgetDialog edited={open.budget} onClose={close} onDone={done} />}
      {open?.what === 'delete' && <DeleteDialog of={open.budget} onClose={close} onDone={done} />}
    </Card>
  );
}

function Spent({ of: { spent, amount, currency } }: { of: Budget }) {
  return (
    <div class="numeric nowrap">
      {formatNumber(Number(spent), locale(), SHOWN_DIGITS)}
      <span class="table-sub">
        {t('quotas.of', { quota: `${formatNumber(Number(amount), locale(), SHOWN_DIGITS)} ${neutralise(currency)}` })}
      </span>
    </div>
  );
}

function BudgetDialog({ edited, onClose, onDone }: { edited?: Budget; onClose: () => void; onDone: () => void }) {
  const keys = usePages<Key>(edited === undefined ? '/keys' : null);
  const owners = usePages<OwnerQuota>(edited === undefined && me().is_admin ? '/quotas' : null);
  const [subject, setSubject] = useState('');
  const [period, setPeriod] = useState<string>('month');
  const [amount, setAmount] = useState(edited?.amount ?? '');
  const [alerts, setAlerts] = useState((edited?.alerts ?? [80, 100]).join(', '));
  const subjects = [
    ...(keys.data ?? []).map(({ id, name }) => ({ value: id, label: `${t('budgets.key')}: ${neutralise(name)}` })),
    ...(owners.data ?? []).map(({ owner }) => ({
      value: owner.id,
      label: `${t('budgets.owner')}: ${neutralise(owner.name)}`,
    })),
  ];
  const chosen = subject === '' ? (subjects[0]?.value ?? '') : subject;
  const percentages = alerts.split(/[\s,]+/).filter((text) => text !== '');
  const hasBadAlerts = percentages.some((text) => !/^\d{1,3}$/.test(text) || Number(text) < 1 || Number(text) > 100);
  const isValid = AMOUNT.test(amount) && !hasBadAlerts && (edited !== undefined || chosen !== '');
  const action = useAction(async () => {
    const limits = { amount, alerts: percentages.map(Number) };
    if (edited === undefined) await call('POST', '/budgets', { body: { subject: chosen, period, ...limits } });
    else await call('PATCH', `/budgets/${edited.id}`, { body: limits, ifMatch: edited.rev });
    toast(t('action.saved'));
    onDone();
  });
  return (
    <Dialog
      title={t(edited === undefined ? 'budgets.create' : 'budgets.edit')}
      onClose={onClose}
      onSubmit={() => {
        if (isValid) void action.run();
      }}
      foot={
        <>
          <Button onClick={onClose}>{t('action.cancel')}</Button>
          <Button type="submit" look="primary" isBusy={action.isBusy} isDisabled={!isValid}>
            {t('action.save')}
          </Button>
        </>
      }
    >
      <ProblemBanner problem={action.problem} />
      {edited === undefined && (
        <>
          <SelectField label={t('budgets.for')} value={chosen} onChange={setSubject} options={subjects} />
          <SelectField
            label={t('budgets.period')}
            value={period}
            onChange={setPeriod}
            options={PERIODS.map((value) => ({ value, label: t(`budgets.period.${value}`) }))}
          />
        </>
      )}
      <TextField
        label={t('budgets.amount')}
        inputMode="decimal"
        value={amount}
        onInput={setAmount}
        error={amount !== '' && !AMOUNT.test(amount) ? t('spec.error.number') : undefined}
      />
      <TextField
        label={t('budgets.alerts')}
        hint={t('budgets.alertsHint')}
        value={alerts}
        onInput={setAlerts}
        error={hasBadAlerts ? t('budgets.alertsError') : undefined}
      />
    </Dialog>
  );
}

function DeleteDialog({ of, onClose, onDone }: { of: Budget; onClose: () => void; onDone: () => void }) {
  const action = useAction(async () => {
    await call('DELETE', `/budgets/${of.id}`);
    onDone();
  });
  return (
    <ConfirmDialog
      title={t('budgets.delete')}
      confirm={t('action.delete')}
      isBusy={action.isBusy}
      problem={action.problem}
      onClose={onClose}
      onConfirm={() => void action.run()}
    >
      <p>{t('budgets.deleteText')}</p>
    </ConfirmDialog>
  );
}
