import { ApiError, type Log } from 'capstan/internal';
import type { Bill, BilledCall, Billing } from '../gateway/billing';
import type { MoneyStore } from '../store/store-money';
import { formatAmount, MAX_SUM, smaller } from './amounts';
import { BudgetAccount, type PeriodAccount, spentOf, usableOf } from './budget-account';
import type { Returned, SpendRow } from './ledger';
import type { Budget } from './money-rows';
import { hasOutput, kindOfPath, OutputLimit } from './output-limit';
import { dayOf, endMsOf } from './periods';
import { type FoundPrice, PriceList } from './price-list';
import { RequestBill, RequestCost } from './request-bill';

export interface MoneyMeterOptions {
  store: Pick<MoneyStore, 'readMoney' | 'takeFromBudget' | 'recordSpend' | 'alertBudget' | 'pruneSpend'>;
  log: Pick<Log, 'warn' | 'info'>;
  now?: () => number;
}

const FLUSH_MS = 5_000;
const PRUNE_MS = 3_600_000;
const KEPT_DAYS = 400;
/** Bound on the rows in memory while the database fails. Further ones are dropped, but budgets count them. */
const MAX_ROWS = 100_000;

/** Prices requests, reserves their highest cost in all budgets that apply, and records what they cost. */
export class MoneyMeter implements Billing {
  readonly #options: MoneyMeterOptions;
  readonly #now: () => number;
  #currency = '';
  #prices = new PriceList([]);
  #hasPrices = false;
  readonly #accounts = new Map<string, BudgetAccount>();
  /** Accounts by the id of their key or owner. */
  #bySubject = new Map<string, BudgetAccount[]>();
  #rows = new Map<string, SpendRow>();
  #timers: NodeJS.Timeout[] = [];
  /** Writes and changes run one at a time. */
  #last: Promise<unknown> = Promise.resolve();
  #isFailing = false;

  private constructor(options: MoneyMeterOptions) {
    this.#options = options;
    this.#now = options.now ?? Date.now;
  }

  static async open(options: MoneyMeterOptions): Promise<MoneyMeter> {
    const meter = new MoneyMeter(options);
    await meter.#load();
    return meter;
  }

  start(): void {
    const every = (ms: number, run: () => Promise<unknown>): unknown =>
      this.#timers.push(setInterval(() => void run().catch((error: unknown) => this.#logFailure(error)), ms).unref());
    every(FLUSH_MS, () => this.flush());
    every(PRUNE_MS, () => this.#options.store.pruneSpend(dayOf(this.#now()) - KEPT_DAYS));
  }

  /** Stops the timers, and returns what no request has reserved. */
  async close(): Promise<void> {
    this.#timers.splice(0).forEach((timer) => clearInterval(timer));
    await this.#inTurn(() => this.#write(true)).catch((error: unknown) => this.#logFailure(error));
  }

  /** Writes the costs. Never rejects: what cannot be written is kept. */
  flush(): Promise<void> {
    return this.#inTurn(() => this.#write(false)).catch((error: unknown) => this.#logFailure(error));
  }

  /** Runs a change of prices or budgets. When it resolves, new requests follow it. */
  change<T>(run: () => Promise<T>): Promise<T> {
    return this.#inTurn(async () => {
      await this.#write(true);
      const result = await run();
      await this.#load();
      await this.#write(true);
      return result;
    });
  }

  /** What this process holds of a budget. The database counts it as spent. */
  heldOf(budgetId: string, sinceDay: number): { free: bigint; open: bigint } {
    const period = this.#accounts.get(budgetId)?.periods.find((one) => one.sinceDay === sinceDay);
    return period === undefined ? { free: 0n, open: 0n } : { free: period.free, open: period.open };
  }

  needsBody(call: BilledCall): boolean {
    if (!this.#hasPrices || kindOfPath(call.method, call.path) !== 'billed') return false;
    if (call.inner === undefined && this.#prices.hasInner(call.target)) return true;
    return this.#prices.find(call.target, call.inner) !== undefined && this.#accountsOf(call).length > 0;
  }

  async open(call: BilledCall, body: Buffer | undefined, isBuiltin: boolean): Promise<Bill | undefined> {
    if (!this.#hasPrices || call.target.isContainer === true) return undefined;
    const kind = kindOfPath(call.method, call.path);
    // A budget that was set after the body had begun to pass limits the next request.
    const isWhole = body !== undefined;
    const accounts = isWhole || kind === 'unknown' ? this.#accountsOf(call) : [];
    if (kind === 'free') return undefined;
    if (kind === 'unknown') {
      if (accounts.length > 0 && this.#prices.find(call.target, call.inner) !== undefined) throw unknownCost(call.path);
      return undefined;
    }
    const output = isWhole && this.needsBody(call) ? await OutputLimit.read(call.path, body) : undefined;
    const found = this.#prices.find(call.target, call.inner ?? output?.model);
    if (found === undefined) return undefined;
    const cost = new RequestCost(found.price, output, body?.length ?? call.numBodyBytes, isBuiltin);
    const startedMs = this.#now();
    if (accounts.length === 0) return this.#bill(call, found, cost, output, startedMs, [], undefined);
    const periods = accounts.map((account) => account.at(startedMs));
    const reserved = await this.#reserve(accounts, periods, cost, startedMs);
    return this.#bill(call, found, cost, output, startedMs, periods, reserved);
  }

  /** Reserves the highest cost, or what all budgets have left. Throws ApiError `budget_exceeded`. */
  async #reserve(
    accounts: readonly BudgetAccount[],
    periods: readonly PeriodAccount[],
    { highest, lowest }: RequestCost,
    nowMs: number,
  ): Promise<bigint> {
    for (;;) {
      const lacking = periods.filter((period) => usableOf(period) < highest && !period.isDry);
      if (lacking.length === 0) break;
      try {
        await Promise.all(
          lacking.map((period) => accounts[periods.indexOf(period)].take(period, highest - usableOf(period))),
        );
      } catch (error) {
        this.#logFailure(error);
        throw new ApiError('auth_unavailable', 'The budget cannot be checked right now', { cause: error });
      }
    }
    const scarcest = periods.reduce((least, period) => (usableOf(period) < usableOf(least) ? period : least));
    const reserved = smaller(highest, usableOf(scarcest));
    if (reserved < lowest) throw this.#exceeded(scarcest.budget, nowMs);
    for (const period of periods) {
      period.free -= reserved;
      period.open += reserved;
    }
    return reserved;
  }

  #bill(
    call: BilledCall,
    { model }: FoundPrice,
    cost: RequestCost,
    output: OutputLimit | undefined,
    startedMs: number,
    periods: readonly PeriodAccount[],
    reserved: bigint | undefined,
  ): Bill {
    const release = (spent: bigint): void => {
      for (const period of periods) {
        period.open -= reserved ?? 0n;
        period.free += (reserved ?? 0n) - spent;
      }
    };
    return new RequestBill(
      { cost, output, reserved, hasOutput: hasOutput(call.path) },
      {
        onRefund: () => release(0n),
        onCost: (full, usage, isEstimate) => {
          const spent = smaller(full, MAX_SUM);
          release(spent);
          // A budget that was set after the request had started counts it as well.
          for (const account of this.#accountsOf(call))
            if (!periods.some(({ budget }) => budget.id === account.budget.id)) account.at(startedMs).free -= spent;
          this.#add({
            day: dayOf(startedMs),
            ownerId: call.ownerId,
            keyId: call.keyId ?? '',
            model,
            requests: 1,
            promptTokens: usage.promptTokens,
            cachedTokens: usage.cachedTokens,
            completionTokens: usage.completionTokens,
            cost: spent,
            estimated: isEstimate ? spent : 0n,
          });
        },
      },
    );
  }

  #accountsOf({ ownerId, keyId }: Pick<BilledCall, 'ownerId' | 'keyId'>): readonly BudgetAccount[] {
    const ofOwner = this.#bySubject.get(ownerId) ?? [];
    const ofKey = keyId === undefined ? [] : (this.#bySubject.get(keyId) ?? []);
    return ofKey.length === 0 ? ofOwner : [...ofKey, ...ofOwner];
  }

  #exceeded({ scope, period, amount }: Budget, nowMs: number): ApiError {
    const endMs = endMsOf(period, nowMs);
    const text = `${formatAmount(amount)} ${this.#currency} ${period === 'total' ? 'in total' : `per ${period}`}`;
    return new ApiError(
      'budget_exceeded',
      `The budget of ${scope === 'key' ? 'this API key' : 'the owner'} does not cover this request: ${text}`,
      { headers: endMs === null ? {} : { 'Retry-After': String(Math.max(1, Math.ceil((endMs - nowMs) / 1000))) } },
    );
  }

  #add(row: SpendRow): void {
    const name = JSON.stringify([row.day, row.ownerId, row.keyId, row.model]);
    const known = this.#rows.get(name);
    if (known === undefined) {
      if (this.#rows.size < MAX_ROWS) this.#rows.set(name, row);
      return;
    }
    for (const field of ['requests', 'promptTokens', 'cachedTokens', 'completionTokens'] as const)
      known[field] += row[field];
    for (const field of ['cost', 'estimated'] as const) known[field] = smaller(known[field] + row[field], MAX_SUM);
  }

  async #load(): Promise<void> {
    const { store } = this.#options;
    const { currency, prices, budgets } = await store.readMoney();
    this.#currency = currency;
    this.#prices = new PriceList(prices);
    this.#hasPrices = prices.length > 0;
    const bySubject = new Map<string, BudgetAccount[]>();
    for (const budget of budgets) {
      let account = this.#accounts.get(budget.id);
      if (account === undefined) {
        account = new BudgetAccount(budget, (id, sinceDay, wanted) =>
          store.takeFromBudget({ budgetId: id, sinceDay }, wanted),
        );
        this.#accounts.set(budget.id, account);
        this.#countUnwritten(account);
      } else if (account.budget.rev !== budget.rev) account.update(budget);
      bySubject.set(budget.subjectId, [...(bySubject.get(budget.subjectId) ?? []), account]);
    }
    const ids = new Set(budgets.map(({ id }) => id));
    for (const id of this.#accounts.keys()) if (!ids.has(id)) this.#accounts.delete(id);
    this.#bySubject = bySubject;
  }

  /** The database has counted what was written before the budget was set. */
  #countUnwritten(account: BudgetAccount): void {
    const period = account.at(this.#now());
    const { scope, subjectId } = account.budget;
    for (const { day, ownerId, keyId, cost } of this.#rows.values())
      if (day >= period.sinceDay && (scope === 'key' ? keyId : ownerId) === subjectId) period.free -= cost;
  }

  async #write(returnsAll: boolean): Promise<void> {
    const { store, log } = this.#options;
    const nowMs = this.#now();
    const rows = this.#rows;
    this.#rows = new Map();
    const returned: Returned[] = [...this.#accounts.values()].flatMap((account) => account.surplus(nowMs, returnsAll));
    try {
      if (rows.size > 0 || returned.length > 0) await store.recordSpend([...rows.values()], returned);
    } catch (error) {
      for (const one of returned) this.#accounts.get(one.budgetId)?.keep(one);
      rows.forEach((row) => this.#add(row));
      throw error;
    }
    if (this.#isFailing) log.info({}, 'costs can be saved again');
    this.#isFailing = false;
    for (const account of this.#accounts.values()) await this.#alert(account.at(nowMs));
  }

  async #alert(period: PeriodAccount): Promise<void> {
    const { budget, sinceDay, alerted } = period;
    const spent = spentOf(period);
    if (spent === undefined) return;
    const percent = budget.alerts.findLast((limit) => spent * 100n >= BigInt(limit) * budget.amount);
    if (percent === undefined || percent <= alerted) return;
    await this.#options.store.alertBudget(budget, { sinceDay, percent, spent });
    period.alerted = percent;
  }

  #inTurn<T>(run: () => Promise<T>): Promise<T> {
    const next = this.#last.then(run);
    this.#last = next.catch(() => {});
    return next;
  }

  /** Logs once per outage. */
  #logFailure(error: unknown): void {
    if (!this.#isFailing)
      this.#options.log.warn(
        { reason: (error as Error).message },
        'cannot reach the budgets in the database, retrying every 5 s',
      );
    this.#isFailing = true;
  }
}

function unknownCost(path: string): ApiError {
  return new ApiError(
    'permission_denied',
    `A budget in money applies, and the cost of requests to ${path.slice(0, 100)} is not known: use another path`,
  );
}
