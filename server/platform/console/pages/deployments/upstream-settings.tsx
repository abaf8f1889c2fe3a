import { useState } from 'preact/hooks';
import type { Deployment } from '../../../api/objects';
import { call } from '../../api/client';
import { useAction } from '../../api/resource';
import { t } from '../../i18n';
import { isUpstream, toUpstream, upstreamDraft } from '../../spec/upstream-draft';
import { UpstreamFields } from '../../spec/upstream-fields';
import { Button } from '../../ui/button';
import { Card } from '../../ui/page';
import { ProblemBanner } from '../../ui/state';
import { toast } from '../../ui/toast';

/** The upstream server that a deployment forwards to. Saving adds a version of it. */
export function UpstreamSettings({
  of,
  upstream,
  onChange,
}: {
  of: Deployment;
  upstream: NonNullable<Deployment['upstream']>;
  onChange: (deployment: Deployment) => void;
}) {
  const [draft, setDraft] = useState(() => upstreamDraft(upstream));
  const [isSubmitted, setSubmitted] = useState(false);
  const action = useAction(async () => {
    const body = { upstream: toUpstream(draft) };
    const next = await call<Deployment>('PATCH', `/deployments/${of.id}`, { body, ifMatch: of.rev });
    if (next.upstream !== null) setDraft(upstreamDraft(next.upstream));
    onChange(next);
    toast(t('action.saved'));
  });
  const submit = (event: Event) => {
    event.preventDefault();
    setSubmitted(true);
    if (isUpstream(draft)) void action.run();
  };
  return (
    <form class="page-narrow" noValidate onSubmit={submit}>
      <Card title={t('upstream.title')} note={t('upstream.changeNote')}>
        <div class="stack">
          <UpstreamFields
            draft={draft}
            onChange={setDraft}
            hasSecret={upstream.has_secret}
            isChecked={isSubmitted}
            problem={action.problem}
          />
          <ProblemBanner problem={action.problem} />
          <div class="row">
            <Button type="submit" isBusy={action.isBusy}>
              {t('upstream.save')}
            </Button>
          </div>
        </div>
      </Card>
    </form>
  );
}
