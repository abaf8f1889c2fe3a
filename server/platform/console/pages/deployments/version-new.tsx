import { useState } from 'preact/hooks';
import type { Deployment, NewVersion, Version } from '../../../api/objects';
import { call } from '../../api/client';
import { useAction, useResource } from '../../api/resource';
import { t } from '../../i18n';
import { navigate, useLocation } from '../../router/location';
import { useSpecChoices } from '../../spec/choices';
import { draftOf, problemsOf, toRequest } from '../../spec/draft';
import { SpecForm } from '../../spec/spec-form';
import { Button, LinkButton } from '../../ui/button';
import { TextField } from '../../ui/field';
import { Card, Page } from '../../ui/page';
import { Loaded, ProblemBanner } from '../../ui/state';
import { StrategyChoices } from './strategy-choices';

/** Creates a version based on the active version, or on the version in the query. */
export function VersionNewPage({ id }: { id: string }) {
  const { query } = useLocation();
  const base = `/deployments/${id}`;
  const deployment = useResource<Deployment>(base);
  const newest = useResource<{ data: Version[] }>(`${base}/versions?limit=1`);
  const newestNumber = newest.data?.data[0]?.number ?? 1;
  const number =
    query.get('from') ??
    (deployment.data === undefined || newest.data === undefined
      ? null
      : (deployment.data.active_version ?? newestNumber));
  const from = useResource<Version>(number === null ? null : `${base}/versions/${number}`);
  return (
    <Page
      isNarrow
      title={t('versions.new')}
      crumbs={[
        { href: '/deployments', label: t('nav.deployments') },
        { href: base, label: deployment.data?.name ?? '…' },
      ]}
      subtitle={number === null ? undefined : t('versions.newText', { n: number })}
    >
      <Loaded of={deployment}>
        {(data) => (
          <Loaded of={from}>
            {(version) => (
              <NewVersionForm key={version.id} of={data} from={version} isNewest={version.number === newestNumber} />
            )}
          </Loaded>
        )}
      </Loaded>
    </Page>
  );
}

/** Returns null for an empty text, and undefined for a text that is not a share. */
function parseShare(text: string): number | null | undefined {
  if (text.trim() === '') return null;
  const percent = /^\d{1,3}$/.test(text.trim()) ? Number(text) : 0;
  return percent >= 1 && percent <= 100 ? percent : undefined;
}

function NewVersionForm({ of, from, isNewest }: { of: Deployment; from: Version; isNewest: boolean }) {
  const choices = useSpecChoices();
  const [active] = useState(() => draftOf(from.spec));
  const [draft, setDraft] = useState(active);
  const [note, setNote] = useState('');
  const [strategy, setStrategy] = useState(of.strategy);
  const [share, setShare] = useState('');
  const percent = parseShare(share);
  const [isSubmitted, setSubmitted] = useState(false);
  // The service fills omitted fields from the newest version. For any other base, send all fields.
  const base = isNewest ? active : undefined;
  const problems = problemsOf(draft, base);
  const action = useAction(async () => {
    const body: NewVersion = {
      ...toRequest(draft, base),
      strategy,
      ...(note.trim() === '' ? {} : { note: note.trim() }),
      ...(typeof percent === 'number' ? { canary: { percent } } : {}),
    };
    await call<Version>('POST', `/deployments/${of.id}/versions`, { body });
    navigate(`/deployments/${of.id}`);
  });
  const submit = (event: Event) => {
    event.preventDefault();
    setSubmitted(true);
    if (Object.keys(problems).length === 0 && percent !== undefined) void action.run();
  };
  return (
    <form class="stack" noValidate onSubmit={submit}>
      <Card title={t('versions.rollOutTitle')}>
        <div class="stack">
          <TextField
            label={t('versions.noteField')}
            hint={t('versions.noteHint')}
            isOptional
            maxLength={1_000}
            autoFocus
            value={note}
            onInput={setNote}
          />
          <TextField
            label={t('canary.percent')}
            hint={t('canary.percentHint')}
            isOptional
            inputMode="numeric"
            unit="%"
            value={share}
            onInput={setShare}
            error={isSubmitted && percent === undefined ? t('canary.percentError') : undefined}
          />
          <StrategyChoices value={strategy} onChange={setStrategy} />
        </div>
      </Card>
      <SpecForm draft={draft} onChange={setDraft} problems={isSubmitted ? problems : {}} choices={choices} />
      <ProblemBanner problem={action.problem} />
      <div class="form-foot">
        {isSubmitted && Object.keys(problems).length > 0 && (
          <span class="field-error" role="alert">
            {t('deploy.fixFirst')}
          </span>
        )}
        <LinkButton href={`/deployments/${of.id}`}>{t('action.cancel')}</LinkButton>
        <Button type="submit" look="primary" icon="rocket" isBusy={action.isBusy}>
          {t('versions.rollOutNew')}
        </Button>
      </div>
    </form>
  );
}
