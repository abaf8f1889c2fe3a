import { demandAdmin } from '../../accounts/actor';
import { formatAmount, formatPrice } from '../../money/amounts';
import type { BudgetState } from '../../money/budgets';
import type { ModelPrice } from '../../money/money-rows';
import { dayOf, dayText, endMsOf } from '../../money/periods';
import { spendCsv } from '../../money/spend-csv';
import type { SpendEntry as StoredEntry, SpendFilter } from '../../money/spend-report';
import { rfc3339, rfc3339OrNull } from '../../store/times';
import type { ApiContext } from '../context';
import { input, page } from '../json-schema';
import {
  Budget,
  BudgetEdit,
  Currency,
  CurrencyEdit,
  NewBudget,
  NewPrice,
  Price,
  PriceTable,
  Spend,
  type SpendEntry,
} from '../objects';
import { pageOf, pagingById } from '../paging';
import { ApiProblem } from '../problem';
import { type ApiCall, type ApiRoute, defineRoute } from '../route';

const TAG = 'money';
const PRICES = '/api/v1/prices';
const BUDGETS = '/api/v1/budgets';
const SPEND = '/api/v1/spend';
const DEFAULT_DAYS = 30;
const MAX_DAYS = 400;

const DAY = {
  type: 'string',
  pattern: '^\\d{4}-\\d{2}-\\d{2}$',
  description: 'a day in UTC such as 2030-01-31',
} as const;
const SpendQuery = input({
  owner: {
    type: 'string',
    pattern: '^(usr|org)_[0-9a-z]{26}$',
    description: 'the ID of a user or of an organization. Default: you, and the organizations that you belong to',
  },
  key: { type: 'string', pattern: '^key_[0-9a-z]{26}$', description: 'the ID of a key' },
  from: DAY,
  to: DAY,
});

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: PRICES,
    summary: 'List the prices of models and the currency of the service',
    tag: TAG,
    auth: 'any',
    responses: { 200: PriceTable },
    handle: async ({ context: { store } }) => {
      const { currency, prices } = await store.listPrices();
      return { status: 200, body: { currency, data: prices.map(priceView) } };
    },
  }),
  defineRoute({
    method: 'PUT',
    path: PRICES,
    summary: 'Set the price of a model (administrators)',
    tag: TAG,
    auth: 'any',
    body: NewPrice,
    responses: { 200: Price },
    problems: ['quota_exceeded'],
    handle: async ({ context, actor, body }) => {
      demandAdmin(actor);
      return { status: 200, body: priceView(await changing(context, () => context.store.setPrice(actor, body))) };
    },
  }),
  defineRoute({
    method: 'PATCH',
    path: PRICES,
    summary: 'Name the currency of all prices and budgets (administrators). Amounts do not change',
    tag: TAG,
    auth: 'any',
    body: CurrencyEdit,
    responses: { 200: Currency },
    handle: async ({ context, actor, body: { currency } }) => {
      demandAdmin(actor);
      await changing(context, () => context.store.setCurrency(actor, currency));
      return { status: 200, body: { currency } };
    },
  }),
  defineRoute({
    method: 'DELETE',
    path: `${PRICES}/{id}`,
    summary: 'Delete a price (administrators)',
    tag: TAG,
    auth: 'any',
    responses: { 204: null },
    handle: async ({ context, actor, params: { id } }) => {
      demandAdmin(actor);
      await changing(context, () => context.store.deletePrice(actor, id));
      return { status: 204 };
    },
  }),
  defineRoute({
    method: 'GET',
    path: BUDGETS,
    summary: 'List the budgets of your keys and organizations. Administrators see those of all owners',
    tag: TAG,
    auth: 'any',
    query: input(pagingById('bud')),
    responses: { 200: page(Budget) },
    handle: async ({ context, actor, query }) => {
      const { data, next } = pageOf(await context.store.listBudgets(actor), query, ({ id }) => id);
      return { status: 200, body: { data: data.map((budget) => budgetView(context, budget)), next } };
    },
  }),
  defineRoute({
    method: 'POST',
    path: BUDGETS,
    summary: 'Limit what a key or (administrators) an owner may spend',
    tag: TAG,
    auth: 'any',
    body: NewBudget,
    responses: { 201: Budget },
    problems: ['not_found', 'conflict', 'quota_exceeded'],
    handle: async ({ context, actor, body }) => {
      const budget = await changing(context, () => context.store.createBudget(actor, body));
      return {
        status: 201,
        body: budgetView(context, budget),
        headers: { Location: `${BUDGETS}/${budget.id}` },
      };
    },
  }),
  defineRoute({
    method: 'GET',
    path: `${BUDGETS}/{id}`,
    summary: 'Get a budget and what was spent in its current period',
    tag: TAG,
    auth: 'any',
    responses: { 200: Budget },
    handle: async ({ context, actor, params: { id } }) => ({
      status: 200,
      body: budgetView(context, await context.store.getBudget(actor, id)),
    }),
  }),
  defineRoute({
    method: 'PATCH',
    path: `${BUDGETS}/{id}`,
    summary: 'Change the amount or the alerts of a budget. New requests follow it at once',
    tag: TAG,
    auth: 'any',
    body: BudgetEdit,
    responses: { 200: Budget },
    problems: ['stale'],
    handle: async ({ context, actor, params: { id }, body, ifMatch }) => ({
      status: 200,
      body: budgetView(context, await changing(context, () => context.store.editBudget(actor, id, body, ifMatch))),
    }),
  }),
  defineRoute({
    method: 'DELETE',
    path: `${BUDGETS}/{id}`,
    summary: 'Delete a budget',
    tag: TAG,
    auth: 'any',
    responses: { 204: null },
    handle: async ({ context, actor, params: { id } }) => {
      await context.store.getBudget(actor, id);
      await changing(context, () => context.store.deleteBudget(actor, id));
      return { status: 204 };
    },
  }),
  defineRoute({
    method: 'GET',
    path: SPEND,
    summary: 'Get what requests have cost, by day, owner, key and model',
    tag: TAG,
    auth: 'any',
    query: SpendQuery,
    responses: { 200: Spend },
    problems: ['invalid_argument', 'not_found'],
    handle: async (call) => {
      const { currency, entries, from, to } = await readSpend(call);
      const total = entries.reduce((sum, { cost }) => sum + cost, 0n);
      return { status: 200, body: { currency, from, to, total: formatAmount(total), data: entries.map(entryView) } };
    },
  }),
  defineRoute({
    method: 'GET',
    path: `${SPEND}/csv`,
    summary: 'Download what requests have cost as CSV',
    tag: TAG,
    auth: 'any',
    query: SpendQuery,
    responses: { 200: 'text/csv' },
    problems: ['invalid_argument', 'not_found'],
    handle: async (call) => {
      const { currency, entries, from, to } = await readSpend(call);
      const headers = {
        'Content-Type': 'text/csv; charset=utf-8',
        'Content-Disposition': `attachment; filename="spend-${from}-${to}.csv"`,
      };
      const text = spendCsv(currency, entries);
      return {
        stream: (reply) => {
          reply.send(200, headers, text);
          return Promise.resolve();
        },
      };
    },
  }),
];

/** The meter of the gateway makes new requests follow the change. */
function changing<T>({ money }: ApiContext, run: () => Promise<T>): Promise<T> {
  return money === undefined ? run() : money.change(run);
}

type SpendCall = ApiCall<{ owner?: string; key?: string; from?: string; to?: string }>;

async function readSpend({ context, actor, query }: SpendCall) {
  const last = query.to === undefined ? dayOf(context.now()) : dayIn('to', query.to);
  const first = query.from === undefined ? last - DEFAULT_DAYS + 1 : dayIn('from', query.from);
  if (first > last || last - first >= MAX_DAYS)
    throw new ApiProblem('invalid_argument', `?from: expected a day before \`to\`, at most ${MAX_DAYS} days`);
  const filter: SpendFilter = {
    fromDay: first,
    toDay: last + 1,
    ...(query.owner === undefined ? {} : { ownerId: query.owner }),
    ...(query.key === undefined ? {} : { keyId: query.key }),
  };
  await context.money?.flush();
  const { currency, entries } = await context.store.readSpend(actor, filter);
  return { currency, entries, from: dayText(first), to: dayText(last) };
}

function dayIn(name: string, text: string): number {
  const ms = Date.parse(`${text}T00:00:00Z`);
  if (Number.isNaN(ms)) throw new ApiProblem('invalid_argument', `?${name}: expected a day such as 2030-01-31`);
  return dayOf(ms);
}

function priceView({
  id,
  model,
  input: prompt,
  cachedInput,
  output,
  maxOutputTokens,
  updatedAt,
  rev,
}: ModelPrice): Price {
  return {
    id,
    model,
    input: formatPrice(prompt),
    cached_input: formatPrice(cachedInput),
    output: formatPrice(output),
    max_output_tokens: maxOutputTokens,
    updated_at: rfc3339(updatedAt),
    rev,
  };
}

function budgetView({ money, now }: Pick<ApiContext, 'money' | 'now'>, budget: BudgetState): Budget {
  const { id, scope, ownerView, key, period, amount, currency, sinceDay, taken, alerts, createdAt, updatedAt, rev } =
    budget;
  const { free, open } = money?.heldOf(id, sinceDay) ?? { free: 0n, open: 0n };
  return {
    id,
    scope,
    owner: ownerView,
    key,
    period,
    amount: formatAmount(amount),
    currency,
    spent: formatAmount(taken - free - open),
    reserved: formatAmount(open),
    resets_at: rfc3339OrNull(endMsOf(period, now())),
    alerts: [...alerts],
    created_at: rfc3339(createdAt),
    updated_at: rfc3339(updatedAt),
    rev,
  };
}

function entryView(entry: StoredEntry): SpendEntry {
  const { day, owner, key, model, requests, promptTokens, cachedTokens, completionTokens, cost, estimated } = entry;
  return {
    day: dayText(day),
    owner,
    key,
    model,
    requests,
    prompt_tokens: promptTokens,
    cached_tokens: cachedTokens,
    completion_tokens: completionTokens,
    cost: formatAmount(cost),
    estimated: formatAmount(estimated),
  };
}
