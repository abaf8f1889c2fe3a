import { newId } from 'capstan/internal';
import type { ServiceActor } from '../accounts/actor';
import { demandSources } from './data-sources';
import type { ServiceChange } from '../store/change';
import type { BindingRow, VersionRow } from '../store/deployment-schema';
import type { ServiceDb, ServiceTx } from '../store/schema';
import { type Binding, type OpenSpec, parseSpec, specHash } from './spec';
import type { StoreContext } from '../store/store-context';

export interface VersionDraft {
  deploymentId: string;
  number: number;
  spec: OpenSpec;
  note: string | null;
  state: 'queued' | 'stopped';
}

/** Inserts a version and returns its id. The version's id is part of the encryption of its secret values. */
export async function insertVersion(
  { box, loopNow }: StoreContext,
  { tx, nowMs }: ServiceChange,
  actor: ServiceActor,
  { deploymentId, number, spec, note, state }: VersionDraft,
): Promise<string> {
  await demandSources(
    tx,
    actor,
    spec.bindings.map(({ source_id: id }) => id),
  );
  const id = newId('ver', nowMs);
  const row: VersionRow = {
    id,
    deployment_id: deploymentId,
    number,
    spec: JSON.stringify(spec.stored),
    spec_hash: specHash(spec),
    secret_env: sealSecrets(box, id, spec.secrets),
    home_state: spec.bindings.some(({ mount }) => mount === 'home') ? 'pending' : 'none',
    state,
    reason: null,
    message: null,
    exit_code: null,
    num_exits: 0,
    retry_at: null,
    queued_at: loopNow(),
    started_at: null,
    ready_at: null,
    ended_at: state === 'stopped' ? nowMs : null,
    is_waking: 0,
    last_lines: null,
    note,
    created_by: actor.userId,
    created_at: nowMs,
  };
  await tx.insertInto('deployment_versions').values(row).execute();
  await insertBindings(tx, { version_id: id, container_id: null }, spec.bindings, nowMs);
  return id;
}

export async function insertBindings(
  tx: ServiceTx,
  owner: { version_id: string | null; container_id: string | null },
  bindings: readonly Binding[],
  nowMs: number,
): Promise<void> {
  for (const { mount, source_id } of bindings) {
    const { digest } = await tx
      .selectFrom('data_sources')
      .select('digest')
      .where('id', '=', source_id)
      .executeTakeFirstOrThrow();
    await tx
      .insertInto('data_bindings')
      .values({
        id: newId('bnd', nowMs),
        ...owner,
        source_id,
        mount,
        mode: bindingMode(mount, owner.container_id !== null),
        source_digest: digest,
      })
      .execute();
  }
}

/** Inputs are read-only. A version runs on a copy of its home, a container writes to the original. */
function bindingMode(mount: Binding['mount'], isContainer: boolean): BindingRow['mode'] {
  if (mount !== 'home') return 'ro';
  return isContainer ? 'rw' : 'copy';
}

/** Encrypts each value for this owner and name. Returns JSON. */
export function sealSecrets(box: StoreContext['box'], ownerId: string, secrets: Record<string, string>): string {
  return JSON.stringify(
    Object.fromEntries(
      Object.entries(secrets).map(([name, value]) => [name, box.seal(value, `env ${ownerId} ${name}`)]),
    ),
  );
}

export function openSecrets(box: StoreContext['box'], ownerId: string, sealed: string): Record<string, string> {
  return Object.fromEntries(
    Object.entries(JSON.parse(sealed) as Record<string, string>).map(([name, value]) => [
      name,
      box.open(value, `env ${ownerId} ${name}`),
    ]),
  );
}

/** Returns the spec of a version with decrypted secret values. */
export async function openVersion(
  { box }: StoreContext,
  db: ServiceDb | ServiceTx,
  versionId: string,
): Promise<OpenSpec> {
  const row = await db
    .selectFrom('deployment_versions')
    .select(['spec', 'secret_env'])
    .where('id', '=', versionId)
    .executeTakeFirstOrThrow();
  const bindings = await db
    .selectFrom('data_bindings')
    .select(['mount', 'source_id'])
    .where('version_id', '=', versionId)
    .orderBy('mount')
    .execute();
  return { stored: parseSpec(row.spec), bindings, secrets: openSecrets(box, versionId, row.secret_env) };
}
