import { useState } from 'preact/hooks';
import type { AuditEvent } from '../../api/objects';
import { isAtLeast } from '../app/rights';
import { me } from '../app/session';
import { usePages } from '../api/resource';
import { agentName } from '../format/agent';
import { neutralise } from '../format/neutral';
import { fromLocalInput } from '../format/times';
import { lookUp, t } from '../i18n';
import { navigate, useLocation } from '../router/location';
import { withQuery } from '../router/match';
import { Button } from '../ui/button';
import { SelectField, TextField } from '../ui/field';
import { Card, Page } from '../ui/page';
import { Empty, Loaded } from '../ui/state';
import { Table } from '../ui/table';
import { At } from '../ui/time';

/** The audit records that the user may read. */
export function AuditPage() {
  const { query } = useLocation();
  const [filter, setFilter] = useState({
    actor: query.get('actor') ?? '',
    action: query.get('action') ?? '',
    target: query.get('target') ?? '',
    from: '',
  });
  const account = me();
  const orgs = account.organizations.filter(({ role }) => isAtLeast(role, 'admin'));
  const org = query.get('org') ?? (account.is_admin ? null : (orgs[0]?.id ?? null));
  const canRead = account.is_admin || orgs.length > 0;
  const shown = {
    actor: query.get('actor'),
    action: query.get('action'),
    target: query.get('target'),
    from: query.get('from'),
  };
  const events = usePages<AuditEvent>(canRead ? withQuery('/audit', { org, ...shown }) : null);
  const isFiltered = Object.values(shown).some((value) => value !== null);
  const set = (part: Partial<typeof filter>) => setFilter({ ...filter, ...part });
  const submit = (event: Event) => {
    event.preventDefault();
    navigate(
      withQuery('/audit', {
        org,
        actor: filter.actor.trim(),
        action: filter.action.trim(),
        target: filter.target.trim(),
        from: fromLocalInput(filter.from),
      }),
      { replace: true },
    );
  };
  const clear = () => {
    setFilter({ actor: '', action: '', target: '', from: '' });
    navigate(withQuery('/audit', { org }), { replace: true });
  };
  if (!canRead)
    return (
      <Page title={t('nav.audit')} subtitle={t('audit.subtitle')}>
        <Card isFlush>
          <Empty icon="lock" title={t('audit.forbidden')}>
            {t('audit.forbiddenHint')}
          </Empty>
        </Card>
      </Page>
    );
  const scopes = [
    ...(account.is_admin ? [{ value: '', label: t('audit.everything') }] : []),
    ...orgs.map(({ id, name }) => ({ value: id, label: neutralise(name) })),
  ];
  return (
    <Page title={t('nav.audit')} subtitle={t('audit.subtitle')}>
      <div class="stack">
        <Card>
          <form class="stack" onSubmit={submit}>
            <div class="columns">
              {scopes.length > 1 && (
                <SelectField
                  label={t('audit.scope')}
                  value={org ?? ''}
                  onChange={(value) => navigate(withQuery('/audit', { org: value, ...shown }), { replace: true })}
                  options={scopes}
                />
              )}
              <TextField
                label={t('audit.action')}
                placeholder="key.created"
                isMono
                value={filter.action}
                onInput={(action) => set({ action })}
              />
              <TextField
                label={t('audit.actor')}
                placeholder="usr_…"
                isMono
                value={filter.actor}
                onInput={(actor) => set({ actor })}
              />
              <TextField
                label={t('audit.target')}
                placeholder="dep_…"
                isMono
                value={filter.target}
                onInput={(target) => set({ target })}
              />
              <TextField
                label={t('audit.from')}
                type="datetime-local"
                value={filter.from}
                onInput={(from) => set({ from })}
              />
            </div>
            <div class="row">
              <Button type="submit" icon="search">
                {t('action.filter')}
              </Button>
              {isFiltered && (
                <Button look="quiet" onClick={clear}>
                  {t('action.clearFilter')}
                </Button>
              )}
            </div>
          </form>
        </Card>
        <Card isFlush>
          <Loaded of={events}>
            {(data) =>
              data.length === 0 ? (
                <Empty icon="audit" title={t(isFiltered ? 'audit.noMatch' : 'audit.empty')} />
              ) : (
                <Table
                  label={t('nav.audit')}
                  rows={data}
                  keyOf={({ id }) => id}
                  hasMore={events.hasMore}
                  isLoading={events.isLoading}
                  onMore={events.loadMore}
                  columns={[
                    { title: t('audit.at'), cell: ({ at }) => <At time={at} /> },
                    {
                      title: t('audit.action'),
                      cell: ({ action, result }) => (
                        <div>
                          {result === 'ok' ? (
                            lookUp(`event.${action}`)
                          ) : (
                            <span class="badge badge-warn">{t(`audit.result.${result}`)}</span>
                          )}
                          <code class="table-sub">{action}</code>
                        </div>
                      ),
                    },
                    {
                      title: t('audit.actor'),
                      cell: ({ actor, ip, user_agent }) => (
                        <div>
                          <NamedObject of={actor} />
                          {ip !== null && (
                            <span class="table-sub isolate" title={user_agent ?? ''}>
                              {[ip, neutralise(agentName(user_agent) ?? '')].filter((part) => part !== '').join(' · ')}
                            </span>
                          )}
                        </div>
                      ),
                    },
                    {
                      title: t('audit.target'),
                      cell: ({ target }) => (
                        <div>
                          <NamedObject of={target} />
                        </div>
                      ),
                    },
                    { title: t('audit.change'), cell: (event) => <Change of={event} /> },
                  ]}
                />
              )
            }
          </Loaded>
        </Card>
      </div>
    </Page>
  );
}

/** Deleted objects have an id, but no name. */
function NamedObject({ of: { id, name } }: { of: AuditEvent['target'] }) {
  return name === null ? (
    <code>{id}</code>
  ) : (
    <>
      <span class="isolate">{neutralise(name)}</span>
      <code class="table-sub">{id}</code>
    </>
  );
}

function Change({ of: { before, after } }: { of: AuditEvent }) {
  const parts = [before === null ? '' : `− ${text(before)}`, after === null ? '' : `+ ${text(after)}`].filter(
    (part) => part !== '',
  );
  if (parts.length === 0) return null;
  return (
    <details class="disclosure">
      <summary class="small">{t('audit.show')}</summary>
      <code class="isolate small" style={{ whiteSpace: 'pre-wrap' }}>
        {neutralise(parts.join('\n'))}
      </code>
    </details>
  );
}

function text(value: unknown): string {
  return JSON.stringify(value, null, 1).replace(/^\{\n|\n\}$/g, '');
}
