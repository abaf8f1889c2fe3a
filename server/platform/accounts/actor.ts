import type { Actor, ChangeOptions, OwnerRef } from 'capstan/internal';
import { ServiceError } from '../store/errors';
import { roleOf } from './organizations';
import { may, demand, type Right } from './roles';
import type { ServiceDb, ServiceTx } from '../store/schema';

/** The user who sends a request, signed in or with a management token. */
export interface ServiceActor {
  userId: string;
  /** An administrator manages images, host data and the audit, but has no access to objects of other owners. */
  isAdmin: boolean;
  via: 'session' | 'token';
  /** False for a read-only management token. */
  canWrite: boolean;
  ip: string | null;
  userAgent: string | null;
}

/** The client that sent a request. */
export type From = Pick<ServiceActor, 'ip' | 'userAgent'>;

/** The actor of a failed sign-in. */
export const SIGN_IN_ACTOR: Actor = { type: 'system', id: 'sign-in' };

export const NOWHERE: From = { ip: null, userAgent: null };

/** Returns the options of a change by this actor. */
export function changeOptions({ userId, ip, userAgent }: ServiceActor, ifRev?: number): ChangeOptions {
  return { actor: { type: 'user', id: userId, ip, userAgent }, ...(ifRev === undefined ? {} : { ifRev }) };
}

/**
 * Checks that an actor has a right on the objects of an owner. All access to objects is decided here.
 * @throws ServiceError `not_found` if the actor may not see the owner, `forbidden` if it may only not do this.
 */
export async function demandOwner(
  db: ServiceDb | ServiceTx,
  actor: ServiceActor,
  owner: OwnerRef,
  right: Right,
): Promise<void> {
  if (owner.type === 'user') {
    if (owner.id !== actor.userId || (right !== 'read' && !(await isActiveUser(db, actor.userId))))
      throw new ServiceError('not_found', 'object not found');
  } else {
    demand(await roleOf(db, owner.id, actor.userId), right);
  }
  if (right !== 'read' && !actor.canWrite) throw new ServiceError('forbidden', 'this management token is read-only');
}

/** Guards against an account that is deleted while one of its requests is running. */
async function isActiveUser(db: ServiceDb | ServiceTx, userId: string): Promise<boolean> {
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
  if (!actor.isAdmin) throw new ServiceError('forbidden', 'only an administrator can do this');
}

/** Returns the owners whose objects the actor may list: the user, and the organizations in which it has `right`. */
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
