import type { Component, Tx } from 'capstan/internal';

/** Deployments that forward to an upstream server. */
export const UPSTREAMS: Component = { name: 'upstreams', steps: [createUpstreams] };

/**
 * The settings of upstreams. Each change adds a version. The one with the highest number serves, and the others can be
 * restored.
 */
export interface UpstreamTables {
  deployment_upstreams: UpstreamRow;
}

export interface UpstreamRow {
  deployment_id: string;
  number: number;
  url: string;
  /** Encrypted. null: requests carry no key. */
  secret: string | null;
  /** The only model that requests get. null: the one that the request names. */
  model: string | null;
  /** Names of interfaces, separated by commas. */
  interfaces: string;
  created_at: number;
  created_by: string;
}

async function createUpstreams(tx: Tx): Promise<void> {
  await tx.schema
    .createTable('deployment_upstreams')
    .addColumn('deployment_id', 'text', (column) => column.notNull().references('deployments.id').onDelete('cascade'))
    .addColumn('number', 'integer', (column) => column.notNull())
    .addColumn('url', 'text', (column) => column.notNull())
    .addColumn('secret', 'text')
    .addColumn('model', 'text')
    .addColumn('interfaces', 'text', (column) => column.notNull())
    .addColumn('created_at', 'bigint', (column) => column.notNull())
    .addColumn('created_by', 'text', (column) => column.notNull())
    .addPrimaryKeyConstraint('deployment_upstreams_pk', ['deployment_id', 'number'])
    .execute();
}
