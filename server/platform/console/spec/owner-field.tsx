import type { Organization, OwnerReference } from '../../api/objects';
import { possibleOwners } from '../app/rights';
import { me } from '../app/session';
import { neutralise } from '../format/neutral';
import { t } from '../i18n';
import { SelectField } from '../ui/field';

export function selfOwner(): OwnerReference {
  return { type: 'user', id: me().id };
}

/** Selects an owner: the user, or an organization in which the user has at least `minRole`. */
export function OwnerField({
  value,
  onChange,
  minRole,
  hint = t('owner.hint'),
}: {
  value: OwnerReference;
  onChange: (value: OwnerReference) => void;
  minRole?: Organization['role'];
  hint?: string;
}) {
  const orgs = possibleOwners(me(), minRole);
  if (orgs.length === 0) return null;
  const options = [
    { value: `user:${me().id}`, label: t('owner.self') },
    ...orgs.map(({ id, name }) => ({ value: `org:${id}`, label: neutralise(name) })),
  ];
  const change = (text: string) => {
    const [type, id] = text.split(':');
    onChange({ type: type as OwnerReference['type'], id });
  };
  return (
    <SelectField
      label={t('field.owner')}
      hint={hint}
      value={`${value.type}:${value.id}`}
      onChange={change}
      options={options}
    />
  );
}
