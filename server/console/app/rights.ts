import type { Me, Organization, Owner } from '../../api/objects';
import { me } from './session';

type Role = Organization['role'];
const ROLES: readonly Role[] = ['viewer', 'developer', 'admin', 'owner'];

export function isAtLeast(role: Role, least: Role): boolean {
  return ROLES.indexOf(role) >= ROLES.indexOf(least);
}

/** Whether one may change what belongs to this owner. The service decides; this only spares buttons that would be refused. */
export function mayChange(owner: Owner): boolean {
  const account = me();
  if (owner.type === 'user') return owner.id === account.id;
  const org = account.organizations.find(({ id }) => id === owner.id);
  return org !== undefined && isAtLeast(org.role, 'developer');
}

/** Those in whose name one may make things: oneself, and organizations. */
export function possibleOwners(account: Me, least: Role = 'developer'): Me['organizations'] {
  return account.organizations.filter(({ role }) => isAtLeast(role, least));
}
