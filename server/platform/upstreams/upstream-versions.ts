import type { ServiceActor } from '../accounts/actor';
import { demandDeployment } from '../deployments/commands';
import type { StoreContext } from '../store/store-context';
import { rfc3339 } from '../store/times';
import { toUpstreamRecord, type UpstreamView } from './upstreams';

export interface UpstreamVersionView extends UpstreamView {
  created_at: string;
  created_by: string;
}

/** Returns the kept versions of an upstream, newest first. */
export async function listUpstreamVersions(
  { db }: StoreContext,
  actor: ServiceActor,
  deploymentId: string,
): Promise<UpstreamVersionView[]> {
  await demandDeployment(db, actor, deploymentId, 'read');
  const rows = await db
    .selectFrom('deployment_upstreams')
    .selectAll()
    .where('deployment_id', '=', deploymentId)
    .orderBy('number', 'desc')
    .execute();
  return rows.map((row) => {
    const { number: version, url, model, interfaces, secret } = toUpstreamRecord(row);
    const { created_at: createdMs, created_by } = row;
    return { version, url, model, interfaces, has_secret: secret !== null, created_at: rfc3339(createdMs), created_by };
  });
}
