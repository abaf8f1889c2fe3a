import type { Me, Organization, Owner } from '../../api/objects';
import { me } from './session';

type Role = Organization['role'];
const ROLES: readonly Role[] = ['viewer', 'developer', 'admin', 'owner'];

export function isAtLeast(role: Role, minRole: Role): boolean {
  return ROLES.indexOf(role) >= ROLES.indexOf(minRole);
}

/** Whether the user may change objects of this owner. The service decides; the console only hides buttons. */
export function mayChange(owner: Owner): boolean {
  const account = me();
  if (owner.type === 'user') return owner.id === account.id;
  const org = account.organizations.find(({ id }) => id === owner.id);
  return org !== undefined && isAtLeast(org.role, 'developer');
}

/** The organizations in which the user has at least this role. */
export function possibleOwners(account: Me, minRole: Role = 'developer'): Me['organizations'] {
  return account.organizations.filter(({ role }) => isAtLeast(role, minRole));
}
