import { useState } from 'preact/hooks';
import type { Deployment, NewDeployment, OwnerReference } from '../../../api/objects';
import { call } from '../../api/client';
import { fieldMessage } from '../../api/problem';
import { useAction } from '../../api/resource';
import { t } from '../../i18n';
import { navigate } from '../../router/location';
import { type SpecDraft, problemsOf, toRequest } from '../../spec/draft';
import { OwnerField } from '../../spec/owner-field';
import { SpecForm, type SpecChoices } from '../../spec/spec-form';
import { EMPTY_UPSTREAM, isUpstream, toUpstream } from '../../spec/upstream-draft';
import { UpstreamFields } from '../../spec/upstream-fields';
import { Button } from '../../ui/button';
import { Choices, Switch, TextField } from '../../ui/field';
import { Card } from '../../ui/page';
import { Banner, ProblemBanner } from '../../ui/state';
import { DEFAULT_SCALE, isScale, toScale } from '../../format/scale';
import { ScaleFields } from './scale-fields';

/** Where a deployment runs. */
const PLACES = ['here', 'elsewhere'] as const;

/** Creates a deployment and opens its page, which shows the progress. */
export function CreateForm({
  path,
  start,
  name: startName,
  owner: startOwner,
  choices,
  isInherited = false,
  warnings = [],
}: {
  path: string;
  start: SpecDraft;
  name: string;
  owner: OwnerReference;
  choices: SpecChoices;
  isInherited?: boolean;
  warnings?: readonly string[];
}) {
  const [name, setName] = useState(startName);
  const [owner, setOwner] = useState(startOwner);
  const [isRestricted, setRestricted] = useState(false);
  const [draft, setDraft] = useState(start);
  const [scale, setScale] = useState(DEFAULT_SCALE);
  const [place, setPlace] = useState<(typeof PLACES)[number]>('here');
  const [upstream, setUpstream] = useState(EMPTY_UPSTREAM);
  const [isSubmitted, setSubmitted] = useState(false);
  const isElsewhere = place === 'elsewhere';
  const problems = isElsewhere ? {} : problemsOf(draft, isInherited ? start : undefined);
  const action = useAction(async () => {
    const body: NewDeployment = {
      name: name.trim(),
      access_control: isRestricted,
      ...(isElsewhere
        ? { upstream: toUpstream(upstream) }
        : { ...toScale(scale), ...toRequest(draft, isInherited ? start : undefined) }),
      ...(isInherited ? {} : { owner }),
    };
    const { id } = await call<Deployment>('POST', path, { body });
    navigate(`/deployments/${id}`);
  });
  const submit = (event: Event) => {
    event.preventDefault();
    setSubmitted(true);
    const isComplete = isElsewhere ? isUpstream(upstream) : Object.keys(problems).length === 0 && isScale(scale);
    if (name.trim() !== '' && isComplete) void action.run();
  };
  return (
    <form class="stack" noValidate onSubmit={submit}>
      {warnings.length > 0 && (
        <Banner tone="warn" title={t('deploy.warnings')}>
          <ul>
            {warnings.map((warning) => (
              <li key={warning}>{warning}</li>
            ))}
          </ul>
        </Banner>
      )}
      <Card title={t('deploy.basics')}>
        <div class="stack">
          <div class="columns">
            <TextField
              label={t('keys.name')}
              hint={t('deploy.nameHint')}
              maxLength={100}
              autoFocus
              value={name}
              onInput={setName}
              error={
                isSubmitted && name.trim() === '' ? t('spec.error.required') : fieldMessage(action.problem, '/name')
              }
            />
            {!isInherited && <OwnerField value={owner} onChange={setOwner} />}
          </div>
          <div class="stack-small">
            <Switch label={t('access.switch')} isOn={isRestricted} onChange={setRestricted} />
            <p class="hint">{t(isRestricted ? 'access.restrictedHint' : 'access.publicHint')}</p>
          </div>
        </div>
      </Card>
      {!isInherited && (
        <Card title={t('upstream.place')}>
          <Choices
            legend={t('upstream.place')}
            isLegendHidden
            value={place}
            onChange={(next) => {
              setPlace(next);
              // An open deployment with the key of a provider would let anyone spend the owner's money.
              if (next === 'elsewhere') setRestricted(true);
            }}
            options={PLACES.map((value) => ({
              value,
              label: t(`upstream.place.${value}`),
              hint: t(`upstream.place.${value}.hint`),
            }))}
          />
        </Card>
      )}
      {isElsewhere ? (
        <Card title={t('upstream.title')}>
          <UpstreamFields
            draft={upstream}
            onChange={setUpstream}
            hasSecret={false}
            isChecked={isSubmitted}
            problem={action.problem}
          />
        </Card>
      ) : (
        <>
          <SpecForm draft={draft} onChange={setDraft} problems={isSubmitted ? problems : {}} choices={choices} />
          <Card title={t('scale.title')} note={t('scale.note')}>
            <ScaleFields value={scale} onChange={setScale} />
          </Card>
        </>
      )}
      <ProblemBanner problem={action.problem} />
      <div class="form-foot">
        {isSubmitted && Object.keys(problems).length > 0 && (
          <span class="field-error" role="alert">
            {t('deploy.fixFirst')}
          </span>
        )}
        <Button type="submit" look="primary" icon="rocket" isBusy={action.isBusy}>
          {t('deploy.submit')}
        </Button>
      </div>
    </form>
  );
}
