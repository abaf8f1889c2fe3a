import type { Actor } from '../access/audit';
import type { ChangeOptions } from '../access/change';
import type { OwnerRef } from '../access/owners';
import { ServiceError } from './errors';
import { roleOf } from './organizations';
import { may, demand, type Right } from './roles';
import type { ServiceDb, ServiceTx } from './schema';

/** Who asks for something: a person, signed in or by a management token. */
export interface ServiceActor {
  userId: string;
  /** Of the whole machine: images, data of the host, the audit. Nobody else's objects for that. */
  isAdmin: boolean;
  via: 'session' | 'token';
  /** False for a management token that may read alone. */
  canWrite: boolean;
  ip: string | null;
  userAgent: string | null;
}

/** Where a request came from. */
export type From = Pick<ServiceActor, 'ip' | 'userAgent'>;

/** Of somebody who did not prove who they are. */
export const SIGN_IN_ACTOR: Actor = { type: 'system', id: 'sign-in' };

export const NOWHERE: From = { ip: null, userAgent: null };

/** For the audit, and for the revision that a change expects. */
export function changeOptions({ userId, ip, userAgent }: ServiceActor, ifRev?: number): ChangeOptions {
  return { actor: { type: 'user', id: userId, ip, userAgent }, ...(ifRev === undefined ? {} : { ifRev }) };
}

/**
 * The one place that decides whose objects somebody may read or change. What belongs to strangers is `not_found`, as if it did not exist; what one sees and may not do is `forbidden`.
 * @throws ServiceError
 */
export async function demandOwner(
  db: ServiceDb | ServiceTx,
  actor: ServiceActor,
  owner: OwnerRef,
  right: Right,
): Promise<void> {
  if (owner.type === 'user') {
    if (owner.id !== actor.userId || (right !== 'read' && !(await isHere(db, actor.userId))))
      throw new ServiceError('not_found', 'there is no such object');
  } else {
    demand(await roleOf(db, owner.id, actor.userId), right);
  }
  if (right !== 'read' && !actor.canWrite) throw new ServiceError('forbidden', 'this management token may only read');
}

/** Nothing is made for an account that was deleted while the request was under way. */
async function isHere(db: ServiceDb | ServiceTx, userId: string): Promise<boolean> {
  return (
    (await db
      .selectFrom('users')
      .select('id')
      .where('id', '=', userId)
      .where('status', '=', 'active')
      .executeTakeFirst()) !== undefined
  );
}

/** @throws ServiceError */
export function demandAdmin(actor: ServiceActor): void {
  if (!actor.isAdmin) throw new ServiceError('forbidden', 'this needs an administrator');
}

/** Whose objects somebody sees: the own, and those of the organizations in which the right is given. For the scope of lists. */
export async function visibleOwners(
  db: ServiceDb | ServiceTx,
  actor: ServiceActor,
  right: Right = 'read',
): Promise<OwnerRef[]> {
  const rows = await db
    .selectFrom('memberships')
    .innerJoin('organizations', 'organizations.id', 'memberships.org_id')
    .select(['org_id', 'role'])
    .where('user_id', '=', actor.userId)
    .where('organizations.status', '=', 'active')
    .orderBy('org_id')
    .execute();
  return [
    { type: 'user', id: actor.userId },
    ...rows.filter(({ role }) => may(role, right)).map(({ org_id: id }) => ({ type: 'org' as const, id })),
  ];
}
