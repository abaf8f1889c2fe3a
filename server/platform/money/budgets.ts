import { sql } from 'kysely';
import { newId, type OwnerRef } from 'capstan/internal';
import { changeOptions, demandAdmin, demandOwner, type ServiceActor, visibleOwners } from '../accounts/actor';
import { type OwnerView, ownerViews, viewOf } from '../deployments/owner-views';
import { serviceChange } from '../store/change';
import { ServiceError } from '../store/errors';
import type { ServiceDb, ServiceTx } from '../store/schema';
import type { StoreContext } from '../store/store-context';
import { formatAmount, parseAmount } from './amounts';
import { ensurePeriod } from './ledger';
import { amountLiteral, type Budget, readBudgets, readCurrency } from './money-rows';
import type { BudgetScope, MoneyPeriod } from './money-schema';
import { sinceDayOf } from './periods';
import { spentSince } from './spend-report';

export interface NewBudgetSpec {
  /** Id of a key, of a user or of an organization. */
  subject: string;
  amount: string;
  period: MoneyPeriod;
  alerts?: readonly number[];
}

export interface BudgetEdit {
  amount?: string;
  alerts?: readonly number[];
}

/** A budget with its current period. */
export interface BudgetState extends Budget {
  currency: string;
  ownerView: OwnerView;
  /** Null for the budget of an owner. */
  key: { id: string; name: string } | null;
  sinceDay: number;
  /** What requests have cost, and what the gateway holds for requests. */
  taken: bigint;
}

const MAX_BUDGETS = 100;
const DEFAULT_ALERTS = [80, 100];
const MAX_ALERTS = 10;

/** Returns the budgets of owners that the actor belongs to, newest first. Administrators see those of all owners. */
export async function listBudgets(context: StoreContext, actor: ServiceActor): Promise<BudgetState[]> {
  const { db } = context;
  const ids = (await visibleOwners(db, actor)).map(({ id }) => sql`${id}`);
  const isVisible = sql`owner_id in (${sql.join(ids)})`;
  return toStates(context, await readBudgets(db, actor.isAdmin ? sql`${isVisible} or scope = 'owner'` : isVisible));
}

export async function getBudget(context: StoreContext, actor: ServiceActor, id: string): Promise<BudgetState> {
  const budget = await findVisible(context.db, actor, id);
  return (await toStates(context, [budget]))[0];
}

/** What the subject has spent in the current period counts. */
export async function createBudget(
  context: StoreContext,
  actor: ServiceActor,
  spec: NewBudgetSpec,
): Promise<BudgetState> {
  const nowMs = context.now();
  const amount = checkAmount(spec.amount);
  const alerts = checkAlerts(spec.alerts ?? DEFAULT_ALERTS);
  const id = newId('bud', nowMs);
  await serviceChange(context.db, nowMs, changeOptions(actor), async ({ tx, rev, record }) => {
    const { scope, owner } = await subjectOf(tx, actor, spec.subject);
    await demandChange(tx, actor, scope, owner);
    const existing = await readBudgets(tx, sql`owner_id = ${owner.id}`);
    if (existing.some(({ subjectId, period }) => subjectId === spec.subject && period === spec.period))
      throw new ServiceError('conflict', `subject: it has a budget per ${spec.period} already. Change that one`);
    if (existing.length >= MAX_BUDGETS)
      throw new ServiceError('quota_exceeded', `an owner can have at most ${MAX_BUDGETS} budgets: delete one first`);
    await sql`insert into money_budgets
      (id, scope, subject_id, owner_type, owner_id, period, amount, alerts, created_at, updated_at, rev)
      values (${id}, ${scope}, ${spec.subject}, ${owner.type}, ${owner.id}, ${spec.period}, ${amountLiteral(amount)},
        ${JSON.stringify(alerts)}, ${sql.lit(nowMs)}, ${sql.lit(nowMs)}, ${sql.lit(rev)})`.execute(tx);
    const sinceDay = sinceDayOf(spec.period, nowMs);
    const filter = scope === 'key' ? { ownerId: owner.id, keyId: spec.subject } : { ownerId: owner.id };
    await ensurePeriod(tx, { budgetId: id, sinceDay }, await spentSince(tx, filter, sinceDay));
    record({
      action: 'budget.created',
      owner,
      target: { type: 'budget', id },
      after: { subject: spec.subject, period: spec.period, amount: formatAmount(amount), alerts },
    });
  });
  return getBudget(context, actor, id);
}

export async function editBudget(
  context: StoreContext,
  actor: ServiceActor,
  id: string,
  edit: BudgetEdit,
  ifRev?: number,
): Promise<BudgetState> {
  const nowMs = context.now();
  const amount = edit.amount === undefined ? undefined : checkAmount(edit.amount);
  const alerts = edit.alerts === undefined ? undefined : checkAlerts(edit.alerts);
  await serviceChange(context.db, nowMs, changeOptions(actor), async ({ tx, rev, record }) => {
    const before = await findVisible(tx, actor, id);
    await demandChange(tx, actor, before.scope, before.owner);
    if (ifRev !== undefined && before.rev !== ifRev)
      throw new ServiceError('stale', `the budget has changed: its revision is ${before.rev}, not ${ifRev}`);
    const after = { amount: amount ?? before.amount, alerts: alerts ?? before.alerts };
    await sql`update money_budgets set amount = ${amountLiteral(after.amount)}, alerts = ${JSON.stringify(after.alerts)},
      updated_at = ${sql.lit(nowMs)}, rev = ${sql.lit(rev)} where id = ${id}`.execute(tx);
    // An amount that was raised is reported again.
    if (after.amount > before.amount)
      await sql`update money_periods set alerted = 0 where budget_id = ${id}`.execute(tx);
    record({
      action: 'budget.updated',
      owner: before.owner,
      target: { type: 'budget', id },
      before: { amount: formatAmount(before.amount), alerts: before.alerts },
      after: { amount: formatAmount(after.amount), alerts: after.alerts },
    });
  });
  return getBudget(context, actor, id);
}

export async function deleteBudget({ db, now }: StoreContext, actor: ServiceActor, id: string): Promise<void> {
  await serviceChange(db, now(), changeOptions(actor), async ({ tx, record }) => {
    const { scope, owner, subjectId, period, amount } = await findVisible(tx, actor, id);
    await demandChange(tx, actor, scope, owner);
    await tx.deleteFrom('money_periods').where('budget_id', '=', id).execute();
    await tx.deleteFrom('money_budgets').where('id', '=', id).execute();
    record({
      action: 'budget.deleted',
      owner,
      target: { type: 'budget', id },
      before: { subject: subjectId, period, amount: formatAmount(amount) },
    });
  });
}

/** The budget of a key belongs to the key's owner. That of an owner is a limit that administrators set. */
async function demandChange(tx: ServiceTx, actor: ServiceActor, scope: BudgetScope, owner: OwnerRef): Promise<void> {
  if (scope === 'key') return demandOwner(tx, actor, owner, 'key.changeOthers');
  demandAdmin(actor);
  if (!actor.canWrite) throw new ServiceError('forbidden', 'this management token is read-only');
}

async function subjectOf(
  tx: ServiceTx,
  actor: ServiceActor,
  subject: string,
): Promise<{ scope: BudgetScope; owner: OwnerRef }> {
  if (subject.startsWith('key_')) {
    const key = await tx
      .selectFrom('api_keys')
      .select(['owner_type', 'owner_id'])
      .where('id', '=', subject)
      .where('status', '!=', 'deleted')
      .executeTakeFirst();
    if (key === undefined) throw new ServiceError('not_found', 'key not found');
    const owner = { type: key.owner_type, id: key.owner_id };
    await demandOwner(tx, actor, owner, 'read');
    return { scope: 'key', owner };
  }
  const owner: OwnerRef = { type: subject.startsWith('org_') ? 'org' : 'user', id: subject };
  if (!actor.isAdmin) await demandOwner(tx, actor, owner, 'read');
  if (!(await ownerViews(tx, [owner])).has(subject)) throw new ServiceError('not_found', 'owner not found');
  return { scope: 'owner', owner };
}

async function findVisible(db: ServiceDb | ServiceTx, actor: ServiceActor, id: string): Promise<Budget> {
  const budget = (await readBudgets(db, sql`id = ${id}`)).at(0);
  if (budget === undefined) throw new ServiceError('not_found', 'budget not found');
  if (budget.scope === 'key' || !actor.isAdmin) await demandOwner(db, actor, budget.owner, 'read');
  return budget;
}

async function toStates({ db, now }: StoreContext, budgets: readonly Budget[]): Promise<BudgetState[]> {
  const currency = await readCurrency(db);
  const owners = await ownerViews(
    db,
    budgets.map(({ owner }) => owner),
  );
  const states: BudgetState[] = [];
  for (const budget of budgets) {
    const sinceDay = sinceDayOf(budget.period, now());
    const { rows } = await sql<{ taken: string }>`select cast(taken as text) as taken from money_periods
      where budget_id = ${budget.id} and since_day = ${sql.lit(sinceDay)}`.execute(db);
    const key =
      budget.scope === 'owner'
        ? undefined
        : await db.selectFrom('api_keys').select('name').where('id', '=', budget.subjectId).executeTakeFirst();
    states.push({
      ...budget,
      currency,
      ownerView: viewOf(owners, budget.owner.id),
      key: budget.scope === 'owner' ? null : { id: budget.subjectId, name: key?.name ?? '' },
      sinceDay,
      taken: rows.length === 0 ? 0n : BigInt(rows[0].taken),
    });
  }
  return states;
}

function checkAmount(text: string): bigint {
  const amount = parseAmount(text);
  if (amount === undefined)
    throw new ServiceError(
      'invalid_argument',
      'amount: expected a number from 0 to 1000000000 with at most 9 decimals, such as 25 or 0.5',
    );
  return amount;
}

function checkAlerts(alerts: readonly number[]): number[] {
  const sorted = [...new Set(alerts)].sort((a, b) => a - b);
  if (
    sorted.length > MAX_ALERTS ||
    sorted.some((percent) => !Number.isInteger(percent) || percent < 1 || percent > 100)
  )
    throw new ServiceError('invalid_argument', `alerts: expected at most ${MAX_ALERTS} percentages from 1 to 100`);
  return sorted;
}
