import type { Component, Tx } from 'capstan/internal';

export const MAX_ALIASES = 20;
export const MAX_FALLBACKS = 5;

/** How requests find a deployment, and where they go if it cannot serve them. */
export interface RoutingTables {
  /** Names that requests to the API of all deployments may give as `model`, besides the deployment's name. */
  deployment_aliases: { owner_id: string; alias: string; deployment_id: string; position: number };
  /** Deployments of the same owner that get the requests that a deployment cannot serve. */
  deployment_fallbacks: { deployment_id: string; position: number; fallback_id: string };
  /** How long a deployment with fallbacks may take until the first byte. No row: the limit of the gateway. */
  fallback_limits: { deployment_id: string; first_byte_ms: number };
}

export const ROUTING: Component = { name: 'routing', steps: [createRouting] };

async function createRouting(tx: Tx): Promise<void> {
  await tx.schema
    .createTable('deployment_aliases')
    .addColumn('owner_id', 'text', (column) => column.notNull())
    .addColumn('alias', 'text', (column) => column.notNull())
    .addColumn('deployment_id', 'text', (column) => column.notNull().references('deployments.id').onDelete('cascade'))
    .addColumn('position', 'integer', (column) => column.notNull())
    .addPrimaryKeyConstraint('deployment_aliases_pk', ['owner_id', 'alias'])
    .execute();
  await tx.schema
    .createIndex('deployment_aliases_deployment')
    .on('deployment_aliases')
    .column('deployment_id')
    .execute();
  await tx.schema
    .createTable('deployment_fallbacks')
    .addColumn('deployment_id', 'text', (column) => column.notNull().references('deployments.id').onDelete('cascade'))
    .addColumn('position', 'integer', (column) => column.notNull())
    .addColumn('fallback_id', 'text', (column) => column.notNull().references('deployments.id').onDelete('cascade'))
    .addPrimaryKeyConstraint('deployment_fallbacks_pk', ['deployment_id', 'position'])
    .execute();
  await tx.schema
    .createIndex('deployment_fallbacks_fallback')
    .on('deployment_fallbacks')
    .column('fallback_id')
    .execute();
  await tx.schema
    .createTable('fallback_limits')
    .addColumn('deployment_id', 'text', (column) =>
      column.primaryKey().references('deployments.id').onDelete('cascade'),
    )
    .addColumn('first_byte_ms', 'integer', (column) => column.notNull())
    .execute();
}
