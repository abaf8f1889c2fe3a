import { useState } from 'preact/hooks';
import type { KeyPolicy, Organization } from '../../../api/objects';
import { isAtLeast } from '../../app/rights';
import { loadSession } from '../../app/session';
import { call } from '../../api/client';
import { useAction } from '../../api/resource';
import { QUOTA_KINDS, quotaLimit } from '../../format/quotas';
import { formatSeconds } from '../../format/times';
import { locale, t } from '../../i18n';
import { navigate } from '../../router/location';
import { withQuery } from '../../router/match';
import { Button } from '../../ui/button';
import { ConfirmDialog } from '../../ui/dialog';
import { Checkbox, TextField } from '../../ui/field';
import { Card, type Fact, Facts } from '../../ui/page';
import { ProblemBanner } from '../../ui/state';
import { toast } from '../../ui/toast';

const DAY_S = 86_400;
const TYPES = ['user-level', 'deployment-level'] as const;

export function OrgSettingsTab({
  org,
  onChange,
  onReload,
}: {
  org: Organization;
  onChange: (org: Organization) => void;
  onReload: () => void;
}) {
  if (!isAtLeast(org.role, 'admin')) return <ReadOnly org={org} />;
  return (
    <div class="stack page-narrow">
      <GeneralCard org={org} onChange={onChange} onReload={onReload} />
      <PolicyCard org={org} onChange={onChange} onReload={onReload} />
      {org.role === 'owner' && <DeleteCard org={org} />}
    </div>
  );
}

function ReadOnly({ org }: { org: Organization }) {
  const { name, key_policy } = org;
  return (
    <Card title={t('orgs.settings')} note={t('orgs.readOnly')}>
      <Facts
        of={[
          [t('keys.name'), <span class="isolate">{name}</span>],
          ...quotaFacts(org),
          [t('policy.maxLifetime'), lifetime(key_policy)],
        ]}
      />
    </Card>
  );
}

function quotaFacts(org: Organization): Fact[] {
  return QUOTA_KINDS.map((kind) => [t(kind.limit), quotaLimit(kind, org, locale()) ?? t('orgs.unlimited')]);
}

function lifetime(policy: KeyPolicy | null): string {
  const seconds = policy?.max_lifetime_s ?? null;
  return seconds === null ? t('orgs.unlimited') : formatSeconds(seconds, locale());
}

function daysOf(policy: KeyPolicy | null): string {
  const seconds = policy?.max_lifetime_s ?? null;
  return seconds === null ? '' : String(seconds / DAY_S);
}

interface EditProps {
  org: Organization;
  onChange: (org: Organization) => void;
  onReload: () => void;
}

/** Saves a part of the organization. After a conflict the user can load the latest state. */
function useEdit({ org, onChange, onReload }: EditProps) {
  const action = useAction(async (edit: object) => {
    onChange(await call<Organization>('PATCH', `/orgs/${org.id}`, { body: edit, ifMatch: org.rev }));
    void loadSession();
    toast(t('action.saved'));
  });
  const problem = (
    <ProblemBanner problem={action.problem}>
      {action.problem?.status === 412 && (
        <div class="row">
          <Button isSmall onClick={onReload}>
            {t('action.reload')}
          </Button>
        </div>
      )}
    </ProblemBanner>
  );
  return { action, problem };
}

function GeneralCard(props: EditProps) {
  const { org } = props;
  const { action, problem } = useEdit(props);
  const [name, setName] = useState(org.name);
  const submit = (event: Event) => {
    event.preventDefault();
    if (name.trim() !== '') void action.run({ name: name.trim() });
  };
  return (
    <Card title={t('orgs.general')} note={t('orgs.quotaNote')}>
      <form class="stack" noValidate onSubmit={submit}>
        {problem}
        <TextField
          label={t('keys.name')}
          maxLength={100}
          value={name}
          onInput={setName}
          error={name.trim() === '' ? t('spec.error.required') : undefined}
        />
        <Facts of={quotaFacts(org)} />
        <div>
          <Button type="submit" look="primary" isBusy={action.isBusy}>
            {t('action.save')}
          </Button>
        </div>
      </form>
    </Card>
  );
}

function PolicyCard(props: EditProps) {
  const {
    org: { key_policy: policy },
  } = props;
  const { action, problem } = useEdit(props);
  const [days, setDays] = useState(daysOf(policy));
  const [requireExpiry, setRequireExpiry] = useState(policy?.require_expiry ?? false);
  const [types, setTypes] = useState<readonly (typeof TYPES)[number][]>(policy?.allowed_types ?? TYPES);
  const isValid = (days === '' || Number(days) > 0) && types.length > 0;
  const submit = (event: Event) => {
    event.preventDefault();
    const next: KeyPolicy = {
      max_lifetime_s: days === '' ? null : Math.round(Number(days) * DAY_S),
      require_expiry: requireExpiry,
      allowed_types: [...types],
    };
    if (isValid) void action.run({ key_policy: next });
  };
  return (
    <Card title={t('policy.title')} note={t('policy.note')}>
      <form class="stack" noValidate onSubmit={submit}>
        {problem}
        <TextField
          label={t('policy.maxLifetime')}
          isOptional
          inputMode="decimal"
          unit={t('unit.days')}
          value={days}
          onInput={setDays}
          error={days !== '' && !(Number(days) > 0) ? t('spec.error.number') : undefined}
        />
        <Checkbox label={t('policy.requireExpiry')} isChecked={requireExpiry} onChange={setRequireExpiry} />
        <fieldset class="stack-small">
          <legend class="label">{t('policy.types')}</legend>
          {TYPES.map((type) => (
            <Checkbox
              key={type}
              label={t(`keys.type.${type}`)}
              isChecked={types.includes(type)}
              onChange={(isAllowed) =>
                setTypes(TYPES.filter((other) => (other === type ? isAllowed : types.includes(other))))
              }
            />
          ))}
          {types.length === 0 && <div class="field-error">{t('policy.typesError')}</div>}
        </fieldset>
        <div>
          <Button type="submit" look="primary" isBusy={action.isBusy} isDisabled={!isValid}>
            {t('action.save')}
          </Button>
        </div>
      </form>
    </Card>
  );
}

function DeleteCard({ org }: { org: Organization }) {
  const [isOpen, setOpen] = useState(false);
  const action = useAction(async () => {
    await call('DELETE', withQuery(`/orgs/${org.id}`, { confirm: org.slug }));
    await loadSession();
    navigate('/orgs');
  });
  return (
    <Card title={t('orgs.deleteTitle')} note={t('orgs.deleteNote')} isDanger>
      <Button look="danger" icon="trash" onClick={() => setOpen(true)}>
        {t('orgs.deleteConfirm')}
      </Button>
      {isOpen && (
        <ConfirmDialog
          title={t('orgs.deleteTitle')}
          confirm={t('orgs.deleteConfirm')}
          name={org.slug}
          isBusy={action.isBusy}
          problem={action.problem}
          onClose={() => setOpen(false)}
          onConfirm={() => void action.run()}
        >
          <p>{t('orgs.deleteText')}</p>
        </ConfirmDialog>
      )}
    </Card>
  );
}
