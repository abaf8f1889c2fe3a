import { sql, type RawBuilder } from 'kysely';
import type { OwnerType } from 'capstan/internal';
import type { ServiceDb, ServiceTx } from '../store/schema';
import type { TokenPrice } from './amounts';
import type { BudgetScope, MoneyPeriod } from './money-schema';

/** Amounts are read as text, because numbers are exact up to 2^53 only. */
export function amountLiteral(value: bigint): RawBuilder<bigint> {
  return sql.raw(value.toString());
}

/** What a model costs. */
export interface ModelPrice extends TokenPrice {
  readonly id: string;
  /** Name of a deployment, `NAME/MODEL`, a deployment id, or `*`. */
  readonly model: string;
  /** What a request without a limit may generate. */
  readonly maxOutputTokens: number;
  readonly updatedAt: number;
  readonly rev: number;
}

export interface Budget {
  readonly id: string;
  readonly scope: BudgetScope;
  /** Id of the key or of the owner. */
  readonly subjectId: string;
  readonly owner: { readonly type: OwnerType; readonly id: string };
  readonly period: MoneyPeriod;
  readonly amount: bigint;
  /** Percentages of the amount that cause an event, in ascending order. */
  readonly alerts: readonly number[];
  readonly createdAt: number;
  readonly updatedAt: number;
  readonly rev: number;
}

/** Everything that the gateway needs to know of money. */
export interface MoneySetup {
  readonly currency: string;
  readonly prices: readonly ModelPrice[];
  readonly budgets: readonly Budget[];
}

export async function readMoney(db: ServiceDb): Promise<MoneySetup> {
  return { currency: await readCurrency(db), prices: await readPrices(db), budgets: await readBudgets(db) };
}

export async function readCurrency(db: ServiceDb | ServiceTx): Promise<string> {
  const { rows } = await sql<{ currency: string }>`select currency from money_settings`.execute(db);
  return rows[0].currency;
}

export async function readPrices(db: ServiceDb | ServiceTx): Promise<ModelPrice[]> {
  const { rows } = await sql<
    Record<'id' | 'model' | 'input' | 'cached_input' | 'output', string> & {
      max_output_tokens: number;
      updated_at: number;
      rev: number;
    }
  >`select id, model, cast(input as text) as input, cast(cached_input as text) as cached_input,
    cast(output as text) as output, max_output_tokens, updated_at, rev from money_prices order by model`.execute(db);
  return rows.map((row) => ({
    id: row.id,
    model: row.model,
    input: BigInt(row.input),
    cachedInput: BigInt(row.cached_input),
    output: BigInt(row.output),
    maxOutputTokens: row.max_output_tokens,
    updatedAt: row.updated_at,
    rev: row.rev,
  }));
}

interface BudgetRow {
  id: string;
  scope: BudgetScope;
  subject_id: string;
  owner_type: OwnerType;
  owner_id: string;
  period: MoneyPeriod;
  amount: string;
  alerts: string;
  created_at: number;
  updated_at: number;
  rev: number;
}

/** @param where A condition on the table `money_budgets`. */
export async function readBudgets(
  db: ServiceDb | ServiceTx,
  where: RawBuilder<unknown> = sql`1 = 1`,
): Promise<Budget[]> {
  const { rows } = await sql<BudgetRow>`select id, scope, subject_id, owner_type, owner_id, period,
    cast(amount as text) as amount, alerts, created_at, updated_at, rev from money_budgets
    where ${where} order by id desc`.execute(db);
  return rows.map((row) => ({
    id: row.id,
    scope: row.scope,
    subjectId: row.subject_id,
    owner: { type: row.owner_type, id: row.owner_id },
    period: row.period,
    amount: BigInt(row.amount),
    alerts: JSON.parse(row.alerts) as number[],
    createdAt: row.created_at,
    updatedAt: row.updated_at,
    rev: row.rev,
  }));
}
