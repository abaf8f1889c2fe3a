import { type KeyPolicy, readKeyPolicy } from '../access/key-policy';
import type { OwnerName, OwnerRef } from '../access/owners';
import type { MemberRole } from '../access/schema';
import { ServiceError } from './errors';
import { listOrganizations, type Organization } from './organizations';
import type { ServiceDb, ServiceTx } from './schema';

/** An organization as one of its members sees it. */
export type OrganizationView = Organization & { role: MemberRole; keyPolicy: KeyPolicy | null };

/** An address, or the slug of an organization. @throws ServiceError */
export async function nameOfOwner(db: ServiceDb | ServiceTx, { type, id }: OwnerRef): Promise<OwnerName> {
  const row = await db.selectFrom(type === 'user' ? 'users' : 'organizations').select('name').where('id', '=', id).where('status', '=', 'active').executeTakeFirst();
  if (row === undefined) throw new ServiceError('not_found', 'there is no such owner');
  return { type, name: row.name };
}

/** As one of its members sees it. @throws ServiceError */
export async function findOrganization(db: ServiceDb, orgId: string, userId: string): Promise<OrganizationView> {
  const found = (await listOrganizations(db, userId)).find(({ id }) => id === orgId);
  if (found === undefined) throw new ServiceError('not_found', 'there is no such organization');
  return { ...found, keyPolicy: await readKeyPolicy(db, orgId) };
}
