import path from 'node:path';
import { checkText, type HubKind, newId, type OwnerRef, parseHubName, showHubName } from 'capstan/internal';
import { changeOptions, demandOwner, type ServiceActor, visibleOwners } from '../accounts/actor';
import { quotasOfOwner } from '../control/pool-rows';
import { serviceChange, type ServiceChange } from '../store/change';
import type { DataPullRow, DataSourceRow } from '../store/deployment-schema';
import { ServiceError } from '../store/errors';
import type { ServiceTx } from '../store/schema';
import type { StoreContext } from '../store/store-context';
import { demandWrite } from './catalog';
import {
  checkDescription,
  type DataSourceView,
  demandFreeName,
  demandUnbound,
  findSource,
  locatorOf,
  readSource,
  UNMEASURED,
} from './data-sources';
import { ownerViews } from './owner-views';

/** A model from the hub. */
export interface PullRequest {
  /** `ORG/NAME[@revision][:quantization or file]` */
  model: string;
  /** Default: `huggingface`. */
  hub?: HubKind;
  /** For gated and private models. It is encrypted and kept for later pulls into the same source; null removes it. */
  token?: string | null;
}

export interface NewPull extends PullRequest {
  name: string;
  description?: string | null;
  owner?: OwnerRef;
  visibility?: DataSourceView['visibility'];
}

/** A further pull into a source. Missing fields do not change. */
export type PullAgain = Partial<PullRequest>;

const MAX_TOKEN_CHARS = 1_024;
/** A pull that waits for its turn, without the results of an earlier one. It keeps the size of what is on the disk. */
export const WAITING = {
  state: 'pending',
  error_code: null,
  message: null,
  note: null,
  commit_id: null,
  format: null,
  quantization: null,
  bytes_per_second: null,
  ended_at: null,
} as const;

/** Returns the name of a model in one form. @throws ServiceError `invalid_argument` */
export function checkModelName(param: string, text: string): string {
  const name = parseHubName(text);
  if (name === undefined)
    throw new ServiceError(
      'invalid_argument',
      `${param}: expected a name on the hub, ORG/NAME[@revision][:quantization or file]`,
    );
  return showHubName(name);
}

/** Makes a data source that the service fills with a model from the hub. The caller must also notify the HubPuller. */
export async function createPull(
  context: StoreContext,
  actor: ServiceActor,
  request: NewPull,
): Promise<DataSourceView> {
  const { db, now } = context;
  demandWrite(actor);
  return serviceChange(db, now(), changeOptions(actor), async (change) => {
    const owner = request.owner ?? { type: 'user' as const, id: actor.userId };
    const id = await insertPull(context, change, actor, { ...request, owner });
    return readSource(change.tx, actor, id);
  });
}

/** Inserts a data source with its pull and returns its id. */
export async function insertPull(
  { box, options }: StoreContext,
  { tx, nowMs, rev, record }: ServiceChange,
  actor: ServiceActor,
  request: NewPull & { owner: OwnerRef; tokenParam?: string },
): Promise<string> {
  const { owner, hub = 'huggingface', visibility = 'private' } = request;
  const model = checkModelName('model', request.model);
  await demandPullRight(tx, actor, owner, visibility);
  const [root] = options.machine.dataRoots;
  if (root === undefined)
    throw new ServiceError('invalid_argument', 'expected a data root: start the service with --data-root');
  const id = newId('src', nowMs);
  const source: DataSourceRow = {
    id,
    owner_type: owner.type,
    owner_id: owner.id,
    name: checkText('name', request.name, 100),
    description: checkDescription(request.description ?? null),
    type: 'model',
    locator: locatorOf(path.join(pullRoot(root, options.node), id)),
    visibility,
    ...UNMEASURED,
    created_at: nowMs,
    updated_at: nowMs,
    rev,
  };
  await demandFreeName(tx, source);
  await tx.insertInto('data_sources').values(source).execute();
  const pull: DataPullRow = {
    source_id: id,
    hub,
    model,
    token: sealToken(box, id, request.token ?? null, request.tokenParam),
    attempt: 1,
    is_filled: 0,
    done_bytes: 0,
    total_bytes: null,
    ...WAITING,
    requested_by: actor.userId,
    requested_at: nowMs,
  };
  await tx.insertInto('data_pulls').values(pull).execute();
  record({
    action: 'source.created',
    owner,
    target: { type: 'source', id },
    after: { name: source.name, description: source.description, type: 'model', visibility, hub, model },
  });
  return id;
}

/** Returns the folder below a data root that holds the models of this service. */
export function pullRoot(dataRoot: string, node = 'local'): string {
  return path.join(dataRoot, `hub-${node}`);
}

/** Pulls again: after a failure, for the newest commit, or another model. The caller must also notify the HubPuller. */
export async function pullAgain(
  { db, box, now }: StoreContext,
  actor: ServiceActor,
  sourceId: string,
  request: PullAgain,
): Promise<DataSourceView> {
  demandWrite(actor);
  return serviceChange(db, now(), changeOptions(actor), async ({ tx, nowMs, record }) => {
    const { source, pull } = await demandPull(tx, actor, sourceId);
    if (isActive(pull))
      throw new ServiceError('busy', `${pull.model} is being downloaded: wait until it ends, or cancel it`);
    const model = request.model === undefined ? pull.model : checkModelName('model', request.model);
    const hub = request.hub ?? pull.hub;
    // A version keeps the model that it was created with.
    const isSame = model === pull.model && hub === pull.hub;
    // A token is sent only to the hub that it was given for.
    const keptToken = hub === pull.hub ? pull.token : null;
    if (pull.is_filled === 1 || !isSame) await demandUnbound(tx, sourceId, 'cannot replace the model');
    await tx
      .updateTable('data_pulls')
      .set({
        ...WAITING,
        model,
        hub,
        // Versions wait for the new model. The folder has the old one until then.
        is_filled: 0,
        // The last complete download is in the folder, which is measured.
        ...(pull.state === 'done' ? { done_bytes: 0, total_bytes: null } : {}),
        attempt: pull.attempt + 1,
        requested_by: actor.userId,
        requested_at: nowMs,
        token: request.token === undefined ? keptToken : sealToken(box, sourceId, request.token),
      })
      .where('source_id', '=', sourceId)
      .execute();
    record({
      action: 'source.pulled',
      owner: { type: source.owner_type, id: source.owner_id },
      target: { type: 'source', id: sourceId },
      after: { hub, model },
    });
    return readSource(tx, actor, sourceId);
  });
}

/**
 * Sets or removes the token of a source, and starts its download again if it failed. The caller must notify the
 * HubPuller.
 * @throws ServiceError `forbidden` or `invalid_argument`
 */
export async function changeToken(
  { box }: StoreContext,
  { tx, nowMs, record }: ServiceChange,
  actor: ServiceActor,
  sourceId: string,
  token: string | null,
  tokenParam: string,
): Promise<void> {
  const { source, pull } = await demandPull(tx, actor, sourceId);
  const hasFailed = pull.is_filled === 0 && !isActive(pull);
  await tx
    .updateTable('data_pulls')
    .set({
      token: sealToken(box, sourceId, token, tokenParam),
      ...(hasFailed ? { ...WAITING, attempt: pull.attempt + 1, requested_by: actor.userId, requested_at: nowMs } : {}),
    })
    .where('source_id', '=', sourceId)
    .execute();
  const about = {
    owner: { type: source.owner_type, id: source.owner_id },
    target: { type: 'source', id: sourceId },
  } as const;
  record({ ...about, action: token === null ? 'source.token_removed' : 'source.token_set' });
  if (hasFailed) record({ ...about, action: 'source.pulled', after: { hub: pull.hub, model: pull.model } });
}

/** Cancels a pull. What was downloaded is kept for the next one. The caller must also stop the HubPuller. */
export async function cancelPull(
  { db, now }: StoreContext,
  actor: ServiceActor,
  sourceId: string,
): Promise<DataSourceView> {
  demandWrite(actor);
  return serviceChange(db, now(), changeOptions(actor), async ({ tx, nowMs, record }) => {
    const { source, pull } = await demandPull(tx, actor, sourceId);
    if (!isActive(pull)) throw new ServiceError('wrong_state', 'no model is being downloaded into the data source');
    await tx
      .updateTable('data_pulls')
      .set({ state: 'cancelled', bytes_per_second: null, ended_at: nowMs })
      .where('source_id', '=', sourceId)
      .execute();
    record({
      action: 'source.pull_cancelled',
      owner: { type: source.owner_type, id: source.owner_id },
      target: { type: 'source', id: sourceId },
      after: { model: pull.model },
    });
    return readSource(tx, actor, sourceId);
  });
}

/**
 * Returns the hub and the token of a preview. Those of a source are used unless the request names others.
 * @throws ServiceError as {@link createPull} and {@link pullAgain}.
 */
export async function readPreviewAccess(
  { db, box }: StoreContext,
  actor: ServiceActor,
  { source_id: sourceId, hub, token }: Pick<PullRequest, 'hub' | 'token'> & { source_id?: string },
): Promise<{ hub: HubKind; token: string | null }> {
  demandWrite(actor);
  return db.transaction().execute(async (tx) => {
    if (sourceId === undefined) {
      await demandAnyPullRight(tx, actor);
      return { hub: hub ?? 'huggingface', token: token ?? null };
    }
    const { pull } = await demandPull(tx, actor, sourceId);
    const asked = hub ?? pull.hub;
    if (token !== undefined || asked !== pull.hub || pull.token === null) return { hub: asked, token: token ?? null };
    return { hub: asked, token: box.open(pull.token, tokenPurpose(sourceId)) };
  });
}

function isActive({ state }: DataPullRow): boolean {
  return state === 'pending' || state === 'running';
}

async function demandPull(
  tx: ServiceTx,
  actor: ServiceActor,
  sourceId: string,
): Promise<{ source: DataSourceRow; pull: DataPullRow }> {
  const source = await findSource(tx, sourceId);
  await demandPullRight(tx, actor, { type: source.owner_type, id: source.owner_id }, source.visibility);
  const pull = await tx.selectFrom('data_pulls').selectAll().where('source_id', '=', sourceId).executeTakeFirst();
  if (pull === undefined)
    throw new ServiceError(
      'conflict',
      'the folder of this data source belongs to an administrator: pull into a new data source',
    );
  return { source, pull };
}

/**
 * Administrators may pull for everyone. Others may pull for themselves and for organizations that they administer, if a
 * quota limits the disk space. Otherwise a user could fill the disk of the service.
 * @throws ServiceError `forbidden` or `not_found`
 */
async function demandPullRight(
  tx: ServiceTx,
  actor: ServiceActor,
  owner: OwnerRef,
  visibility: DataSourceRow['visibility'] = 'private',
): Promise<void> {
  if (actor.isAdmin) {
    if (!(await ownerViews(tx, [owner])).has(owner.id))
      throw new ServiceError('invalid_argument', `owner: ${owner.type} ${owner.id} not found`);
    return;
  }
  await demandOwner(tx, actor, owner, 'source.write');
  if (visibility === 'public')
    throw new ServiceError('forbidden', 'only an administrator can make a data source public');
  if ((await quotasOfOwner(tx, owner)).quota_disk_mb === null) throw noQuota();
}

/** Demands an owner that the actor may pull for. @throws ServiceError `forbidden` */
async function demandAnyPullRight(tx: ServiceTx, actor: ServiceActor): Promise<void> {
  if (actor.isAdmin) return;
  for (const owner of await visibleOwners(tx, actor, 'source.write'))
    if ((await quotasOfOwner(tx, owner)).quota_disk_mb !== null) return;
  throw noQuota();
}

function noQuota(): ServiceError {
  return new ServiceError(
    'forbidden',
    'only an administrator can pull models for an owner without a disk quota: ask one to pull it, or to set the quota',
  );
}

function sealToken(box: StoreContext['box'], sourceId: string, token: string | null, param = 'token'): string | null {
  if (token === null) return null;
  if (token.length > MAX_TOKEN_CHARS || !/^[\x21-\x7e]+$/.test(token))
    throw new ServiceError('invalid_argument', `${param}: expected a token of printable ASCII characters`);
  return box.seal(token, tokenPurpose(sourceId));
}

export function tokenPurpose(sourceId: string): string {
  return `hub token ${sourceId}`;
}
