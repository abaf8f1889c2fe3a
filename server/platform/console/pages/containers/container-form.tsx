import { useState } from 'preact/hooks';
import type { Container, NewContainer, OwnerReference } from '../../../api/objects';
import { call } from '../../api/client';
import { fieldMessage } from '../../api/problem';
import { useAction } from '../../api/resource';
import { t } from '../../i18n';
import { navigate } from '../../router/location';
import { problemsOf, type SpecDraft, toRequest } from '../../spec/draft';
import { OwnerField, selfOwner } from '../../spec/owner-field';
import { type SpecChoices, SpecForm } from '../../spec/spec-form';
import { Button, LinkButton } from '../../ui/button';
import { TextField } from '../../ui/field';
import { Card } from '../../ui/page';
import { ProblemBanner } from '../../ui/state';

/** Creates or edits a container. */
export function ContainerForm({
  start,
  edited,
  choices,
  onReload,
}: {
  start: SpecDraft;
  edited?: Container;
  choices: SpecChoices;
  onReload?: () => void;
}) {
  const [name, setName] = useState(edited?.name ?? '');
  const [owner, setOwner] = useState<OwnerReference>(selfOwner);
  const [draft, setDraft] = useState(start);
  const [isSubmitted, setSubmitted] = useState(false);
  const base = edited === undefined ? undefined : start;
  const problems = problemsOf(draft, base);
  const action = useAction(async () => {
    const spec = toRequest(draft, base, { withHealth: false });
    const { id } =
      edited === undefined
        ? await call<Container>('POST', '/containers', {
            body: { name: name.trim(), owner, ...spec } satisfies NewContainer,
          })
        : await call<Container>('PATCH', `/containers/${edited.id}`, {
            body: { ...(name.trim() === edited.name ? {} : { name: name.trim() }), ...spec },
            ifMatch: edited.rev,
          });
    navigate(`/containers/${id}`);
  });
  const submit = (event: Event) => {
    event.preventDefault();
    setSubmitted(true);
    if (name.trim() !== '' && Object.keys(problems).length === 0) void action.run();
  };
  return (
    <form class="stack" noValidate onSubmit={submit}>
      <Card title={t('deploy.basics')}>
        <div class="columns">
          <TextField
            label={t('keys.name')}
            maxLength={100}
            autoFocus
            value={name}
            onInput={setName}
            error={isSubmitted && name.trim() === '' ? t('spec.error.required') : fieldMessage(action.problem, '/name')}
          />
          {edited === undefined && <OwnerField value={owner} onChange={setOwner} />}
        </div>
      </Card>
      <SpecForm
        draft={draft}
        onChange={setDraft}
        problems={isSubmitted ? problems : {}}
        choices={choices}
        isContainer
      />
      <ProblemBanner problem={action.problem}>
        {action.problem?.status === 412 && onReload !== undefined && (
          <div class="row">
            <Button isSmall onClick={onReload}>
              {t('action.reload')}
            </Button>
          </div>
        )}
      </ProblemBanner>
      <div class="form-foot">
        {isSubmitted && Object.keys(problems).length > 0 && (
          <span class="field-error" role="alert">
            {t('deploy.fixFirst')}
          </span>
        )}
        <LinkButton href={edited === undefined ? '/containers' : `/containers/${edited.id}`}>
          {t('action.cancel')}
        </LinkButton>
        <Button type="submit" look="primary" isBusy={action.isBusy}>
          {t(edited === undefined ? 'containers.create' : 'action.save')}
        </Button>
      </div>
    </form>
  );
}
