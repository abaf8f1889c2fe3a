import { type RawBuilder, sql } from 'kysely';
import { recordEvents } from '../control/control-events';
import { controlTransaction } from '../control/control-transaction';
import type { ServiceDb, ServiceTx } from '../store/schema';
import { formatAmount, MAX_SUM } from './amounts';
import { amountLiteral, type Budget, readCurrency } from './money-rows';

/** The cost of the requests of one day, owner, key and model. */
export interface SpendRow {
  day: number;
  ownerId: string;
  /** Empty without a key. */
  keyId: string;
  model: string;
  requests: number;
  promptTokens: number;
  cachedTokens: number;
  completionTokens: number;
  cost: bigint;
  /** The part of the cost that is an estimate. */
  estimated: bigint;
}

/** Identifies one period of a budget. */
export interface PeriodRef {
  budgetId: string;
  /** First day of the period, in days since 1970. 0 for the total. */
  sinceDay: number;
}

/** What the gateway returns of what it took. Negative: it spent more. */
export interface Returned extends PeriodRef {
  amount: bigint;
}

export interface Taken {
  granted: bigint;
  /** All that has been taken in this period. */
  taken: bigint;
  /** Highest percentage that was reported in this period. */
  alerted: number;
}

/**
 * Takes up to `wanted` from a budget. It counts as spent from now on, also after a crash, until it is returned. Returns
 * undefined if the budget was deleted.
 */
export function takeFromBudget(
  db: ServiceDb,
  { budgetId, sinceDay }: PeriodRef,
  wanted: bigint,
): Promise<Taken | undefined> {
  return controlTransaction(db, async (tx) => {
    await ensurePeriod(tx, { budgetId, sinceDay }, 0n);
    const { rows } = await sql<{ amount: string; taken: string; alerted: number }>`
      select cast(amount as text) as amount, cast(taken as text) as taken, alerted from money_periods
      inner join money_budgets on money_budgets.id = budget_id
      where budget_id = ${budgetId} and since_day = ${sql.lit(sinceDay)}`.execute(tx);
    if (rows.length === 0) return undefined;
    const taken = BigInt(rows[0].taken);
    const left = BigInt(rows[0].amount) - taken;
    let granted = left < wanted ? left : wanted;
    if (granted < 0n) granted = 0n;
    if (granted > 0n)
      await sql`update money_periods set taken = taken + ${amountLiteral(granted)}
        where budget_id = ${budgetId} and since_day = ${sql.lit(sinceDay)}`.execute(tx);
    return { granted, taken: taken + granted, alerted: rows[0].alerted };
  });
}

/** Does nothing if the budget was deleted or the period exists. */
export async function ensurePeriod(tx: ServiceTx, { budgetId, sinceDay }: PeriodRef, taken: bigint): Promise<void> {
  await sql`insert into money_periods (budget_id, since_day, taken, alerted)
    select id, ${sql.lit(sinceDay)}, ${amountLiteral(taken)}, 0 from money_budgets where id = ${budgetId}
    on conflict (budget_id, since_day) do nothing`.execute(tx);
}

/** Adds to the costs in the database, and returns what the gateway does not need. */
export function recordSpend(db: ServiceDb, rows: readonly SpendRow[], returned: readonly Returned[]): Promise<void> {
  return db.transaction().execute(async (tx) => {
    // Sorted, because two gateways that lock rows in different orders would deadlock on PostgreSQL.
    for (const row of [...rows].sort(byKey)) await addSpend(tx, row);
    for (const { budgetId, sinceDay, amount } of [...returned].sort((a, b) => (a.budgetId < b.budgetId ? -1 : 1)))
      await sql`update money_periods set taken = ${amount < 0n ? increased(-amount) : reduced(amount)}
        where budget_id = ${budgetId} and since_day = ${sql.lit(sinceDay)}`.execute(tx);
  });
}

function reduced(by: bigint): RawBuilder<unknown> {
  const amount = amountLiteral(by);
  return sql`case when taken < ${amount} then 0 else taken - ${amount} end`;
}

function increased(by: bigint): RawBuilder<unknown> {
  return sql`case when taken > ${amountLiteral(MAX_SUM - by)} then ${amountLiteral(MAX_SUM)} else taken + ${amountLiteral(by)} end`;
}

function byKey(a: SpendRow, b: SpendRow): number {
  for (const field of ['ownerId', 'day', 'keyId', 'model'] as const)
    if (a[field] !== b[field]) return a[field] < b[field] ? -1 : 1;
  return 0;
}

async function addSpend(tx: ServiceTx, row: SpendRow): Promise<void> {
  const { day, ownerId, keyId, model, requests, promptTokens, cachedTokens, completionTokens, cost, estimated } = row;
  const sum = (name: string, value: bigint) =>
    sql`${sql.ref(name)} = case when money_spend.${sql.ref(name)} > ${amountLiteral(MAX_SUM - value)} then ${amountLiteral(MAX_SUM)} else money_spend.${sql.ref(name)} + ${amountLiteral(value)} end`;
  await sql`insert into money_spend
      (owner_id, day, key_id, model, requests, prompt_tokens, cached_tokens, completion_tokens, cost, estimated)
    values (${ownerId}, ${sql.lit(day)}, ${keyId}, ${model}, ${sql.lit(requests)}, ${sql.lit(promptTokens)},
      ${sql.lit(cachedTokens)}, ${sql.lit(completionTokens)}, ${amountLiteral(cost)}, ${amountLiteral(estimated)})
    on conflict (owner_id, day, key_id, model) do update set
      requests = money_spend.requests + excluded.requests,
      prompt_tokens = money_spend.prompt_tokens + excluded.prompt_tokens,
      cached_tokens = money_spend.cached_tokens + excluded.cached_tokens,
      completion_tokens = money_spend.completion_tokens + excluded.completion_tokens,
      ${sum('cost', cost)}, ${sum('estimated', estimated)}`.execute(tx);
}

/** Records an event for a budget that has reached a percentage, once per period. Returns whether it did. */
export function alertBudget(
  db: ServiceDb,
  { id, owner, scope, subjectId, period, amount }: Budget,
  { sinceDay, percent, spent }: { sinceDay: number; percent: number; spent: bigint },
  nowMs: number,
): Promise<boolean> {
  return controlTransaction(db, async (tx) => {
    const { numAffectedRows } = await sql`update money_periods set alerted = ${sql.lit(percent)}
      where budget_id = ${id} and since_day = ${sql.lit(sinceDay)} and alerted < ${sql.lit(percent)}`.execute(tx);
    if ((numAffectedRows ?? 0n) === 0n) return false;
    const data = {
      percent,
      spent: formatAmount(spent),
      amount: formatAmount(amount),
      currency: await readCurrency(tx),
      period,
      scope,
      ...(scope === 'key' ? { key: subjectId } : {}),
    };
    await recordEvents(tx, owner, { type: 'budget', id }, [{ type: 'budget.alert', data }], nowMs);
    return true;
  });
}

/** Deletes costs before this day. */
export async function pruneSpend(db: ServiceDb, beforeDay: number): Promise<void> {
  await sql`delete from money_spend where day < ${sql.lit(beforeDay)}`.execute(db);
  await sql`delete from money_periods where since_day > 0 and since_day < ${sql.lit(beforeDay)}`.execute(db);
}
