import { sql } from 'kysely';
import type { Component, Tx } from 'capstan/internal';

/** Prices, budgets, and what requests have cost. No other table refers to these tables. */
export const MONEY: Component = { name: 'money', steps: [createMoney] };

export const BUDGET_PERIODS = ['day', 'month', 'total'] as const;
export type MoneyPeriod = (typeof BUDGET_PERIODS)[number];
export const BUDGET_SCOPES = ['key', 'owner'] as const;
export type BudgetScope = (typeof BUDGET_SCOPES)[number];

/** The columns that statements name by their types. Other statements are SQL. */
export interface MoneyTables {
  money_settings: { id: 1; currency: string };
  money_prices: { id: string };
  money_budgets: { id: string; owner_id: string };
  money_periods: { budget_id: string };
}

/** NOTE: amounts and prices exceed 2^53. They are read as text and written as literals: see money-rows.ts. */
async function createMoney(tx: Tx): Promise<void> {
  await tx.schema
    .createTable('money_settings')
    .addColumn('id', 'smallint', (column) => column.primaryKey().check(sql`id = 1`))
    .addColumn('currency', 'text', (column) => column.notNull())
    .execute();
  await sql`insert into money_settings (id, currency) values (1, 'USD')`.execute(tx);
  await tx.schema
    .createTable('money_prices')
    .addColumn('id', 'text', (column) => column.primaryKey())
    .addColumn('model', 'text', (column) => column.notNull().unique())
    .addColumn('input', 'bigint', (column) => column.notNull().check(sql`input >= 0`))
    .addColumn('cached_input', 'bigint', (column) => column.notNull().check(sql`cached_input >= 0`))
    .addColumn('output', 'bigint', (column) => column.notNull().check(sql`output >= 0`))
    .addColumn('max_output_tokens', 'integer', (column) => column.notNull().check(sql`max_output_tokens > 0`))
    .addColumn('updated_at', 'bigint', (column) => column.notNull())
    .addColumn('rev', 'bigint', (column) => column.notNull())
    .execute();
  await tx.schema
    .createTable('money_budgets')
    .addColumn('id', 'text', (column) => column.primaryKey())
    .addColumn('scope', 'text', (column) => column.notNull().check(sql`scope in ('key', 'owner')`))
    // Id of the key or of the owner.
    .addColumn('subject_id', 'text', (column) => column.notNull())
    .addColumn('owner_type', 'text', (column) => column.notNull().check(sql`owner_type in ('user', 'org')`))
    .addColumn('owner_id', 'text', (column) => column.notNull())
    .addColumn('period', 'text', (column) => column.notNull().check(sql`period in ('day', 'month', 'total')`))
    .addColumn('amount', 'bigint', (column) => column.notNull().check(sql`amount >= 0`))
    // JSON array of percentages.
    .addColumn('alerts', 'text', (column) => column.notNull())
    .addColumn('created_at', 'bigint', (column) => column.notNull())
    .addColumn('updated_at', 'bigint', (column) => column.notNull())
    .addColumn('rev', 'bigint', (column) => column.notNull())
    .addUniqueConstraint('money_budgets_subject', ['subject_id', 'period'])
    .execute();
  await tx.schema.createIndex('money_budgets_owner').on('money_budgets').column('owner_id').execute();
  await tx.schema
    .createTable('money_periods')
    .addColumn('budget_id', 'text', (column) => column.notNull().references('money_budgets.id').onDelete('cascade'))
    .addColumn('since_day', 'bigint', (column) => column.notNull())
    // What requests have cost, and what the gateway holds for requests.
    .addColumn('taken', 'bigint', (column) => column.notNull())
    // The highest percentage that was reported.
    .addColumn('alerted', 'integer', (column) => column.notNull())
    .addPrimaryKeyConstraint('money_periods_pk', ['budget_id', 'since_day'])
    .execute();
  await tx.schema
    .createTable('money_spend')
    .addColumn('owner_id', 'text', (column) => column.notNull())
    .addColumn('day', 'bigint', (column) => column.notNull())
    // Empty without a key, because columns of a primary key cannot be null.
    .addColumn('key_id', 'text', (column) => column.notNull())
    .addColumn('model', 'text', (column) => column.notNull())
    .addColumn('requests', 'bigint', (column) => column.notNull())
    .addColumn('prompt_tokens', 'bigint', (column) => column.notNull())
    .addColumn('cached_tokens', 'bigint', (column) => column.notNull())
    .addColumn('completion_tokens', 'bigint', (column) => column.notNull())
    .addColumn('cost', 'bigint', (column) => column.notNull())
    // The part of the cost that is an estimate, because a response reported no usage.
    .addColumn('estimated', 'bigint', (column) => column.notNull())
    .addPrimaryKeyConstraint('money_spend_pk', ['owner_id', 'day', 'key_id', 'model'])
    .execute();
  await tx.schema.createIndex('money_spend_day').on('money_spend').column('day').execute();
}
