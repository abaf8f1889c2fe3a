import type { Db } from './schema';

/** How far one serving process has followed the feed. */
export interface Heartbeat {
  gatewayId: string;
  appliedRev: number;
  version: string;
}

/** Who has applied a revision, of those that still accept keys. */
export interface Propagation {
  rev: number;
  applied: number;
  total: number;
  /** Since the oldest sign of life of one that has not; 0 when all have. */
  maxLagMs: number;
}

/** A process that has not looked at the feed for this long accepts no keys, so it no longer counts. The source document's "about 5 minutes", as a promise. */
export const PROPAGATION_CEILING_MS = 300_000;

export async function beat(db: Db, { gatewayId, appliedRev, version }: Heartbeat, nowMs: number): Promise<void> {
  const row = { applied_rev: appliedRev, seen_at: nowMs, version };
  await db
    .insertInto('gateway_heartbeats')
    .values({ gateway_id: gatewayId, ...row })
    .onConflict((conflict) => conflict.column('gateway_id').doUpdateSet(row))
    .execute();
  await db
    .deleteFrom('gateway_heartbeats')
    .where('seen_at', '<', nowMs - PROPAGATION_CEILING_MS)
    .execute();
}

/** A process that ends in order is not waited for. */
export async function leave(db: Db, gatewayId: string): Promise<void> {
  await db.deleteFrom('gateway_heartbeats').where('gateway_id', '=', gatewayId).execute();
}

export async function readPropagation(db: Db, rev: number, nowMs: number): Promise<Propagation> {
  const gateways = await db
    .selectFrom('gateway_heartbeats')
    .select(['applied_rev', 'seen_at'])
    .where('seen_at', '>=', nowMs - PROPAGATION_CEILING_MS)
    .execute();
  const behind = gateways.filter((gateway) => gateway.applied_rev < rev);
  return {
    rev,
    applied: gateways.length - behind.length,
    total: gateways.length,
    maxLagMs: Math.max(0, ...behind.map((gateway) => nowMs - gateway.seen_at)),
  };
}
