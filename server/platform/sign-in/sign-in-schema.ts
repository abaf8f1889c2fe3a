import { sql } from 'kysely';
import type { Component, MemberRole, Tx } from 'capstan/internal';

/** Accounts of identity providers. */
export const SIGN_IN: Component = { name: 'sign-in', steps: [createProviders, addRedirects] };

export interface SignInTables {
  identity_providers: ProviderRow;
  identities: IdentityRow;
  provider_sessions: ProviderSessionRow;
  /** Sign-ins whose response has come. A second response is refused. */
  used_sign_ins: { state_hash: string; expires_at: number };
  /** Memberships that the groups of a user gave. */
  group_memberships: { provider_id: string; user_id: string; org_id: string; role: MemberRole };
}

export interface ProviderRow {
  id: string;
  name: string;
  /** Never changes: it is a part of every identity. */
  issuer: string;
  client_id: string;
  /** Encrypted. Null for a public client. */
  client_secret: string | null;
  /** JSON array. */
  scopes: string;
  groups_claim: string;
  /** JSON array of GroupMapping. */
  mappings: string;
  /** JSON object: additional parameters of the authorization request. */
  params: string;
  /** JSON array of email domains. Empty: any. */
  domains: string;
  /** Whether a user must be in a mapped group. */
  requires_group: 0 | 1;
  links_by_email: 0 | 1;
  /** Whether its redirect URI names it. Others share one. */
  own_redirect: 0 | 1;
  /** How long a sign-in counts before the provider must confirm it. */
  recheck_s: number;
  status: 'active' | 'disabled';
  created_at: number;
  updated_at: number;
  rev: number;
}

/** A user of a provider. Issuer and subject identify it forever. */
export interface IdentityRow {
  issuer: string;
  subject: string;
  provider_id: string;
  user_id: string;
  email: string | null;
  /** JSON array: the groups at the last confirmation. */
  groups: string;
  /** Encrypted. Null without one. */
  refresh_token: string | null;
  /** When the provider is asked again. Null without a refresh token. */
  refresh_at: number | null;
  /** Sessions and management tokens of the user work until then. */
  valid_until: number;
  confirmed_at: number;
  created_at: number;
}

/** A console session that began at a provider. */
export interface ProviderSessionRow {
  id_hash: string;
  provider_id: string;
  /** Encrypted, for the logout at the provider. Null if it is too long. */
  id_token: string | null;
}

async function createProviders(tx: Tx): Promise<void> {
  await tx.schema
    .createTable('identity_providers')
    .addColumn('id', 'text', (column) => column.primaryKey())
    .addColumn('name', 'text', (column) => column.notNull().unique())
    .addColumn('issuer', 'text', (column) => column.notNull().unique())
    .addColumn('client_id', 'text', (column) => column.notNull())
    .addColumn('client_secret', 'text')
    .addColumn('scopes', 'text', (column) => column.notNull())
    .addColumn('groups_claim', 'text', (column) => column.notNull())
    .addColumn('mappings', 'text', (column) => column.notNull())
    .addColumn('params', 'text', (column) => column.notNull())
    .addColumn('domains', 'text', (column) => column.notNull())
    .addColumn('requires_group', 'smallint', (column) => column.notNull().check(sql`requires_group in (0, 1)`))
    .addColumn('links_by_email', 'smallint', (column) => column.notNull().check(sql`links_by_email in (0, 1)`))
    .addColumn('recheck_s', 'integer', (column) => column.notNull())
    .addColumn('status', 'text', (column) => column.notNull().check(sql`status in ('active', 'disabled')`))
    .addColumn('created_at', 'bigint', (column) => column.notNull())
    .addColumn('updated_at', 'bigint', (column) => column.notNull())
    .addColumn('rev', 'bigint', (column) => column.notNull())
    .execute();
  await tx.schema
    .createTable('identities')
    .addColumn('issuer', 'text', (column) => column.notNull())
    .addColumn('subject', 'text', (column) => column.notNull())
    .addColumn('provider_id', 'text', (column) => column.notNull().references('identity_providers.id'))
    .addColumn('user_id', 'text', (column) => column.notNull().references('users.id'))
    .addColumn('email', 'text')
    .addColumn('groups', 'text', (column) => column.notNull())
    .addColumn('refresh_token', 'text')
    .addColumn('refresh_at', 'bigint')
    .addColumn('valid_until', 'bigint', (column) => column.notNull())
    .addColumn('confirmed_at', 'bigint', (column) => column.notNull())
    .addColumn('created_at', 'bigint', (column) => column.notNull())
    .addPrimaryKeyConstraint('identities_pk', ['issuer', 'subject'])
    .addUniqueConstraint('identities_user', ['user_id', 'provider_id'])
    .execute();
  await tx.schema.createIndex('identities_due').on('identities').column('refresh_at').execute();
  await tx.schema
    .createTable('provider_sessions')
    .addColumn('id_hash', 'text', (column) => column.primaryKey().references('sessions.id_hash').onDelete('cascade'))
    .addColumn('provider_id', 'text', (column) => column.notNull())
    .addColumn('id_token', 'text')
    .execute();
  await tx.schema
    .createTable('group_memberships')
    .addColumn('provider_id', 'text', (column) => column.notNull())
    .addColumn('user_id', 'text', (column) => column.notNull().references('users.id'))
    .addColumn('org_id', 'text', (column) => column.notNull().references('organizations.id'))
    .addColumn('role', 'text', (column) =>
      column.notNull().check(sql`role in ('owner', 'admin', 'developer', 'viewer')`),
    )
    .addPrimaryKeyConstraint('group_memberships_pk', ['user_id', 'org_id', 'provider_id'])
    .execute();
}

async function addRedirects(tx: Tx): Promise<void> {
  await tx.schema
    .alterTable('identity_providers')
    .addColumn('own_redirect', 'smallint', (column) =>
      column
        .notNull()
        .defaultTo(0)
        .check(sql`own_redirect in (0, 1)`),
    )
    .execute();
  await tx.schema
    .createTable('used_sign_ins')
    .addColumn('state_hash', 'text', (column) => column.primaryKey())
    .addColumn('expires_at', 'bigint', (column) => column.notNull())
    .execute();
}
