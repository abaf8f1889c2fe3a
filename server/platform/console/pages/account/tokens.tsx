import { useState } from 'preact/hooks';
import type { MadeToken, Token } from '../../../api/objects';
import { call } from '../../api/client';
import { useAction, usePages } from '../../api/resource';
import { neutralise } from '../../format/neutral';
import { formatDate, fromLocalInput } from '../../format/times';
import { locale, t } from '../../i18n';
import { Button } from '../../ui/button';
import { ConfirmDialog, Dialog } from '../../ui/dialog';
import { Choices, TextField } from '../../ui/field';
import { Card } from '../../ui/page';
import { SecretDialog } from '../../ui/secret-dialog';
import { Empty, Loaded, ProblemBanner } from '../../ui/state';
import { Table } from '../../ui/table';
import { Ago } from '../../ui/time';
import { toast } from '../../ui/toast';

/** Management tokens, which programs use to call the management API. */
export function TokensTab() {
  const tokens = usePages<Token>('/tokens');
  const [isCreating, setCreating] = useState(false);
  const [made, setMade] = useState<MadeToken | null>(null);
  const [ending, setEnding] = useState<Token | null>(null);
  const end = useAction(async (token: Token) => {
    await call('DELETE', `/tokens/${token.id}`);
    setEnding(null);
    tokens.reload();
    toast(t('tokens.deleted'));
  });
  const done = (token: MadeToken) => {
    setCreating(false);
    tokens.reload();
    if (token.token !== null) setMade(token);
  };
  return (
    <Card
      title={t('tokens.title')}
      note={t('tokens.note')}
      isFlush
      aside={
        <Button look="primary" isSmall icon="plus" onClick={() => setCreating(true)}>
          {t('tokens.create')}
        </Button>
      }
    >
      <Loaded of={tokens}>
        {(data) =>
          data.length === 0 ? (
            <Empty level={3} icon="key" title={t('tokens.empty')}>
              {t('tokens.emptyHint')}
            </Empty>
          ) : (
            <Table
              label={t('tokens.title')}
              rows={data}
              keyOf={({ id }) => id}
              hasMore={tokens.hasMore}
              isLoading={tokens.isLoading}
              onMore={tokens.loadMore}
              columns={[
                {
                  title: t('keys.name'),
                  cell: (token) => (
                    <div>
                      <span class="table-name isolate">{neutralise(token.name)}</span>
                      <code class="table-sub">{token.display}</code>
                    </div>
                  ),
                },
                { title: t('tokens.rights'), cell: (token) => t(`tokens.rights.${token.rights}`) },
                {
                  title: t('keys.lastUsed'),
                  cell: (token) =>
                    token.last_used_at === null ? (
                      <span class="faint">{t('keys.neverUsed')}</span>
                    ) : (
                      <Ago time={token.last_used_at} />
                    ),
                },
                {
                  title: t('keys.expires'),
                  cell: (token) =>
                    token.expires_at === null ? (
                      <span class="faint">{t('keys.never')}</span>
                    ) : (
                      formatDate(token.expires_at, locale())
                    ),
                },
                {
                  title: t('field.actions'),
                  isActions: true,
                  cell: (token) => (
                    <Button isSmall look="danger" onClick={() => setEnding(token)}>
                      {t('action.delete')}
                    </Button>
                  ),
                },
              ]}
            />
          )
        }
      </Loaded>
      {isCreating && <CreateDialog onClose={() => setCreating(false)} onDone={done} />}
      {made !== null && (
        <SecretDialog
          title={t('tokens.secretTitle')}
          secret={made.token ?? ''}
          label={t('tokens.secret')}
          onClose={() => setMade(null)}
        />
      )}
      {ending !== null && (
        <ConfirmDialog
          title={t('tokens.deleteTitle')}
          confirm={t('action.delete')}
          isBusy={end.isBusy}
          problem={end.problem}
          onClose={() => setEnding(null)}
          onConfirm={() => void end.run(ending)}
        >
          <p>
            {t('tokens.deleteText')} <strong class="isolate">{neutralise(ending.name)}</strong>
          </p>
        </ConfirmDialog>
      )}
    </Card>
  );
}

function CreateDialog({ onClose, onDone }: { onClose: () => void; onDone: (token: MadeToken) => void }) {
  const [name, setName] = useState('');
  const [rights, setRights] = useState<'read' | 'write'>('write');
  const [expires, setExpires] = useState('');
  const [isSubmitted, setSubmitted] = useState(false);
  const action = useAction(async () =>
    onDone(
      await call<MadeToken>('POST', '/tokens', {
        body: { name: name.trim(), rights, expires_at: fromLocalInput(expires) },
      }),
    ),
  );
  const submit = () => {
    setSubmitted(true);
    if (name.trim() !== '') void action.run();
  };
  return (
    <Dialog
      title={t('tokens.create')}
      onClose={onClose}
      onSubmit={submit}
      foot={
        <>
          <Button onClick={onClose}>{t('action.cancel')}</Button>
          <Button type="submit" look="primary" isBusy={action.isBusy}>
            {t('tokens.create')}
          </Button>
        </>
      }
    >
      <ProblemBanner problem={action.problem} />
      <TextField
        label={t('keys.name')}
        hint={t('tokens.nameHint')}
        maxLength={100}
        autoFocus
        value={name}
        onInput={setName}
        error={isSubmitted && name.trim() === '' ? t('spec.error.required') : undefined}
      />
      <Choices
        legend={t('tokens.rights')}
        value={rights}
        onChange={setRights}
        options={[
          { value: 'write', label: t('tokens.rights.write'), hint: t('tokens.writeHint') },
          { value: 'read', label: t('tokens.rights.read'), hint: t('tokens.readHint') },
        ]}
      />
      <TextField
        label={t('keys.expires')}
        hint={t('tokens.expiresHint')}
        isOptional
        type="datetime-local"
        value={expires}
        onInput={setExpires}
      />
    </Dialog>
  );
}
