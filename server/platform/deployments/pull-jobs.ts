import { lockWriters } from 'capstan/internal';
import { useOf } from '../control/owner-use';
import { quotasOfOwner } from '../control/pool-rows';
import { serviceChange } from '../store/change';
import type { DataPullRow } from '../store/deployment-schema';
import type { ServiceTx } from '../store/schema';
import type { StoreContext } from '../store/store-context';
import { pathOf } from './data-sources';
import { tokenPurpose } from './data-pulls';

/** A pull for the HubPuller. Contains the decrypted token: do not keep it. */
export interface PullJob extends Pick<DataPullRow, 'attempt' | 'hub' | 'model'> {
  sourceId: string;
  folder: string;
  token: string | null;
  /** Why the token cannot be decrypted. */
  tokenError?: string;
}

/** The code of a pull that the quota does not allow. Its download is deleted. */
export const QUOTA_EXCEEDED = 'quota_exceeded';

/** One request of a pull. */
export type PullKey = Pick<PullJob, 'sourceId' | 'attempt'>;

/** What the hub says before the weights are downloaded. */
export interface PullListing {
  commit: string;
  format: string;
  quantization: string | null;
  totalBytes: number;
  /** Bytes that are on the disk already. */
  doneBytes: number;
  note: string | null;
}

export interface PullProgress {
  doneBytes: number;
  totalBytes: number;
  bytesPerSecond: number | null;
}

/** Returns the pull that has waited longest, apart from those of `active`, and marks it as running. */
export async function takePull(context: StoreContext, active: readonly string[]): Promise<PullJob | undefined> {
  const { db, box } = context;
  const row = await db
    .selectFrom('data_pulls')
    .innerJoin('data_sources', 'data_sources.id', 'data_pulls.source_id')
    .selectAll('data_pulls')
    .select('locator')
    // Those that run in no process were interrupted by the end of the service.
    .where('state', 'in', ['pending', 'running'])
    .where('source_id', 'not in', [...active, ''])
    .orderBy('requested_at')
    .orderBy('source_id')
    .limit(1)
    .executeTakeFirst();
  if (row === undefined) return undefined;
  const { source_id: sourceId, attempt, hub, model, token } = row;
  const isTaken = await update(context, { sourceId, attempt }, { state: 'running' });
  if (!isTaken) return takePull(context, active);
  const job = { sourceId, attempt, hub, model, folder: pathOf(row), token: null };
  if (token === null) return job;
  try {
    return { ...job, token: box.open(token, tokenPurpose(sourceId)) };
  } catch (error) {
    // Sealed with a key that is lost.
    return { ...job, tokenError: `${(error as Error).message}. Pull again with the token` };
  }
}

/**
 * Saves what will be downloaded, if the quota of the owner allows it. Returns why it does not, or undefined.
 */
export async function admitPull(
  { db }: StoreContext,
  key: PullKey,
  { commit, format, quantization, totalBytes, doneBytes, note }: PullListing,
): Promise<string | undefined> {
  return db.transaction().execute(async (tx) => {
    // Of two downloads the second must see what the first will take.
    await lockWriters(db, tx);
    const source = await tx.selectFrom('data_sources').selectAll().where('id', '=', key.sourceId).executeTakeFirst();
    if (source === undefined) return undefined;
    const sizes = { total_bytes: totalBytes, done_bytes: doneBytes };
    await update({ db: tx }, key, { commit_id: commit, format, quantization, ...sizes, note });
    const owner = { type: source.owner_type, id: source.owner_id };
    const { quota_disk_mb: quota } = await quotasOfOwner(tx, owner);
    if (quota === null) return undefined;
    // An old model stays until the new one is complete.
    const used = (await useOf(tx, [owner.id]))(owner.id).used_disk_mb;
    const others = await pulledBytes(tx, owner.id, key.sourceId);
    const needed = Math.ceil(used + (others + totalBytes) / 2 ** 20);
    if (needed <= quota) return undefined;
    return `needs ${needed} MiB of disk with the other data and unfinished downloads, but the quota of the owner is ${quota} MiB of disk`;
  });
}

/**
 * Returns the bytes that an owner's pulls have or will take, apart from measured folders and from one source.
 * Failed and cancelled downloads stay on the disk.
 */
async function pulledBytes(tx: StoreContext['db'], ownerId: string, exceptId: string): Promise<number> {
  const rows = await tx
    .selectFrom('data_pulls')
    .innerJoin('data_sources', 'data_sources.id', 'data_pulls.source_id')
    .select(['done_bytes', 'total_bytes'])
    .where('owner_id', '=', ownerId)
    .where('source_id', '!=', exceptId)
    .where((eb) => eb.or([eb('state', '!=', 'done'), eb('size_bytes', 'is', null)]))
    .execute();
  return rows.reduce(
    (sum, { done_bytes: done, total_bytes: total }) => sum + Math.max(Number(done), Number(total ?? 0)),
    0,
  );
}

/** Returns false if the pull was cancelled, deleted or requested again. */
export function savePullProgress(
  context: StoreContext,
  key: PullKey,
  { doneBytes, totalBytes, bytesPerSecond }: PullProgress,
): Promise<boolean> {
  return update(context, key, { done_bytes: doneBytes, total_bytes: totalBytes, bytes_per_second: bytesPerSecond });
}

/** Saves that the folder holds the model, which is then measured. */
export function finishPull(context: StoreContext, key: PullKey, nowMs: number): Promise<void> {
  return endPull(context, key, nowMs, 'source.pull_finished', { state: 'done', is_filled: 1 }, async (tx) => {
    await tx
      .updateTable('data_pulls')
      .set((eb) => ({ done_bytes: eb.fn.coalesce('total_bytes', 'done_bytes') }))
      .where('source_id', '=', key.sourceId)
      .execute();
    await tx
      .updateTable('data_sources')
      .set({ measure_state: 'pending', measure_message: null, size_bytes: null, num_files: null, digest: null })
      .where('id', '=', key.sourceId)
      .execute();
  });
}

export function failPull(
  context: StoreContext,
  key: PullKey,
  { code, message }: { code: string; message: string },
  nowMs: number,
): Promise<void> {
  return endPull(context, key, nowMs, 'source.pull_failed', {
    state: 'failed',
    error_code: code,
    message,
    ...(code === QUOTA_EXCEEDED ? { done_bytes: 0, total_bytes: null } : {}),
  });
}

/** Saves the end of a pull with an event, unless it was cancelled, deleted or requested again. */
async function endPull(
  { db }: StoreContext,
  key: PullKey,
  nowMs: number,
  action: string,
  values: Partial<DataPullRow>,
  also: (tx: ServiceTx) => Promise<void> = () => Promise.resolve(),
): Promise<void> {
  await serviceChange(db, nowMs, {}, async ({ tx, emit }) => {
    if (!(await update({ db: tx }, key, { ...values, bytes_per_second: null, ended_at: nowMs }))) return;
    await also(tx);
    const { owner_type, owner_id, model } = await tx
      .selectFrom('data_pulls')
      .innerJoin('data_sources', 'data_sources.id', 'data_pulls.source_id')
      .select(['owner_type', 'owner_id', 'model'])
      .where('source_id', '=', key.sourceId)
      .executeTakeFirstOrThrow();
    emit({
      action,
      owner: { type: owner_type, id: owner_id },
      target: { type: 'source', id: key.sourceId },
      after: { model, ...(values.error_code === undefined ? {} : { code: values.error_code }) },
    });
  });
}

/** Returns the sources whose folders the HubPuller must keep, and those whose download has ended. */
export async function listPulledSources({ db }: StoreContext): Promise<{ id: string; isDone: boolean }[]> {
  const rows = await db.selectFrom('data_pulls').select(['source_id', 'state']).execute();
  return rows.map(({ source_id: id, state }) => ({ id, isDone: state === 'done' }));
}

async function update(
  { db }: Pick<StoreContext, 'db'>,
  { sourceId, attempt }: PullKey,
  values: Partial<DataPullRow>,
): Promise<boolean> {
  const { numUpdatedRows } = await db
    .updateTable('data_pulls')
    .set(values)
    .where('source_id', '=', sourceId)
    .where('attempt', '=', attempt)
    .where('state', 'in', ['pending', 'running'])
    .executeTakeFirst();
  return numUpdatedRows > 0n;
}
