import type { MemberRole } from '../access/schema';
import { ServiceError } from './errors';

/** From the least to the most. */
export const ROLES = ['viewer', 'developer', 'admin', 'owner'] as const satisfies readonly MemberRole[];

/** What a member may do in an organization, by the least role that may. */
export const RIGHTS = {
  read: 'viewer',
  'deployment.change': 'developer',
  'container.change': 'developer',
  'key.create': 'developer',
  /** Rotating and deleting one's own keys is part of making them. */
  'key.changeOwn': 'developer',
  'key.changeOthers': 'admin',
  'member.change': 'admin',
  'policy.change': 'admin',
  'webhook.change': 'admin',
  'audit.read': 'admin',
  'org.delete': 'owner',
  'owner.name': 'owner',
} as const satisfies Record<string, MemberRole>;

export type Right = keyof typeof RIGHTS;

export function may(role: MemberRole, right: Right): boolean {
  return ROLES.indexOf(role) >= ROLES.indexOf(RIGHTS[right]);
}

/** @throws ServiceError */
export function demand(role: MemberRole, right: Right): void {
  if (!may(role, right))
    throw new ServiceError('forbidden', `this needs the role ${RIGHTS[right]} or above; yours is ${role}`);
}

/** Nobody gives, or takes away, a role above the own; owners alone name owners. @throws ServiceError */
export function demandRoleChange(actor: MemberRole, from: MemberRole | null, to: MemberRole | null): void {
  demand(actor, 'member.change');
  for (const role of [from, to]) {
    if (role !== null && ROLES.indexOf(role) > ROLES.indexOf(actor))
      throw new ServiceError('forbidden', `a member with the role ${actor} cannot give or take the role ${role}`);
  }
}
