import { useState } from 'preact/hooks';
import type { Price, PriceTable } from '../../../api/objects';
import { me } from '../../app/session';
import { call } from '../../api/client';
import { useAction, useResource } from '../../api/resource';
import { neutralise } from '../../format/neutral';
import { formatNumber } from '../../format/numbers';
import { locale, t } from '../../i18n';
import { Button } from '../../ui/button';
import { ConfirmDialog, Dialog } from '../../ui/dialog';
import { TextField } from '../../ui/field';
import { Menu } from '../../ui/menu';
import { Card } from '../../ui/page';
import { Empty, Loaded, ProblemBanner } from '../../ui/state';
import { Table } from '../../ui/table';
import { toast } from '../../ui/toast';

const PRICE = /^\d{1,10}(\.\d{1,6})?$/;
const PRICE_DIGITS = 6;

type Open = { what: 'set'; price?: Price } | { what: 'delete'; price: Price };

/** What the tokens of models cost. Administrators change it. */
export function PricesCard() {
  const table = useResource<PriceTable>('/prices');
  const [open, setOpen] = useState<Open | null>(null);
  const close = () => setOpen(null);
  const done = () => {
    close();
    table.reload();
  };
  const isAdmin = me().is_admin;
  const set = isAdmin ? (
    <Button isSmall icon="plus" onClick={() => setOpen({ what: 'set' })}>
      {t('prices.set')}
    </Button>
  ) : undefined;
  return (
    <Card title={t('prices.title')} aside={set} isFlush>
      <Loaded of={table}>
        {({ data, currency }) =>
          data.length === 0 ? (
            <Empty icon="audit" title={t('prices.empty')}>
              {t('prices.emptyHint')}
            </Empty>
          ) : (
            <Table
              label={t('prices.title')}
              rows={data}
              keyOf={({ id }) => id}
              columns={[
                {
                  title: t('prices.model'),
                  cell: ({ model }) => <span class="table-name isolate">{neutralise(model)}</span>,
                },
                {
                  title: t('prices.input', { currency: neutralise(currency) }),
                  cell: ({ input }) => <Amount of={input} />,
                },
                { title: t('prices.cached'), cell: ({ cached_input: cached }) => <Amount of={cached} /> },
                { title: t('prices.output'), cell: ({ output }) => <Amount of={output} /> },
                ...(isAdmin
                  ? [
                      {
                        title: t('field.actions'),
                        isActions: true,
                        cell: (price: Price) => (
                          <Menu
                            label={t('keys.actionsOf', { name: neutralise(price.model) })}
                            items={[
                              {
                                label: t('action.edit'),
                                icon: 'edit',
                                onSelect: () => setOpen({ what: 'set', price }),
                              },
                              'line',
                              {
                                label: t('action.delete'),
                                icon: 'trash',
                                isDanger: true,
                                onSelect: () => setOpen({ what: 'delete', price }),
                              },
                            ]}
                          />
                        ),
                      },
                    ]
                  : []),
              ]}
            />
          )
        }
      </Loaded>
      {open?.what === 'set' && <PriceDialog edited={open.price} onClose={close} onDone={done} />}
      {open?.what === 'delete' && <DeleteDialog of={open.price} onClose={close} onDone={done} />}
    </Card>
  );
}

function Amount({ of }: { of: string }) {
  return <span class="numeric">{formatNumber(Number(of), locale(), PRICE_DIGITS)}</span>;
}

function PriceDialog({
  edited,
  onClose,
  onDone,
}: {
  edited: Price | undefined;
  onClose: () => void;
  onDone: () => void;
}) {
  const [model, setModel] = useState(edited?.model ?? '');
  const [prices, setPrices] = useState({
    input: edited?.input ?? '',
    cached_input: edited?.cached_input ?? '',
    output: edited?.output ?? '',
  });
  const [maxOutput, setMaxOutput] = useState(String(edited?.max_output_tokens ?? 16_384));
  const isNumber = (text: string) => PRICE.test(text);
  const isValid =
    model !== '' &&
    isNumber(prices.input) &&
    isNumber(prices.output) &&
    (prices.cached_input === '' || isNumber(prices.cached_input)) &&
    /^[1-9]\d{0,6}$/.test(maxOutput);
  const action = useAction(async () => {
    const { cached_input: cached, ...others } = prices;
    await call('PUT', '/prices', {
      body: {
        model,
        ...others,
        ...(cached === '' ? {} : { cached_input: cached }),
        max_output_tokens: Number(maxOutput),
      },
    });
    toast(t('action.saved'));
    onDone();
  });
  const field = (name: keyof typeof prices, label: string, isOptional = false) => (
    <TextField
      label={label}
      isOptional={isOptional}
      inputMode="decimal"
      value={prices[name]}
      onInput={(text) => setPrices({ ...prices, [name]: text })}
      error={prices[name] !== '' && !isNumber(prices[name]) ? t('spec.error.number') : undefined}
    />
  );
  return (
    <Dialog
      title={t('prices.set')}
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
      <TextField
        label={t('prices.model')}
        hint={t('prices.modelHint')}
        maxLength={300}
        value={model}
        onInput={setModel}
      />
      {field('input', t('prices.inputField'))}
      {field('cached_input', t('prices.cached'), true)}
      {field('output', t('prices.output'))}
      <TextField
        label={t('prices.maxOutput')}
        hint={t('prices.maxOutputHint')}
        inputMode="numeric"
        value={maxOutput}
        onInput={setMaxOutput}
      />
    </Dialog>
  );
}

function DeleteDialog({ of, onClose, onDone }: { of: Price; onClose: () => void; onDone: () => void }) {
  const action = useAction(async () => {
    await call('DELETE', `/prices/${of.id}`);
    onDone();
  });
  return (
    <ConfirmDialog
      title={t('prices.delete')}
      confirm={t('action.delete')}
      isBusy={action.isBusy}
      problem={action.problem}
      onClose={onClose}
      onConfirm={() => void action.run()}
    >
      <p>
        <span class="isolate">{neutralise(of.model)}</span>
      </p>
    </ConfirmDialog>
  );
}
