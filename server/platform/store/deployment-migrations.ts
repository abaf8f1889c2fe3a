import { sql } from 'kysely';
import type { Tx } from 'capstan/internal';
import { PULL_STATES } from './deployment-schema';
import { DEPLOYMENT_STATES } from '../deployments/deployment-state';
import { VERSION_STATES } from '../deployments/version-state';

const oneOf = (column: string, values: readonly string[]) =>
  sql`${sql.ref(column)} in (${sql.join(values.map((value) => sql.lit(value)))})`;

export async function createCatalog(tx: Tx): Promise<void> {
  for (const name of ['quota_gpu', 'quota_deployments'] as const)
    await tx.schema.alterTable('accounts').addColumn(name, 'integer').execute();
  await tx.schema.createIndex('events_target').on('events').columns(['target_id', 'seq']).execute();
  await tx.schema
    .createTable('images')
    .addColumn('id', 'text', (column) => column.primaryKey())
    .addColumn('name', 'text', (column) => column.notNull())
    .addColumn('version', 'text', (column) => column.notNull())
    .addColumn('type', 'text', (column) => column.notNull().check(oneOf('type', ['builtin-runtime', 'host-env'])))
    .addColumn('gpu_required', 'smallint', (column) => column.notNull())
    .addColumn('default_start', 'text')
    .addColumn('owner_type', 'text')
    .addColumn('owner_id', 'text')
    .addColumn('status', 'text', (column) => column.notNull().check(oneOf('status', ['active', 'deleted'])))
    .addColumn('created_at', 'bigint', (column) => column.notNull())
    .addUniqueConstraint('images_name_version', ['name', 'version'])
    .execute();
  await tx.schema
    .createTable('data_sources')
    .addColumn('id', 'text', (column) => column.primaryKey())
    .addColumn('owner_type', 'text', (column) => column.notNull().check(oneOf('owner_type', ['user', 'org'])))
    .addColumn('owner_id', 'text', (column) => column.notNull())
    .addColumn('name', 'text', (column) => column.notNull())
    .addColumn('type', 'text', (column) =>
      column.notNull().check(oneOf('type', ['dataset', 'model', 'workspace', 'upload'])),
    )
    .addColumn('locator', 'text', (column) => column.notNull())
    .addColumn('visibility', 'text', (column) =>
      column.notNull().check(oneOf('visibility', ['private', 'org', 'public'])),
    )
    .addColumn('size_bytes', 'bigint')
    .addColumn('created_at', 'bigint', (column) => column.notNull())
    .addUniqueConstraint('data_sources_owner_name', ['owner_id', 'name'])
    .execute();
}

export async function createDeployments(tx: Tx): Promise<void> {
  // Slugs are never reused, so an old URL never reaches another deployment.
  await tx.schema
    .createTable('slugs')
    .addColumn('slug', 'text', (column) => column.primaryKey())
    .addColumn('deployment_id', 'text', (column) => column.notNull())
    .execute();
  await tx.schema
    .createTable('deployment_settings')
    .addColumn('deployment_id', 'text', (column) =>
      column.primaryKey().references('deployments.id').onDelete('cascade'),
    )
    .addColumn('slug', 'text', (column) => column.notNull().unique().references('slugs.slug'))
    .addColumn('desired', 'text', (column) =>
      column.notNull().check(oneOf('desired', ['running', 'paused', 'deleted'])),
    )
    .addColumn('observed', 'text', (column) => column.notNull().check(oneOf('observed', DEPLOYMENT_STATES)))
    .addColumn('active_version_id', 'text')
    .addColumn('target_version_id', 'text')
    .addColumn('last_number', 'integer', (column) => column.notNull())
    .addColumn('was_ready', 'smallint', (column) => column.notNull())
    .addColumn('wanted_replicas', 'integer', (column) => column.notNull())
    .addColumn('min_replicas', 'integer', (column) => column.notNull())
    .addColumn('max_replicas', 'integer', (column) => column.notNull())
    .addColumn('idle_timeout_s', 'integer')
    .addColumn('cold_start_wait_s', 'integer', (column) => column.notNull())
    .addColumn('strategy', 'text', (column) => column.notNull().check(oneOf('strategy', ['auto', 'surge', 'replace'])))
    .addColumn('rollout_strategy', 'text', (column) =>
      column.check(oneOf('rollout_strategy', ['auto', 'surge', 'replace'])),
    )
    .addColumn('prefix_cache_scope', 'text', (column) =>
      column.notNull().check(oneOf('prefix_cache_scope', ['key', 'deployment'])),
    )
    .addColumn('source_container_id', 'text')
    .addColumn('created_by', 'text')
    .execute();
  await tx.schema
    .createTable('deployment_versions')
    .addColumn('id', 'text', (column) => column.primaryKey())
    .addColumn('deployment_id', 'text', (column) => column.notNull().references('deployments.id').onDelete('cascade'))
    .addColumn('number', 'integer', (column) => column.notNull())
    .addColumn('spec', 'text', (column) => column.notNull())
    .addColumn('spec_hash', 'text', (column) => column.notNull())
    .addColumn('secret_env', 'text', (column) => column.notNull())
    .addColumn('home_state', 'text', (column) =>
      column.notNull().check(oneOf('home_state', ['none', 'pending', 'ready'])),
    )
    .addColumn('state', 'text', (column) => column.notNull().check(oneOf('state', VERSION_STATES)))
    .addColumn('reason', 'text')
    .addColumn('message', 'text')
    .addColumn('exit_code', 'integer')
    .addColumn('num_exits', 'integer', (column) => column.notNull())
    .addColumn('retry_at', 'bigint')
    .addColumn('queued_at', 'bigint', (column) => column.notNull())
    .addColumn('started_at', 'bigint')
    .addColumn('ready_at', 'bigint')
    .addColumn('ended_at', 'bigint')
    .addColumn('is_waking', 'smallint', (column) => column.notNull())
    .addColumn('last_lines', 'text')
    .addColumn('note', 'text')
    .addColumn('created_by', 'text')
    .addColumn('created_at', 'bigint', (column) => column.notNull())
    .addUniqueConstraint('deployment_versions_number', ['deployment_id', 'number'])
    .execute();
}

export async function createContainers(tx: Tx): Promise<void> {
  await tx.schema
    .createTable('containers')
    .addColumn('id', 'text', (column) => column.primaryKey())
    .addColumn('owner_type', 'text', (column) => column.notNull().check(oneOf('owner_type', ['user', 'org'])))
    .addColumn('owner_id', 'text', (column) => column.notNull())
    .addColumn('name', 'text', (column) => column.notNull())
    .addColumn('spec', 'text', (column) => column.notNull())
    .addColumn('secret_env', 'text', (column) => column.notNull())
    .addColumn('state', 'text', (column) =>
      column.notNull().check(oneOf('state', ['queued', 'preparing', 'running', 'stopping', 'stopped', 'error'])),
    )
    .addColumn('reason', 'text')
    .addColumn('created_by', 'text')
    .addColumn('created_at', 'bigint', (column) => column.notNull())
    .addColumn('updated_at', 'bigint', (column) => column.notNull())
    .addColumn('rev', 'bigint', (column) => column.notNull())
    .addUniqueConstraint('containers_owner_name', ['owner_id', 'name'])
    .execute();
  await tx.schema
    .createTable('data_bindings')
    .addColumn('id', 'text', (column) => column.primaryKey())
    .addColumn('version_id', 'text', (column) => column.references('deployment_versions.id').onDelete('cascade'))
    .addColumn('container_id', 'text', (column) => column.references('containers.id').onDelete('cascade'))
    .addColumn('source_id', 'text', (column) => column.notNull().references('data_sources.id'))
    .addColumn('mount', 'text', (column) =>
      column.notNull().check(oneOf('mount', ['input0', 'input1', 'input2', 'input3', 'input4', 'home'])),
    )
    .addColumn('mode', 'text', (column) =>
      column
        .notNull()
        .check(
          sql`mode = 'ro' and mount <> 'home' or mode = 'copy' and mount = 'home' and version_id is not null or mode = 'rw' and mount = 'home' and container_id is not null`,
        ),
    )
    .addCheckConstraint('data_bindings_of_one', sql`(version_id is null) <> (container_id is null)`)
    .addUniqueConstraint('data_bindings_version_mount', ['version_id', 'mount'])
    .addUniqueConstraint('data_bindings_container_mount', ['container_id', 'mount'])
    .execute();
  await tx.schema.createIndex('data_bindings_source').on('data_bindings').column('source_id').execute();
}

export async function createReplicas(tx: Tx): Promise<void> {
  await tx.schema
    .createTable('replicas')
    .addColumn('id', 'text', (column) => column.primaryKey())
    .addColumn('version_id', 'text', (column) => column.references('deployment_versions.id').onDelete('cascade'))
    .addColumn('container_id', 'text', (column) => column.references('containers.id').onDelete('cascade'))
    .addColumn('ordinal', 'integer', (column) => column.notNull())
    .addColumn('state', 'text', (column) =>
      column.notNull().check(oneOf('state', ['created', 'starting', 'ready', 'unready', 'exited', 'stopping'])),
    )
    .addColumn('secret', 'text', (column) => column.notNull())
    .addColumn('reference', 'text')
    .addColumn('address', 'text')
    .addColumn('memory_mb', 'integer', (column) => column.notNull())
    .addColumn('restarts', 'integer', (column) => column.notNull())
    .addColumn('misplaced', 'text')
    .addColumn('retry_at', 'bigint')
    .addColumn('started_at', 'bigint')
    .addColumn('ready_at', 'bigint')
    .addColumn('unready_at', 'bigint')
    .addColumn('created_at', 'bigint', (column) => column.notNull())
    .addCheckConstraint('replicas_of_one', sql`(version_id is null) <> (container_id is null)`)
    .execute();
  await tx.schema.createIndex('replicas_version').on('replicas').column('version_id').execute();
  await tx.schema.createIndex('replicas_container').on('replicas').column('container_id').execute();
  await tx.schema
    .createTable('gpu_leases')
    .addColumn('node', 'text', (column) => column.notNull())
    .addColumn('gpu_uuid', 'text', (column) => column.notNull())
    .addColumn('slot', 'integer', (column) => column.notNull())
    .addColumn('replica_id', 'text', (column) => column.notNull().references('replicas.id').onDelete('cascade'))
    .addColumn('exclusive', 'smallint', (column) => column.notNull())
    .addColumn('acquired_at', 'bigint', (column) => column.notNull())
    .addPrimaryKeyConstraint('gpu_leases_pk', ['node', 'gpu_uuid', 'slot'])
    .execute();
  await tx.schema.createIndex('gpu_leases_replica').on('gpu_leases').column('replica_id').execute();
}

/** Replicas that had exited before are stopped again, which is safe. */
export async function followReplicaEnds(tx: Tx): Promise<void> {
  await tx.schema
    .alterTable('replicas')
    .addColumn('is_gone', 'smallint', (column) => column.notNull().defaultTo(0))
    .execute();
}

/** The lease of the control loop, and the service that runs each replica. */
export async function leaseControlLoop(tx: Tx): Promise<void> {
  await tx.schema
    .createTable('control_lease')
    .addColumn('id', 'integer', (column) => column.primaryKey().check(sql`id = 1`))
    .addColumn('holder', 'text')
    .addColumn('epoch', 'bigint', (column) => column.notNull())
    .addColumn('expires_at', 'bigint', (column) => column.notNull())
    .execute();
  await sql`insert into control_lease (id, epoch, expires_at) values (1, 0, 0)`.execute(tx);
  await tx.schema.alterTable('replicas').addColumn('node', 'text').execute();
}

export async function measureSources(tx: Tx): Promise<void> {
  const alter = () => tx.schema.alterTable('data_sources');
  await alter().addColumn('description', 'text').execute();
  await alter().addColumn('num_files', 'bigint').execute();
  await alter().addColumn('digest', 'text').execute();
  await alter()
    .addColumn('measure_state', 'text', (column) =>
      column
        .notNull()
        .defaultTo('pending')
        .check(oneOf('measure_state', ['pending', 'measured', 'failed', 'cancelled'])),
    )
    .execute();
  await alter().addColumn('measure_message', 'text').execute();
  await alter().addColumn('measured_at', 'bigint').execute();
  await alter()
    .addColumn('updated_at', 'bigint', (column) => column.notNull().defaultTo(0))
    .execute();
  await alter()
    .addColumn('rev', 'bigint', (column) => column.notNull().defaultTo(0))
    .execute();
  await sql`update data_sources set updated_at = created_at`.execute(tx);
  await tx.schema.alterTable('data_bindings').addColumn('source_digest', 'text').execute();
}

export async function pullModels(tx: Tx): Promise<void> {
  await tx.schema
    .createTable('data_pulls')
    .addColumn('source_id', 'text', (column) => column.primaryKey().references('data_sources.id').onDelete('cascade'))
    .addColumn('hub', 'text', (column) => column.notNull().check(oneOf('hub', ['huggingface', 'modelscope'])))
    .addColumn('model', 'text', (column) => column.notNull())
    .addColumn('token', 'text')
    .addColumn('state', 'text', (column) => column.notNull().check(oneOf('state', PULL_STATES)))
    .addColumn('attempt', 'integer', (column) => column.notNull())
    .addColumn('is_filled', 'smallint', (column) => column.notNull())
    .addColumn('error_code', 'text')
    .addColumn('message', 'text')
    .addColumn('note', 'text')
    .addColumn('commit_id', 'text')
    .addColumn('format', 'text')
    .addColumn('quantization', 'text')
    .addColumn('done_bytes', 'bigint', (column) => column.notNull())
    .addColumn('total_bytes', 'bigint')
    .addColumn('bytes_per_second', 'bigint')
    .addColumn('requested_by', 'text')
    .addColumn('requested_at', 'bigint', (column) => column.notNull())
    .addColumn('ended_at', 'bigint')
    .execute();
}
