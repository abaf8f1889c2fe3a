import type { Component, Tx } from 'capstan/internal';

export const MAX_ALIASES = 20;

export interface AliasTables {
  /** Names that requests to the API of all deployments may give as `model`, besides the deployment's name. */
  deployment_aliases: { owner_id: string; alias: string; deployment_id: string; position: number };
}

export const ALIASES: Component = { name: 'aliases', steps: [createAliases] };

async function createAliases(tx: Tx): Promise<void> {
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
}
