import type { ServiceActor } from '../accounts/actor';
import {
  type BudgetEdit,
  createBudget,
  deleteBudget,
  editBudget,
  getBudget,
  listBudgets,
  type NewBudgetSpec,
} from '../money/budgets';
import {
  alertBudget,
  type PeriodRef,
  pruneSpend,
  recordSpend,
  type Returned,
  type SpendRow,
  takeFromBudget,
} from '../money/ledger';
import { type Budget, readMoney } from '../money/money-rows';
import { deletePrice, listPrices, type PriceSpec, setCurrency, setPrice } from '../money/prices';
import { readSpend, type SpendFilter } from '../money/spend-report';
import type { StoreContext } from './store-context';

/** Methods with an actor check its rights. The others are for the gateway. */
export function moneyMethods(context: StoreContext) {
  const { db, now } = context;
  return {
    listPrices: () => listPrices(context),
    setPrice: (actor: ServiceActor, spec: PriceSpec) => setPrice(context, actor, spec),
    deletePrice: (actor: ServiceActor, id: string) => deletePrice(context, actor, id),
    setCurrency: (actor: ServiceActor, currency: string) => setCurrency(context, actor, currency),
    listBudgets: (actor: ServiceActor) => listBudgets(context, actor),
    getBudget: (actor: ServiceActor, id: string) => getBudget(context, actor, id),
    createBudget: (actor: ServiceActor, spec: NewBudgetSpec) => createBudget(context, actor, spec),
    editBudget: (actor: ServiceActor, id: string, edit: BudgetEdit, ifRev?: number) =>
      editBudget(context, actor, id, edit, ifRev),
    deleteBudget: (actor: ServiceActor, id: string) => deleteBudget(context, actor, id),
    readSpend: (actor: ServiceActor, filter: SpendFilter) => readSpend(context, actor, filter),

    readMoney: () => readMoney(db),
    takeFromBudget: (period: PeriodRef, wanted: bigint) => takeFromBudget(db, period, wanted),
    recordSpend: (rows: readonly SpendRow[], returned: readonly Returned[]) => recordSpend(db, rows, returned),
    alertBudget: (budget: Budget, reached: { sinceDay: number; percent: number; spent: bigint }) =>
      alertBudget(db, budget, reached, now()),
    pruneSpend: (beforeDay: number) => pruneSpend(db, beforeDay),
  };
}

export type MoneyStore = ReturnType<typeof moneyMethods>;
