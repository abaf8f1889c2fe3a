import { useState } from 'preact/hooks';
import type { Organization } from '../../../api/objects';
import { loadSession } from '../../app/session';
import { call } from '../../api/client';
import { fieldMessage } from '../../api/problem';
import { useAction, usePages } from '../../api/resource';
import { slugOf } from '../../format/slug';
import { neutralise } from '../../format/neutral';
import { t } from '../../i18n';
import { navigate } from '../../router/location';
import { Button } from '../../ui/button';
import { Dialog } from '../../ui/dialog';
import { TextField } from '../../ui/field';
import { Card, Page } from '../../ui/page';
import { Empty, Loaded, ProblemBanner } from '../../ui/state';
import { Table } from '../../ui/table';

export function OrgListPage() {
  const orgs = usePages<Organization>('/orgs');
  const [isCreating, setCreating] = useState(false);
  const create = (
    <Button look="primary" icon="plus" onClick={() => setCreating(true)}>
      {t('orgs.create')}
    </Button>
  );
  return (
    <Page title={t('nav.orgs')} subtitle={t('orgs.subtitle')} actions={create}>
      <Card isFlush>
        <Loaded of={orgs}>
          {(data) =>
            data.length === 0 ? (
              <Empty icon="orgs" title={t('orgs.empty')} actions={create}>
                {t('orgs.emptyHint')}
              </Empty>
            ) : (
              <Table
                label={t('nav.orgs')}
                rows={data}
                keyOf={({ id }) => id}
                hasMore={orgs.hasMore}
                isLoading={orgs.isLoading}
                onMore={orgs.loadMore}
                columns={[
                  {
                    title: t('keys.name'),
                    cell: (org) => (
                      <a class="table-name isolate" href={`/orgs/${org.id}`}>
                        {neutralise(org.name)}
                      </a>
                    ),
                  },
                  { title: t('orgs.slug'), cell: (org) => <code>{org.slug}</code> },
                  { title: t('orgs.yourRole'), cell: (org) => t(`role.${org.role}`) },
                  {
                    title: t('orgs.quotaDeployments'),
                    cell: (org) => <span class="numeric">{org.quota_deployments ?? t('orgs.unlimited')}</span>,
                  },
                ]}
              />
            )
          }
        </Loaded>
      </Card>
      {isCreating && <CreateDialog onClose={() => setCreating(false)} />}
    </Page>
  );
}

function CreateDialog({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState('');
  const [slug, setSlug] = useState<string | null>(null);
  const shownSlug = slug ?? slugOf(name);
  const [isSubmitted, setSubmitted] = useState(false);
  const isSlug = /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/.test(shownSlug);
  const action = useAction(async () => {
    const org = await call<Organization>('POST', '/orgs', { body: { name: name.trim(), slug: shownSlug } });
    // The organizations of the user are part of the account.
    await loadSession();
    navigate(`/orgs/${org.id}`);
  });
  const submit = () => {
    setSubmitted(true);
    if (name.trim() !== '' && isSlug) void action.run();
  };
  return (
    <Dialog
      title={t('orgs.create')}
      onClose={onClose}
      onSubmit={submit}
      foot={
        <>
          <Button onClick={onClose}>{t('action.cancel')}</Button>
          <Button type="submit" look="primary" isBusy={action.isBusy}>
            {t('orgs.create')}
          </Button>
        </>
      }
    >
      <ProblemBanner problem={action.problem} />
      <TextField
        label={t('keys.name')}
        maxLength={100}
        autoFocus
        value={name}
        onInput={setName}
        error={isSubmitted && name.trim() === '' ? t('spec.error.required') : fieldMessage(action.problem, '/name')}
      />
      <TextField
        label={t('orgs.slug')}
        hint={t('orgs.slugHint')}
        isMono
        maxLength={63}
        value={shownSlug}
        onInput={setSlug}
        error={isSubmitted && !isSlug ? t('orgs.slugError') : fieldMessage(action.problem, '/slug')}
      />
    </Dialog>
  );
}
