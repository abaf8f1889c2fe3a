import { type OwnerRef, parseHubName, showHubName } from 'capstan/internal';
import { type ServiceActor, visibleOwners } from '../accounts/actor';
import type { ServiceChange } from '../store/change';
import type { DataPullRow, DataSourceRow, Mount } from '../store/deployment-schema';
import { ServiceError } from '../store/errors';
import type { ServiceTx } from '../store/schema';
import type { StoreContext } from '../store/store-context';
import { changeToken, insertPull, WAITING } from './data-pulls';
import { isVisible } from './data-sources';
import { hubModelOf } from './runtime-options';
import type { OpenSpec, SpecRequest, StoredSpec } from './spec';

const INPUTS: readonly Mount[] = ['input0', 'input1', 'input2', 'input3', 'input4'];
const MAX_NAME = 100;

/**
 * Binds the data source with the model from the hub that a specification names. Uses one that the actor can see, or
 * creates one, which the service fills. The replicas wait until it is complete. Without such a model, returns the
 * specification without the binding that an earlier version had for its model.
 * @param base The specification that `request` changes.
 */
export async function bindHubModel(
  context: StoreContext,
  change: ServiceChange,
  actor: ServiceActor,
  owner: OwnerRef,
  { spec, request, base }: { spec: OpenSpec; request: SpecRequest; base?: OpenSpec | undefined },
): Promise<OpenSpec> {
  const { stored } = spec;
  const formerMount = base?.stored.model_mount;
  const kept =
    request.bindings === undefined ? spec.bindings.filter(({ mount }) => mount !== formerMount) : spec.bindings;
  const name = runsHubModel(stored) ? hubModelOf(stored.runtime) : undefined;
  const { hub_token: token } = request;
  if (name === undefined && typeof token === 'string')
    throw new ServiceError('invalid_argument', 'hub_token: expected none, because runtime.model is not on a hub');
  if (name === undefined) return { ...spec, bindings: kept };
  const hub = stored.runtime.hub ?? 'huggingface';
  const model = showHubName(parseHubName(name)!);
  const wasBound = base?.bindings.find(({ mount }) => mount === base.stored.model_mount)?.source_id;
  const found = await findModel(change.tx, actor, owner, { hub, model, hasToken: typeof token === 'string' }, wasBound);
  if (found?.owner_id === owner.id && token !== undefined)
    await changeToken(context, change, actor, found.id, token, 'hub_token');
  const sourceId =
    found?.id ??
    (await insertPull(context, change, actor, {
      owner,
      hub,
      model,
      ...(token === undefined ? {} : { token, tokenParam: 'hub_token' }),
      name: await freeName(change.tx, owner, model),
      visibility: owner.type === 'org' ? 'org' : 'private',
    }));
  const bound = kept.find(({ source_id: id, mount }) => id === sourceId && mount !== 'home');
  if (bound !== undefined) return { ...spec, bindings: kept, stored: { ...stored, model_mount: bound.mount } };
  const mount = [...(formerMount === undefined ? [] : [formerMount]), ...INPUTS].find(
    (candidate) => !kept.some((binding) => binding.mount === candidate),
  );
  if (mount === undefined)
    throw new ServiceError(
      'invalid_argument',
      'bindings: expected a free input for the model from the hub, got five inputs',
    );
  return {
    ...spec,
    stored: { ...stored, model_mount: mount },
    bindings: [...kept, { mount, source_id: sourceId }],
  };
}

function runsHubModel({ start_command: script, image_type: type }: StoredSpec): boolean {
  return script === null && type === 'builtin-runtime';
}

/** Downloads that failed start again when a version that needs them is queued. The caller must notify the HubPuller. */
export async function retryPulls(tx: ServiceTx, deploymentId: string, nowMs: number): Promise<void> {
  await tx
    .updateTable('data_pulls')
    .set((eb) => ({ ...WAITING, attempt: eb('attempt', '+', 1), requested_at: nowMs }))
    .where('state', 'in', ['failed', 'cancelled'])
    .where('is_filled', '=', 0)
    .where('source_id', 'in', (eb) =>
      eb
        .selectFrom('data_bindings')
        .innerJoin('deployment_versions', 'deployment_versions.id', 'data_bindings.version_id')
        .select('data_bindings.source_id')
        .where('deployment_id', '=', deploymentId)
        .where('deployment_versions.state', '=', 'queued'),
    )
    .execute();
}

/**
 * Returns a data source of the model that the actor can use. The one of the earlier version comes first, then those of
 * the owner, then those that are complete. A token is not given to the downloads of other owners.
 */
async function findModel(
  tx: ServiceTx,
  actor: ServiceActor,
  owner: OwnerRef,
  { hub, model, hasToken }: Pick<DataPullRow, 'hub' | 'model'> & { hasToken: boolean },
  wasBound: string | undefined,
): Promise<Pick<DataSourceRow, 'id' | 'owner_id'> | undefined> {
  const owners = await visibleOwners(tx, actor);
  const rows = await tx
    .selectFrom('data_pulls')
    .innerJoin('data_sources', 'data_sources.id', 'data_pulls.source_id')
    .selectAll('data_sources')
    .select(['is_filled', 'state'])
    .where('hub', '=', hub)
    .where('model', '=', model)
    .orderBy('data_sources.id')
    .execute();
  const isOwn = (row: DataSourceRow): boolean => row.owner_id === owner.id;
  const usable = rows.filter(
    (row) =>
      isVisible(row, owners) &&
      (row.is_filled === 1 || isOwn(row) || (!hasToken && !['failed', 'cancelled'].includes(row.state))),
  );
  const rank = (row: (typeof rows)[number]): number =>
    (row.id === wasBound ? 4 : 0) + (isOwn(row) ? 2 : 0) + (row.is_filled === 1 ? 1 : 0);
  return usable.sort((a, b) => rank(b) - rank(a)).at(0);
}

/** Returns the name of the model, with a number if the owner has another data source of that name. */
async function freeName(tx: ServiceTx, owner: OwnerRef, model: string): Promise<string> {
  const rows = await tx.selectFrom('data_sources').select('name').where('owner_id', '=', owner.id).execute();
  const taken = new Set(rows.map(({ name }) => name));
  for (let number = 1; ; number++) {
    const suffix = number === 1 ? '' : ` (${number})`;
    const name = model.slice(0, MAX_NAME - suffix.length) + suffix;
    if (!taken.has(name)) return name;
  }
}
