import type { Db } from '../store/schema';

/** The last revision that a serving process has applied. */
export interface Heartbeat {
  gatewayId: string;
  appliedRev: number;
  version: string;
}

/** How many of the live serving processes have applied a revision. */
export interface Propagation {
  rev: number;
  applied: number;
  total: number;
  /** Age of the oldest heartbeat among the processes that have not applied it, or 0. */
  maxLagMs: number;
}

/** Upper bound on the propagation of a change. A process that has not read the feed for this long accepts no keys. */
export const PROPAGATION_CEILING_MS = 300_000;

/** Writes a heartbeat and deletes those of dead processes. */
export async function writeHeartbeat(
  db: Db,
  { gatewayId, appliedRev, version }: Heartbeat,
  nowMs: number,
): Promise<void> {
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

/** Removes a process at its shutdown, so that it no longer counts. */
export async function deleteHeartbeat(db: Db, gatewayId: string): Promise<void> {
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
