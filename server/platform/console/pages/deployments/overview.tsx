import { useEffect, useState } from 'preact/hooks';
import type { Deployment, DeploymentEvent, Version } from '../../../api/objects';
import { mayChange } from '../../app/rights';
import { call } from '../../api/client';
import { type PageList, useAction, usePages } from '../../api/resource';
import { neutralise } from '../../format/neutral';
import { modelName, snippet, type SnippetLanguage } from '../../format/snippets';
import { lookUp, t } from '../../i18n';
import { BindingList, computeText } from '../../spec/spec-view';
import { CodeBlock, CopyLine } from '../../ui/copy';
import { Segments } from '../../ui/field';
import { Card, Facts } from '../../ui/page';
import { Banner, Loaded, ProblemBanner } from '../../ui/state';
import { Ago, At } from '../../ui/time';
import { Button, LinkButton } from '../../ui/button';
import { Progress } from './progress';
import { ReasonView } from './reason';

export function OverviewTab({
  of,
  versions,
  onChange,
}: {
  of: Deployment;
  versions: PageList<Version>;
  onChange: () => void;
}) {
  const base = `/deployments/${of.id}`;
  const byNumber = (number: number | null) => versions.data?.find((version) => version.number === number);
  const active = byNumber(of.active_version);
  const latest = byNumber(of.target_version) ?? active ?? versions.data?.[0];
  const shown = active ?? latest;
  const isStarting = of.state === 'pending' || of.state === 'updating';
  const failed = byNumber(of.target_version) ?? active;
  return (
    <div class="stack">
      {isStarting && latest !== undefined && (
        <Card title={t(of.state === 'pending' ? 'progress.starting' : 'progress.updating', { n: latest.number })}>
          <Progress of={latest} />
        </Card>
      )}
      {of.state === 'update_failed' && <FailedRollout of={of} onChange={onChange} />}
      {of.reason !== null && (
        <ReasonView
          of={of.reason}
          tone={of.state === 'failed' ? 'bad' : 'warn'}
          isQueued={failed?.state === 'queued'}
          logsHref={failed === undefined ? undefined : `${base}/versions/${failed.number}/logs`}
        />
      )}
      {of.state === 'scaled_to_zero' && <Banner title={t('sleep.title')}>{t('sleep.text')}</Banner>}
      {of.state === 'paused' && of.reason === null && <Banner title={t('paused.title')}>{t('paused.text')}</Banner>}
      <div class="split">
        <div class="stack">
          <UrlCard of={of} version={shown} />
          <EventsCard of={of} />
        </div>
        <Card title={t('deployment.about')}>
          <Facts
            of={[
              of.upstream !== null && [
                t('upstream.title'),
                <code class="small isolate">{neutralise(of.upstream.url)}</code>,
              ],
              of.upstream !== null && [t('deployments.version'), `v${of.upstream.version}`],
              of.upstream === null && [
                t('deployments.version'),
                of.active_version === null ? (
                  '–'
                ) : (
                  <a href={`${base}/versions/${of.active_version}`}>v{of.active_version}</a>
                ),
              ],
              of.target_version !== null &&
                of.target_version !== of.active_version && [
                  t('deployment.target'),
                  <a href={`${base}/versions/${of.target_version}`}>v{of.target_version}</a>,
                ],
              of.upstream === null && [
                t('deployments.replicas'),
                t('deployment.replicasReady', { ready: of.ready_replicas, max: of.max_replicas }),
              ],
              shown !== undefined && [t('spec.compute'), computeText(shown.spec.compute)],
              shown !== undefined && [t('spec.data'), <BindingList of={shown.spec.bindings} />],
              [t('field.owner'), <span class="isolate">{neutralise(of.owner.name)}</span>],
              of.source_container_id !== null && [
                t('deployment.source'),
                <a href={`/containers/${of.source_container_id}`}>{t('deployment.container')}</a>,
              ],
              [t('field.created'), <At time={of.created_at} />],
              [t('field.updated'), <Ago time={of.updated_at} />],
              [t('field.id'), <code class="small">{of.id}</code>],
            ]}
          />
          {shown !== undefined && (
            <div class="row" style={{ marginTop: '16px' }}>
              <LinkButton isSmall icon="audit" href={`${base}/versions/${shown.number}/logs`}>
                {t('logs.title')}
              </LinkButton>
              <LinkButton isSmall icon="send" href={`${base}/test`}>
                {t('deployment.test')}
              </LinkButton>
            </div>
          )}
        </Card>
      </div>
    </div>
  );
}

/** The old version still serves. Activating it again cancels the roll-out. */
function FailedRollout({ of, onChange }: { of: Deployment; onChange: () => void }) {
  const action = useAction(async () => {
    await call('POST', `/deployments/${of.id}/versions/${of.active_version}/activate`);
    onChange();
  });
  return (
    <Banner tone="warn" title={t('rollout.failed')}>
      {t('rollout.failedText', { n: of.active_version ?? 0 })}
      {mayChange(of.owner) && (
        <div class="row">
          <Button isSmall isBusy={action.isBusy} onClick={() => void action.run()}>
            {t('rollout.drop')}
          </Button>
        </div>
      )}
      <ProblemBanner problem={action.problem} />
    </Banner>
  );
}

const LANGUAGES: readonly { value: SnippetLanguage; label: string }[] = [
  { value: 'curl', label: 'curl' },
  { value: 'python', label: 'Python' },
  { value: 'javascript', label: 'JavaScript' },
];

/** The two URLs of a deployment. */
const BASES = ['deployment', 'api'] as const;

function UrlCard({ of, version }: { of: Deployment; version: Version | undefined }) {
  const [language, setLanguage] = useState<SnippetLanguage>('curl');
  const [base, setBase] = useState<(typeof BASES)[number]>('deployment');
  const isApi = base === 'api';
  const needsKey = isApi || of.access_control;
  const ownHint = of.access_control ? 'access.restrictedHint' : 'access.publicHint';
  return (
    <Card title={t('deployment.url')} note={t(isApi ? 'access.apiHint' : ownHint)}>
      <div class="stack">
        <Segments
          label={t('deployment.base')}
          value={base}
          onChange={setBase}
          options={BASES.map((value) => ({ value, label: t(`deployment.base.${value}`) }))}
        />
        <CopyLine text={isApi ? `${of.api_url}/v1` : of.url} label={t('deployment.url')} />
        <div class="stack-small">
          <Segments label={t('snippets.language')} value={language} onChange={setLanguage} options={LANGUAGES} />
          <CodeBlock
            text={snippet(language, {
              url: isApi ? of.api_url : of.url,
              model: isApi || of.upstream !== null ? of.name : modelName(version?.spec.runtime, of.name),
              task: version?.spec.runtime.task ?? 'generate',
              isRestricted: needsKey,
            })}
            label={t('snippets.title')}
          />
          {needsKey && (
            <p class="hint">
              {t('snippets.keyHint')} <a href={`/deployments/${of.id}/access`}>{t('deployment.access')}</a>
            </p>
          )}
        </div>
      </div>
    </Card>
  );
}

const SHOWN_EVENTS = 8;

function EventsCard({ of }: { of: Deployment }) {
  const [isAll, setAll] = useState(false);
  const events = usePages<DeploymentEvent>(`/deployments/${of.id}/events?limit=50`);
  const reloadEvents = events.reload;
  // Every change of a deployment records an event.
  useEffect(() => reloadEvents(), [reloadEvents, of.rev, of.state]);
  return (
    <Card
      title={t('events.title')}
      aside={
        events.data !== undefined &&
        events.data.length > SHOWN_EVENTS && (
          <button type="button" class="button button-quiet button-small" onClick={() => setAll(!isAll)}>
            {t(isAll ? 'events.fewer' : 'events.all')}
          </button>
        )
      }
    >
      <Loaded of={events}>
        {(data) =>
          data.length === 0 ? (
            <p class="hint">{t('events.none')}</p>
          ) : (
            <ol class="timeline">
              {(isAll ? withoutDuplicates(data) : withoutDuplicates(data).slice(0, SHOWN_EVENTS)).map((event) => (
                <li key={event.seq}>
                  <span>{eventText(event) ?? <code>{event.type}</code>}</span>
                  <Ago time={event.at} />
                </li>
              ))}
            </ol>
          )
        }
      </Loaded>
    </Card>
  );
}

/** Events such as `version.starting` carry the version number and name its state. */
function eventText({ type, data }: DeploymentEvent): string | undefined {
  const { version } = data as { version?: unknown };
  const state = type.startsWith('version.') ? lookUp(`state.${type.slice('version.'.length)}`) : undefined;
  if (state !== undefined && typeof version === 'number') return t('events.version', { n: version, state });
  return lookUp(`event.${type}`);
}

/** Two parts of the service may report the same change. */
function withoutDuplicates(events: readonly DeploymentEvent[]): DeploymentEvent[] {
  return events.filter(({ type, at }, i) => i === 0 || events[i - 1].type !== type || events[i - 1].at !== at);
}
