import { sql } from 'kysely';
import type { Component, Tx } from 'capstan/internal';
import {
  createCatalog,
  createContainers,
  createDeployments,
  createReplicas,
  followReplicaEnds,
  leaseControlLoop,
  measureSources,
  pullModels,
} from './deployment-migrations';

export const SERVICE: Component = {
  name: 'service',
  steps: [
    createAccounts,
    createOrganizations,
    addManagement,
    createCatalog,
    createDeployments,
    createContainers,
    createReplicas,
    countFailures,
    measureSources,
    keepLocations,
    followReplicaEnds,
    nameAttemptSlots,
    addPasswordResets,
    addRecoveryCodes,
    addQuotas,
    addSessionSecrets,
    leaseControlLoop,
    keepIdleTimeouts,
    pullModels,
  ],
};

async function createAccounts(tx: Tx): Promise<void> {
  await tx.schema
    .createTable('accounts')
    .addColumn('user_id', 'text', (column) => column.primaryKey().references('users.id'))
    .addColumn('email', 'text', (column) => column.notNull().unique())
    .addColumn('display_name', 'text', (column) => column.notNull())
    .addColumn('password_hash', 'text', (column) => column.notNull())
    .addColumn('locale', 'text', (column) => column.notNull().check(sql`locale in ('en', 'zh-CN')`))
    .addColumn('theme', 'text', (column) => column.notNull().check(sql`theme in ('light', 'dark', 'system')`))
    .addColumn('is_admin', 'smallint', (column) => column.notNull().check(sql`is_admin in (0, 1)`))
    .addColumn('created_at', 'bigint', (column) => column.notNull())
    .addColumn('updated_at', 'bigint', (column) => column.notNull())
    .addColumn('rev', 'bigint', (column) => column.notNull())
    .execute();
  await tx.schema
    .createTable('login_attempts')
    .addColumn('email_hash', 'text', (column) => column.primaryKey())
    .addColumn('failures', 'integer', (column) => column.notNull())
    .addColumn('blocked_until', 'bigint', (column) => column.notNull())
    .addColumn('updated_at', 'bigint', (column) => column.notNull())
    .execute();
  await tx.schema
    .createTable('sessions')
    .addColumn('id_hash', 'text', (column) => column.primaryKey())
    .addColumn('user_id', 'text', (column) => column.notNull().references('users.id'))
    .addColumn('csrf_hash', 'text', (column) => column.notNull())
    .addColumn('created_ip', 'text')
    .addColumn('user_agent', 'text')
    .addColumn('created_at', 'bigint', (column) => column.notNull())
    .addColumn('last_seen_at', 'bigint', (column) => column.notNull())
    .addColumn('idle_expires_at', 'bigint', (column) => column.notNull())
    .addColumn('expires_at', 'bigint', (column) => column.notNull())
    .addColumn('revoked_at', 'bigint')
    .addColumn('step_up_at', 'bigint')
    .execute();
  await tx.schema.createIndex('sessions_user').on('sessions').column('user_id').execute();
  await tx.schema
    .createTable('bootstrap_links')
    .addColumn('token_hash', 'text', (column) => column.primaryKey())
    .addColumn('created_at', 'bigint', (column) => column.notNull())
    .addColumn('expires_at', 'bigint', (column) => column.notNull())
    .execute();
}

async function createOrganizations(tx: Tx): Promise<void> {
  await tx.schema
    .createTable('org_settings')
    .addColumn('org_id', 'text', (column) => column.primaryKey().references('organizations.id'))
    .addColumn('display_name', 'text', (column) => column.notNull())
    .addColumn('quota_gpu', 'integer', (column) => column.check(sql`quota_gpu >= 0`))
    .addColumn('quota_deployments', 'integer', (column) => column.check(sql`quota_deployments >= 0`))
    .addColumn('created_at', 'bigint', (column) => column.notNull())
    .addColumn('updated_at', 'bigint', (column) => column.notNull())
    .addColumn('rev', 'bigint', (column) => column.notNull())
    .execute();
  await tx.schema
    .createTable('invitations')
    .addColumn('id', 'text', (column) => column.primaryKey())
    .addColumn('org_id', 'text', (column) => column.notNull().references('organizations.id'))
    .addColumn('email', 'text', (column) => column.notNull())
    .addColumn('role', 'text', (column) =>
      column.notNull().check(sql`role in ('owner', 'admin', 'developer', 'viewer')`),
    )
    .addColumn('token_hash', 'text', (column) => column.notNull().unique())
    .addColumn('expires_at', 'bigint', (column) => column.notNull())
    .addColumn('accepted_at', 'bigint')
    .addColumn('revoked_at', 'bigint')
    .addColumn('invited_by', 'text', (column) => column.notNull().references('users.id'))
    .addColumn('created_at', 'bigint', (column) => column.notNull())
    .execute();
  await tx.schema.createIndex('invitations_org').on('invitations').column('org_id').execute();
}

async function addManagement(tx: Tx): Promise<void> {
  await tx.schema.alterTable('accounts').addColumn('totp_secret', 'text').execute();
  await tx.schema.alterTable('accounts').addColumn('totp_confirmed_at', 'bigint').execute();
  await tx.schema.alterTable('accounts').addColumn('totp_last_step', 'bigint').execute();
  await tx.schema
    .createTable('management_tokens')
    .addColumn('id', 'text', (column) => column.primaryKey())
    .addColumn('user_id', 'text', (column) => column.notNull().references('users.id'))
    .addColumn('name', 'text', (column) => column.notNull())
    .addColumn('token_hash', 'text', (column) => column.notNull().unique())
    .addColumn('display', 'text', (column) => column.notNull())
    .addColumn('rights', 'text', (column) => column.notNull().check(sql`rights in ('read', 'write')`))
    .addColumn('expires_at', 'bigint')
    .addColumn('last_used_at', 'bigint')
    .addColumn('last_used_ip', 'text')
    .addColumn('created_at', 'bigint', (column) => column.notNull())
    .addColumn('revoked_at', 'bigint')
    .execute();
  await tx.schema.createIndex('management_tokens_user').on('management_tokens').column('user_id').execute();
  await tx.schema
    .createTable('idempotency_keys')
    .addColumn('user_id', 'text', (column) => column.notNull().references('users.id'))
    .addColumn('key', 'text', (column) => column.notNull())
    .addColumn('request_hash', 'text', (column) => column.notNull())
    .addColumn('status', 'integer')
    .addColumn('body', 'text')
    .addColumn('expires_at', 'bigint', (column) => column.notNull())
    .addPrimaryKeyConstraint('idempotency_keys_pk', ['user_id', 'key'])
    .execute();
}

async function countFailures(tx: Tx): Promise<void> {
  await tx.schema
    .createTable('sign_in_failures')
    .addColumn('slot', 'text', (column) => column.primaryKey())
    .addColumn('since', 'bigint', (column) => column.notNull())
    .addColumn('failures', 'integer', (column) => column.notNull())
    .execute();
}

async function keepLocations(tx: Tx): Promise<void> {
  await tx.schema.alterTable('idempotency_keys').addColumn('location', 'text').execute();
}

/** A slot was the hash of an email address alone. Those rows have no effect any more, and are deleted after an hour. */
async function nameAttemptSlots(tx: Tx): Promise<void> {
  await tx.schema.alterTable('login_attempts').renameColumn('email_hash', 'slot').execute();
}

async function addPasswordResets(tx: Tx): Promise<void> {
  await tx.schema
    .createTable('password_resets')
    .addColumn('token_hash', 'text', (column) => column.primaryKey())
    .addColumn('user_id', 'text', (column) => column.notNull().unique().references('users.id'))
    .addColumn('created_at', 'bigint', (column) => column.notNull())
    .addColumn('expires_at', 'bigint', (column) => column.notNull())
    .execute();
}

async function addRecoveryCodes(tx: Tx): Promise<void> {
  await tx.schema
    .createTable('recovery_codes')
    .addColumn('user_id', 'text', (column) => column.notNull().references('users.id'))
    .addColumn('code_digest', 'text', (column) => column.notNull())
    .addPrimaryKeyConstraint('recovery_codes_pk', ['user_id', 'code_digest'])
    .execute();
}

async function addQuotas(tx: Tx): Promise<void> {
  for (const table of ['accounts', 'org_settings'] as const)
    for (const name of ['versions', 'cpu_millis', 'memory_mb', 'disk_mb'] as const)
      await tx.schema.alterTable(table).addColumn(`quota_${name}`, 'integer').execute();
  // A replica of an earlier release counts no CPU time until it is replaced.
  await tx.schema
    .alterTable('replicas')
    .addColumn('cpu_millis', 'integer', (column) => column.notNull().defaultTo(0))
    .execute();
}

async function addSessionSecrets(tx: Tx): Promise<void> {
  await tx.schema.alterTable('sessions').addColumn('secret_hash', 'text').execute();
}

/** Null meant 15 minutes for a deployment with a minimum of 0 replicas. Now it means never. */
async function keepIdleTimeouts(tx: Tx): Promise<void> {
  await sql`update deployment_settings set idle_timeout_s = 900 where idle_timeout_s is null and min_replicas = 0`.execute(
    tx,
  );
}
