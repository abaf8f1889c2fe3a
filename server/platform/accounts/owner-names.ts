import { type KeyPolicy, type MemberRole, readKeyPolicy } from 'capstan/internal';
import { ServiceError } from '../store/errors';
import { listOrganizations, type Organization } from './organizations';
import type { ServiceDb } from '../store/schema';

/** An organization as one of its members sees it. */
export type OrganizationView = Organization & { role: MemberRole; keyPolicy: KeyPolicy | null };

/** Returns an organization. @throws ServiceError `not_found` unless the user is a member. */
export async function findOrganization(db: ServiceDb, orgId: string, userId: string): Promise<OrganizationView> {
  const found = (await listOrganizations(db, userId)).find(({ id }) => id === orgId);
  if (found === undefined) throw new ServiceError('not_found', 'organization not found');
  return { ...found, keyPolicy: await readKeyPolicy(db, orgId) };
}
