import { type KeyPolicy, readKeyPolicy } from '../access/key-policy';
import type { MemberRole } from '../access/schema';
import { ServiceError } from './errors';
import { listOrganizations, type Organization } from './organizations';
import type { ServiceDb } from './schema';

/** An organization as one of its members sees it. */
export type OrganizationView = Organization & { role: MemberRole; keyPolicy: KeyPolicy | null };

/** As one of its members sees it. @throws ServiceError */
export async function findOrganization(db: ServiceDb, orgId: string, userId: string): Promise<OrganizationView> {
  const found = (await listOrganizations(db, userId)).find(({ id }) => id === orgId);
  if (found === undefined) throw new ServiceError('not_found', 'there is no such organization');
  return { ...found, keyPolicy: await readKeyPolicy(db, orgId) };
}
