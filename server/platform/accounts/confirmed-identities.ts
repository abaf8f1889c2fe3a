import type { ServiceDb } from '../store/schema';

/** Selects the identities whose confirmation by a provider still holds. The caller adds whose they are. */
export function confirmedIdentities(db: ServiceDb, nowMs: number) {
  return db
    .selectFrom('identities')
    .innerJoin('identity_providers', 'identity_providers.id', 'identities.provider_id')
    .select('identities.subject')
    .where('identities.valid_until', '>', nowMs)
    .where('identity_providers.status', '=', 'active');
}
