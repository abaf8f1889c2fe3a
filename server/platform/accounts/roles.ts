import type { MemberRole } from 'capstan/internal';
import { ServiceError } from '../store/errors';

/** Lowest first. */
export const ROLES = ['viewer', 'developer', 'admin', 'owner'] as const satisfies readonly MemberRole[];

/** The lowest role that has each right in an organization. */
export const RIGHTS = {
  read: 'viewer',
  'deployment.change': 'developer',
  'container.change': 'developer',
  'key.create': 'developer',
  /** Disabling, rotating and deleting the keys that the member created. */
  'key.changeOwn': 'developer',
  'key.changeOthers': 'admin',
  'member.change': 'admin',
  'policy.change': 'admin',
  /** Using a data source as a writable home. */
  'source.write': 'admin',
  'webhook.change': 'admin',
  'audit.read': 'admin',
  'org.delete': 'owner',
  'owner.name': 'owner',
} as const satisfies Record<string, MemberRole>;

export type Right = keyof typeof RIGHTS;

export function may(role: MemberRole, right: Right): boolean {
  return ROLES.indexOf(role) >= ROLES.indexOf(RIGHTS[right]);
}

/** @throws ServiceError `forbidden` */
export function demand(role: MemberRole, right: Right): void {
  if (!may(role, right))
    throw new ServiceError('forbidden', `this requires the role ${RIGHTS[right]} or higher; your role is ${role}`);
}

/**
 * Checks that `actor` may change a role. Members cannot grant or revoke a role above their own.
 * @throws ServiceError
 */
export function demandRoleChange(actor: MemberRole, from: MemberRole | null, to: MemberRole | null): void {
  demand(actor, 'member.change');
  for (const role of [from, to]) {
    if (role !== null && ROLES.indexOf(role) > ROLES.indexOf(actor))
      throw new ServiceError('forbidden', `a member with the role ${actor} cannot grant or revoke the role ${role}`);
  }
}
