import { randomBytes } from 'node:crypto';
import { PostgresAdapter, sql } from 'kysely';
import { AccessError } from '../errors';
import type { Db, Tx } from './schema';

/** The tables of one part of the product, as migration steps. Never change or remove a released step. */
export interface Component {
  name: string;
  steps: readonly ((tx: Tx) => Promise<void>)[];
}

/** PostgreSQL advisory lock id, the same in every process that may migrate the database. */
const POSTGRES_LOCK = 0x63_61_70_73;

/** Migrates to the newest version in one transaction. Safe to run in several processes at once. */
export async function migrate(db: Db, components: readonly Component[] = [ACCESS]): Promise<void> {
  await db.transaction().execute(async (tx) => {
    if (isPostgres(db)) await sql`select pg_advisory_xact_lock(${sql.lit(POSTGRES_LOCK)})`.execute(tx);
    await tx.schema
      .createTable('schema_versions')
      .ifNotExists()
      .addColumn('component', 'text', (column) => column.primaryKey())
      .addColumn('version', 'integer', (column) => column.notNull())
      .execute();
    for (const component of components) await migrateComponent(tx, component);
  });
}

/** Returns whether {@link migrate} would change tables of a release before this one. @throws As {@link migrate} */
export async function needsMigration(db: Db, components: readonly Component[]): Promise<boolean> {
  if (!(await hasTable(db, 'schema_versions'))) return false;
  for (const component of components) if ((await readVersion(db, component)) < component.steps.length) return true;
  return false;
}

/** Returns how many steps the database has. @throws AccessError if a newer release has changed its tables */
export async function readVersion(db: Db | Tx, { name, steps }: Component): Promise<number> {
  const row = await db.selectFrom('schema_versions').select('version').where('component', '=', name).executeTakeFirst();
  const version = row?.version ?? 0;
  if (version <= steps.length) return version;
  throw new AccessError(
    'database_error',
    `a newer release of Capstan has changed the tables of this database: expected at most version ${steps.length} of ${name}, got ${version}. Start that release, or restore a backup from before`,
  );
}

export async function hasTable(db: Db | Tx, name: string): Promise<boolean> {
  const found = isPostgres(db)
    ? await sql`select 1 where to_regclass(${name}) is not null`.execute(db)
    : await sql`select 1 from sqlite_master where type = 'table' and name = ${name}`.execute(db);
  return found.rows.length > 0;
}

async function migrateComponent(tx: Tx, component: Component): Promise<void> {
  const { name, steps } = component;
  const current = await readVersion(tx, component);
  if (current === steps.length) return;
  for (const step of steps.slice(current)) await step(tx);
  await tx
    .insertInto('schema_versions')
    .values({ component: name, version: steps.length })
    .onConflict((conflict) => conflict.column('component').doUpdateSet({ version: steps.length }))
    .execute();
}

export function isPostgres(db: Db | Tx): boolean {
  return db.getExecutor().adapter instanceof PostgresAdapter;
}

export const ACCESS: Component = {
  name: 'access',
  steps: [createOwners, createKeys, createFeed, limitKeys, keepAudit, boundFeed, addKeyPolicy, indexLists],
};

async function createOwners(tx: Tx): Promise<void> {
  for (const table of ['users', 'organizations'] as const) {
    await tx.schema
      .createTable(table)
      .addColumn('id', 'text', (column) => column.primaryKey())
      .addColumn('name', 'text', (column) => column.notNull().unique())
      .addColumn('status', 'text', (column) => column.notNull().check(sql`status in ('active', 'deleted')`))
      .addColumn('created_at', 'bigint', (column) => column.notNull())
      .addColumn('updated_at', 'bigint', (column) => column.notNull())
      .addColumn('rev', 'bigint', (column) => column.notNull())
      .execute();
  }
  await tx.schema
    .createTable('memberships')
    .addColumn('org_id', 'text', (column) => column.notNull().references('organizations.id'))
    .addColumn('user_id', 'text', (column) => column.notNull().references('users.id'))
    .addColumn('role', 'text', (column) =>
      column.notNull().check(sql`role in ('owner', 'admin', 'developer', 'viewer')`),
    )
    .addColumn('created_at', 'bigint', (column) => column.notNull())
    .addPrimaryKeyConstraint('memberships_pk', ['org_id', 'user_id'])
    .execute();
  await tx.schema
    .createTable('deployments')
    .addColumn('id', 'text', (column) => column.primaryKey())
    .addColumn('owner_type', 'text', (column) => column.notNull().check(sql`owner_type in ('user', 'org')`))
    .addColumn('owner_id', 'text', (column) => column.notNull())
    .addColumn('name', 'text', (column) => column.notNull())
    .addColumn('access_control', 'smallint', (column) =>
      column
        .notNull()
        .defaultTo(0)
        .check(sql`access_control in (0, 1)`),
    )
    .addColumn('created_at', 'bigint', (column) => column.notNull())
    .addColumn('updated_at', 'bigint', (column) => column.notNull())
    .addColumn('rev', 'bigint', (column) => column.notNull())
    .addUniqueConstraint('deployments_owner_name', ['owner_id', 'name'])
    .execute();
}

async function createKeys(tx: Tx): Promise<void> {
  await tx.schema
    .createTable('api_keys')
    .addColumn('id', 'text', (column) => column.primaryKey())
    .addColumn('public_id', 'text', (column) => column.notNull().unique())
    .addColumn('owner_type', 'text', (column) => column.notNull().check(sql`owner_type in ('user', 'org')`))
    .addColumn('owner_id', 'text', (column) => column.notNull())
    .addColumn('name', 'text', (column) => column.notNull())
    .addColumn('type', 'text', (column) => column.notNull().check(sql`type in ('user-level', 'deployment-level')`))
    .addColumn('display', 'text', (column) => column.notNull())
    .addColumn('status', 'text', (column) => column.notNull().check(sql`status in ('active', 'disabled', 'deleted')`))
    .addColumn('expires_at', 'bigint')
    .addColumn('limit_rpm', 'integer', (column) => column.check(sql`limit_rpm > 0`))
    .addColumn('limit_tpm', 'integer', (column) => column.check(sql`limit_tpm > 0`))
    .addColumn('limit_parallel', 'integer', (column) => column.check(sql`limit_parallel > 0`))
    .addColumn('created_by', 'text')
    .addColumn('last_used_at', 'bigint')
    .addColumn('last_used_ip', 'text')
    .addColumn('created_at', 'bigint', (column) => column.notNull())
    .addColumn('updated_at', 'bigint', (column) => column.notNull())
    .addColumn('deleted_at', 'bigint')
    .addColumn('rev', 'bigint', (column) => column.notNull())
    .execute();
  await tx.schema.createIndex('api_keys_owner').on('api_keys').columns(['owner_id', 'name']).execute();
  await tx.schema
    .createTable('api_key_secrets')
    .addColumn('key_id', 'text', (column) => column.notNull().references('api_keys.id').onDelete('cascade'))
    .addColumn('version', 'integer', (column) => column.notNull())
    .addColumn('hash', 'text', (column) => column.notNull())
    .addColumn('valid_from', 'bigint', (column) => column.notNull())
    .addColumn('valid_until', 'bigint')
    .addPrimaryKeyConstraint('api_key_secrets_pk', ['key_id', 'version'])
    .execute();
  await tx.schema
    .createTable('key_bindings')
    .addColumn('key_id', 'text', (column) => column.notNull().references('api_keys.id').onDelete('cascade'))
    .addColumn('deployment_id', 'text', (column) => column.notNull().references('deployments.id').onDelete('cascade'))
    .addColumn('created_at', 'bigint', (column) => column.notNull())
    .addPrimaryKeyConstraint('key_bindings_pk', ['key_id', 'deployment_id'])
    .execute();
  await tx.schema.createIndex('key_bindings_deployment').on('key_bindings').column('deployment_id').execute();
}

async function createFeed(tx: Tx): Promise<void> {
  await tx.schema
    .createTable('auth_revisions')
    .addColumn('rev', 'bigint', (column) => column.notNull())
    .addColumn('entity', 'text', (column) => column.notNull().check(sql`entity in ('key', 'deployment', 'owner')`))
    .addColumn('entity_id', 'text', (column) => column.notNull())
    .addColumn('at', 'bigint', (column) => column.notNull())
    .addPrimaryKeyConstraint('auth_revisions_pk', ['rev', 'entity', 'entity_id'])
    .execute();
  await tx.schema
    .createTable('auth_state')
    .addColumn('id', 'smallint', (column) => column.primaryKey().check(sql`id = 1`))
    .addColumn('rev', 'bigint', (column) => column.notNull())
    .addColumn('epoch', 'text', (column) => column.notNull())
    .execute();
  await tx
    .insertInto('auth_state')
    .values({ id: 1, rev: 0, epoch: randomBytes(16).toString('hex') })
    .execute();
}

/** Adds allowed networks, token budgets and key usage. */
async function limitKeys(tx: Tx): Promise<void> {
  for (const name of ['allowed_cidrs', 'deleted_by'] as const)
    await tx.schema.alterTable('api_keys').addColumn(name, 'text').execute();
  await tx.schema
    .alterTable('api_keys')
    .addColumn('budget_tokens', 'bigint', (column) => column.check(sql`budget_tokens > 0`))
    .execute();
  await tx.schema
    .alterTable('api_keys')
    .addColumn('budget_period', 'text', (column) =>
      column.check(sql`budget_period in ('day', 'week', 'month', 'total')`),
    )
    .execute();
  await tx.schema
    .createTable('key_usage')
    .addColumn('key_id', 'text', (column) => column.notNull().references('api_keys.id').onDelete('cascade'))
    .addColumn('day', 'integer', (column) => column.notNull())
    .addColumn('requests', 'bigint', (column) => column.notNull())
    .addColumn('tokens', 'bigint', (column) => column.notNull())
    .addPrimaryKeyConstraint('key_usage_pk', ['key_id', 'day'])
    .execute();
}

async function keepAudit(tx: Tx): Promise<void> {
  for (const name of ['event_seq', 'audit_seq'] as const) {
    await tx.schema
      .alterTable('auth_state')
      .addColumn(name, 'bigint', (column) => column.notNull().defaultTo(0))
      .execute();
  }
  await tx.schema
    .alterTable('auth_state')
    .addColumn('audit_hash', 'text', (column) => column.notNull().defaultTo(''))
    .execute();
  await tx.schema
    .createTable('events')
    .addColumn('seq', 'bigint', (column) => column.primaryKey())
    .addColumn('at', 'bigint', (column) => column.notNull())
    .addColumn('type', 'text', (column) => column.notNull())
    .addColumn('owner_id', 'text', (column) => column.notNull())
    .addColumn('target_type', 'text', (column) => column.notNull())
    .addColumn('target_id', 'text', (column) => column.notNull())
    .addColumn('data', 'text', (column) => column.notNull())
    .execute();
  await tx.schema
    .createTable('audit_events')
    .addColumn('seq', 'bigint', (column) => column.primaryKey())
    .addColumn('id', 'text', (column) => column.notNull().unique())
    .addColumn('at', 'bigint', (column) => column.notNull())
    .addColumn('actor_type', 'text', (column) => column.notNull().check(sql`actor_type in ('user', 'key', 'system')`))
    .addColumn('actor_id', 'text', (column) => column.notNull())
    .addColumn('org_id', 'text')
    .addColumn('action', 'text', (column) => column.notNull())
    .addColumn('target_type', 'text', (column) => column.notNull())
    .addColumn('target_id', 'text', (column) => column.notNull())
    .addColumn('ip', 'text')
    .addColumn('user_agent', 'text')
    .addColumn('before', 'text')
    .addColumn('after', 'text')
    .addColumn('result', 'text', (column) => column.notNull().check(sql`result in ('ok', 'denied', 'error')`))
    .addColumn('prev_hash', 'text', (column) => column.notNull())
    .addColumn('hash', 'text', (column) => column.notNull())
    .execute();
  await tx.schema.createIndex('audit_events_target').on('audit_events').columns(['target_id', 'seq']).execute();
  if (isPostgres(tx)) {
    await sql`create function audit_events_append_only() returns trigger language plpgsql as $$ begin raise exception 'audit_events is append only'; end $$`.execute(
      tx,
    );
    await sql`create trigger audit_events_append_only before update or delete or truncate on audit_events for each statement execute function audit_events_append_only()`.execute(
      tx,
    );
  } else {
    for (const verb of ['update', 'delete']) {
      await sql`create trigger ${sql.ref(`audit_events_no_${verb}`)} before ${sql.raw(verb)} on audit_events begin select raise(abort, 'audit_events is append only'); end`.execute(
        tx,
      );
    }
  }
}

/** Adds pruning of the feed and heartbeats of followers. */
async function boundFeed(tx: Tx): Promise<void> {
  await tx.schema
    .alterTable('auth_state')
    .addColumn('pruned_rev', 'bigint', (column) => column.notNull().defaultTo(0))
    .execute();
  await tx.schema
    .createTable('gateway_heartbeats')
    .addColumn('gateway_id', 'text', (column) => column.primaryKey())
    .addColumn('applied_rev', 'bigint', (column) => column.notNull())
    .addColumn('seen_at', 'bigint', (column) => column.notNull())
    .addColumn('version', 'text', (column) => column.notNull())
    .execute();
}

async function addKeyPolicy(tx: Tx): Promise<void> {
  await tx.schema.alterTable('organizations').addColumn('key_policy', 'text').execute();
}

/**
 * Adds indexes for each sort order and each selective filter of key lists. NOTE: their expressions must equal those of
 * the queries exactly.
 */
async function indexLists(tx: Tx): Promise<void> {
  await sql`create index api_keys_created on api_keys (owner_id, created_at, id, name, status)`.execute(tx);
  await sql`create index api_keys_last_used on api_keys (owner_id, (coalesce(last_used_at, 0)), id, name, status)`.execute(
    tx,
  );
  await sql`create index api_keys_expires on api_keys (owner_id, (coalesce(expires_at, 8640000000000000)), id, name, status)`.execute(
    tx,
  );
  for (const column of ['actor_id', 'action', 'org_id'])
    await sql`create index ${sql.ref(`audit_events_${column}`)} on audit_events (${sql.ref(column)}, seq)`.execute(tx);
}
